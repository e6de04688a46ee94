"""CUDA's runtime behind typed calls. Knows bytes, streams and graphs; nothing of TensorRT, nothing of a model.

cuda-python gives a tuple for every call, its status first. Here each status is checked, and what is not success is a
``DeviceError`` with the status' name and number. Addresses, streams, events and graphs are plain integers. One device:
the first.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, DeviceError

_DEVICE = 0
_MISSING = (
    "cuda-python is not installed; it comes with the extra 'trt', or by itself: "
    "pip install 'cuda-python>=12.6,<13' (JetPack 6), 'cuda-python>=13' (JetPack 7)"
)


@dataclass(frozen=True, slots=True)
class GpuFacts:
    name: str
    sm: str
    """Compute capability without its dot: "87"."""
    multiprocessors: int
    integrated: bool
    """Whether it shares its memory with the processor, as on a Jetson."""
    runtime: str
    """Version of CUDA's runtime: "12.6"."""
    driver: str
    """Newest version of CUDA that the driver knows."""


class Cuda:
    """Raises ``DeviceError`` from every call, ``ConfigError`` where there is no cuda-python."""

    def __init__(self) -> None:
        self._runtime = _import_runtime()
        if self._first("cudaGetDeviceCount") < 1:
            raise DeviceError("cudaGetDeviceCount", "no CUDA device")
        self._call("cudaSetDevice", _DEVICE)

    def facts(self) -> GpuFacts:
        attribute = self._runtime.cudaDeviceAttr
        major, minor, count, integrated = (
            int(self._first("cudaDeviceGetAttribute", one, _DEVICE))
            for one in (
                attribute.cudaDevAttrComputeCapabilityMajor,
                attribute.cudaDevAttrComputeCapabilityMinor,
                attribute.cudaDevAttrMultiProcessorCount,
                attribute.cudaDevAttrIntegrated,
            )
        )
        name = self._first("cudaGetDeviceProperties", _DEVICE).name
        return GpuFacts(
            name=name.decode(errors="replace").rstrip("\0") if isinstance(name, bytes) else str(name),
            sm=f"{major}{minor}",
            multiprocessors=count,
            integrated=bool(integrated),
            runtime=_version(self._first("cudaRuntimeGetVersion")),
            driver=_version(self._first("cudaDriverGetVersion")),
        )

    def free_bytes(self) -> int:
        """What could be allocated; on a board that shares its memory the kernel's figure is the better one."""
        return int(self._first("cudaMemGetInfo"))

    # Memory

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes on the device, aligned to 256 at least."""
        return int(self._first("cudaMalloc", size))

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def allocate_pinned(self, size: int) -> int:
        """Address of ``size`` bytes of the host that copies reach without a detour."""
        return int(self._first("cudaHostAlloc", size, self._runtime.cudaHostAllocDefault))

    def free_pinned(self, address: int) -> None:
        self._call("cudaFreeHost", address)

    def to_device(self, target: int, source: int, size: int, stream: int) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def to_host(self, target: int, source: int, size: int, stream: int) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Within the device."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def copy_lines(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, stream: int
    ) -> None:
        """``height`` lines of ``width`` bytes within the device; a pitch is from one line's begin to the next's."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpy2DAsync", target, target_pitch, source, source_pitch, width, height, kind, stream)

    def zero(self, address: int, size: int, stream: int) -> None:
        self._call("cudaMemsetAsync", address, 0, size, stream)

    # Order

    def make_stream(self) -> int:
        """One that does not wait for the default stream."""
        return int(self._first("cudaStreamCreateWithFlags", self._runtime.cudaStreamNonBlocking))

    def end_stream(self, stream: int) -> None:
        self._call("cudaStreamDestroy", stream)

    def wait(self, stream: int) -> None:
        """Until all that was asked for there is done; failures of any of it show here."""
        self._call("cudaStreamSynchronize", stream)

    def make_event(self, *, timed: bool = False) -> int:
        flags = 0 if timed else self._runtime.cudaEventDisableTiming
        return int(self._first("cudaEventCreateWithFlags", flags))

    def end_event(self, event: int) -> None:
        self._call("cudaEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cudaEventRecord", event, stream)

    def wait_event(self, event: int) -> None:
        self._call("cudaEventSynchronize", event)

    def elapsed_ms(self, first: int, last: int) -> float:
        """Between two timed events that have happened."""
        return float(self._first("cudaEventElapsedTime", first, last))

    # Graphs

    def begin_capture(self, stream: int) -> None:
        mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        """The executable graph of what was asked for since ``begin_capture``."""
        graph = int(self._first("cudaStreamEndCapture", stream))
        try:
            return int(self._first("cudaGraphInstantiate", graph, 0))
        finally:
            self._call("cudaGraphDestroy", graph)

    def abandon_capture(self, stream: int) -> None:
        """After a failure in between, so that the stream runs again. Raises nothing: the failure is what is told."""
        try:
            graph = int(self._first("cudaStreamEndCapture", stream))
        except DeviceError:
            return
        if graph:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: int, stream: int) -> None:
        self._call("cudaGraphLaunch", graph, stream)

    def end_graph(self, graph: int) -> None:
        self._call("cudaGraphExecDestroy", graph)

    # Status

    def _first(self, name: str, *arguments: Any) -> Any:
        return self._call(name, *arguments)[0]

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """What a call gives behind its status."""
        try:
            status, *given = getattr(self._runtime, name)(*arguments)
        except RuntimeError as problem:  # no driver: the bindings then fail before there is any status
            raise DeviceError(name, "not available", detail=str(problem)) from None
        if int(status) != 0:
            raise DeviceError(name, *self._told(status))
        return tuple(given)

    def _told(self, status: Any) -> tuple[str, int, str]:
        said = [getattr(self._runtime, call)(status)[1] for call in ("cudaGetErrorName", "cudaGetErrorString")]
        name, meaning = (one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in said)
        return name, int(status), meaning


def _import_runtime() -> Any:
    try:
        from cuda.bindings import runtime

        return runtime
    except ImportError:
        pass
    try:
        return importlib.import_module("cuda.cudart")  # as cuda-python had it before 12.6.1
    except ImportError:
        raise ConfigError(_MISSING) from None


def _version(number: Any) -> str:
    """12060 -> "12.6"."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"
