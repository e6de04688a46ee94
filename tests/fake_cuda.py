"""``cuda.bindings.runtime`` without a GPU. Knows no TensorRT; ``fake_tensorrt`` puts its runs on these streams.

Memory of the device is memory of this process, filled with garbage when it is new. A stream is a list of what was asked
for, and nothing of it happens before somebody waits: who reads too early reads garbage, who overwrites an input too
early spoils the run. What the surface of the real bindings lacks is refused (``tests/cuda_surface.json``), and so is an
address outside of what was allocated.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_SURFACE = json.loads(Path(__file__).with_name("cuda_surface.json").read_text(encoding="utf-8"))
_ALIGNED = 256
_GARBAGE = 0x5B
Work = Callable[[], None]


@dataclass
class Block:
    address: int
    size: int
    buffer: Any


@dataclass
class Stream:
    pending: list[tuple[Work, int | None]] = field(default_factory=list)
    """What is to happen, and the event that has then happened."""
    captured: list[Work] | None = None
    spoilt: bool = False


def _enumeration(name: str) -> type[enum.IntEnum]:
    members = {full.partition(".")[2]: int(next(iter(ways))) for full, ways in _SURFACE["names"].items()
               if full.startswith(f"{name}.")}  # fmt: skip
    return enum.IntEnum(name, members)


class FakeRuntime:
    """Stands for the module. Public attributes are for tests to read and set."""

    def __init__(self, *, sm: str = "87", name: str = "Orin", multiprocessors: int = 8, integrated: bool = True,
                 runtime: int = 12060, driver: int = 12060, devices: int = 1) -> None:  # fmt: skip
        self.cudaError_t = _enumeration("cudaError_t")
        self.cudaMemcpyKind = _enumeration("cudaMemcpyKind")
        self.cudaDeviceAttr = _enumeration("cudaDeviceAttr")
        self.cudaStreamCaptureMode = _enumeration("cudaStreamCaptureMode")
        for constant in ("cudaEventDisableTiming", "cudaHostAllocDefault", "cudaStreamNonBlocking"):
            setattr(self, constant, int(next(iter(_SURFACE["names"][constant]))))
        self.facts = SimpleNamespace(sm=sm, name=name, multiprocessors=multiprocessors, integrated=integrated,
                                     runtime=runtime, driver=driver, devices=devices)  # fmt: skip
        self.free, self.total = 6 << 30, 8 << 30
        self.device: dict[int, Block] = {}
        self.pinned: dict[int, Block] = {}
        self.streams: dict[int, Stream] = {}
        self.events: set[int] = set()
        self.graphs: dict[int, list[Work]] = {}
        self.executables: dict[int, list[Work]] = {}
        self.calls: list[str] = []
        self.failures: dict[str, tuple[int, str]] = {}
        """Call -> (how often it still succeeds, the status that it then gives)."""
        self.no_driver = False
        self._numbers = itertools.count(1000)

    def __getattr__(self, name: str) -> Any:
        """A call of the surface, with as many arguments as the real one takes."""
        ways = _SURFACE["names"].get(name)
        handler = self.__class__.__dict__.get(f"_{name}")
        if ways is None or handler is None:
            raise AttributeError(f"cuda.bindings.runtime has no {name} that is faked")
        takes = len([one for one in next(iter(ways)).strip("()").split(", ") if one])

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == takes, f"{name} takes {takes} arguments"
            if self.no_driver:
                raise RuntimeError("Failed to dlopen libcuda.so.1")
            self.calls.append(name)
            if (status := self._failure(name)) is not None:
                return (status, *[None] * 3)
            given = handler(self, *arguments)
            if isinstance(given, enum.IntEnum) and isinstance(given, self.cudaError_t):
                return (given, None)
            values = given if isinstance(given, tuple) else () if given is None else (given,)
            return (self.cudaError_t.cudaSuccess, *values)

        return call

    @property
    def held(self) -> dict[str, int]:
        """What was made and not ended: all zero when nothing has leaked."""
        return {
            "device": len(self.device), "pinned": len(self.pinned), "streams": len(self.streams),
            "events": len(self.events), "graphs": len(self.graphs), "executables": len(self.executables),
        }  # fmt: skip

    def _failure(self, name: str) -> Any:
        if name not in self.failures:
            return None
        left, status = self.failures[name]
        if left:
            self.failures[name] = (left - 1, status)
            return None
        return self.cudaError_t[status]

    # Facts

    def _cudaGetDeviceCount(self) -> Any:
        return self.facts.devices if self.facts.devices else self.cudaError_t.cudaErrorNoDevice

    def _cudaSetDevice(self, device: int) -> None:
        assert device == 0

    def _cudaDeviceGetAttribute(self, attribute: Any, device: int) -> int:
        of, kinds = self.facts, self.cudaDeviceAttr
        return {kinds.cudaDevAttrComputeCapabilityMajor: int(of.sm[:-1]),
                kinds.cudaDevAttrComputeCapabilityMinor: int(of.sm[-1]),
                kinds.cudaDevAttrMultiProcessorCount: of.multiprocessors,
                kinds.cudaDevAttrIntegrated: int(of.integrated)}[attribute]  # fmt: skip

    def _cudaGetDeviceProperties(self, device: int) -> Any:
        return SimpleNamespace(name=self.facts.name.encode())

    def _cudaRuntimeGetVersion(self) -> int:
        return int(self.facts.runtime)

    def _cudaDriverGetVersion(self) -> int:
        return int(self.facts.driver)

    def _cudaMemGetInfo(self) -> tuple[int, int]:
        return self.free, self.total

    def _cudaGetErrorName(self, status: Any) -> bytes:
        return bytes(status.name, "ascii")

    def _cudaGetErrorString(self, status: Any) -> bytes:
        return b"as a test wants it"

    # Memory

    def _cudaMalloc(self, size: int) -> Any:
        if self._capturing():
            return self.cudaError_t.cudaErrorStreamCaptureUnsupported
        return self._block(self.device, size)

    def _cudaHostAlloc(self, size: int, flags: int) -> int:
        return self._block(self.pinned, size)

    def _block(self, blocks: dict[int, Block], size: int) -> int:
        buffer = (ctypes.c_uint8 * (size + _ALIGNED)).from_buffer(bytearray([_GARBAGE]) * (size + _ALIGNED))
        address = -(-ctypes.addressof(buffer) // _ALIGNED) * _ALIGNED
        blocks[address] = Block(address, size, buffer)
        return address

    def _cudaFree(self, address: int) -> Any:
        self._run_all()  # as the real one waits
        return None if self.device.pop(address, None) else self.cudaError_t.cudaErrorInvalidValue

    def _cudaFreeHost(self, address: int) -> Any:
        self._run_all()
        return None if self.pinned.pop(address, None) else self.cudaError_t.cudaErrorInvalidValue

    def inside(self, blocks: dict[int, Block], address: int, size: int) -> bool:
        return any(one.address <= address and address + size <= one.address + one.size for one in blocks.values())

    def _cudaMemcpyAsync(self, target: int, source: int, size: int, kind: Any, stream: int) -> None:
        kinds = self.cudaMemcpyKind
        into = self.pinned if kind == kinds.cudaMemcpyDeviceToHost else self.device
        out_of = self.pinned if kind == kinds.cudaMemcpyHostToDevice else self.device
        assert self.inside(into, target, size) and self.inside(out_of, source, size), "an address of nobody"
        self.ask(stream, lambda: _moved(target, source, size))

    def _cudaMemcpy2DAsync(self, target: int, target_pitch: int, source: int, source_pitch: int, width: int,
                           height: int, kind: Any, stream: int) -> Any:  # fmt: skip
        assert kind == self.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        if width > min(target_pitch, source_pitch):
            return self.cudaError_t.cudaErrorInvalidValue
        for place, pitch in ((target, target_pitch), (source, source_pitch)):
            assert self.inside(self.device, place, (height - 1) * pitch + width), "an address of nobody"

        def work() -> None:
            for line in range(height):
                _moved(target + line * target_pitch, source + line * source_pitch, width)

        return self.ask(stream, work)

    def _cudaMemsetAsync(self, address: int, value: int, size: int, stream: int) -> None:
        assert self.inside(self.device, address, size), "an address of nobody"
        self.ask(stream, lambda: _filled(address, value, size))

    # Order

    def ask(self, stream: int, work: Work) -> None:
        """To happen when somebody waits, or to be captured."""
        of = self.streams[stream]
        if of.captured is not None:
            of.captured.append(work)
        else:
            of.pending.append((work, None))

    def _cudaStreamCreateWithFlags(self, flags: int) -> int:
        assert flags == self.cudaStreamNonBlocking
        return self._made(self.streams, Stream())

    def _cudaStreamDestroy(self, stream: int) -> None:
        self._run(self.streams.pop(stream))

    def _cudaStreamSynchronize(self, stream: int) -> Any:
        of = self.streams[stream]
        if of.captured is not None:
            of.spoilt = True
            return self.cudaError_t.cudaErrorStreamCaptureUnsupported
        return self._run(of)

    def _cudaEventCreateWithFlags(self, flags: int) -> int:
        number = next(self._numbers)
        self.events.add(number)
        return number

    def _cudaEventDestroy(self, event: int) -> None:
        self.events.remove(event)

    def _cudaEventRecord(self, event: int, stream: int) -> None:
        assert event in self.events
        self.streams[stream].pending.append((lambda: None, event))

    def _cudaEventSynchronize(self, event: int) -> None:
        for of in self.streams.values():
            while any(mark == event for _, mark in of.pending):
                of.pending.pop(0)[0]()

    def _cudaEventElapsedTime(self, first: int, last: int) -> float:
        return 1.0

    # Graphs

    def _cudaStreamBeginCapture(self, stream: int, mode: Any) -> None:
        self.streams[stream].captured = []
        self.streams[stream].spoilt = False

    def _cudaStreamEndCapture(self, stream: int) -> Any:
        of = self.streams[stream]
        works, of.captured = of.captured, None
        assert works is not None, "nothing is captured"
        if of.spoilt:
            return self.cudaError_t.cudaErrorStreamCaptureInvalidated
        return self._made(self.graphs, works)

    def _cudaGraphInstantiate(self, graph: int, flags: int) -> int:
        return self._made(self.executables, self.graphs[graph])

    def _cudaGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def _cudaGraphExecDestroy(self, graph: int) -> None:
        del self.executables[graph]

    def _cudaGraphLaunch(self, graph: int, stream: int) -> None:
        for work in self.executables[graph]:
            self.ask(stream, work)

    # Inner

    def spoil_capture(self, stream: int) -> None:
        self.streams[stream].spoilt = True

    def capturing(self, stream: int) -> bool:
        return self.streams[stream].captured is not None

    def _capturing(self) -> bool:
        return any(of.captured is not None for of in self.streams.values())

    def _made(self, things: dict[int, Any], thing: Any) -> int:
        number = next(self._numbers)
        things[number] = thing
        return number

    def _run(self, of: Stream) -> None:
        while of.pending:
            of.pending.pop(0)[0]()

    def _run_all(self) -> None:
        for of in self.streams.values():
            self._run(of)


def _moved(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


def _filled(address: int, value: int, size: int) -> None:
    ctypes.memset(address, value, size)
