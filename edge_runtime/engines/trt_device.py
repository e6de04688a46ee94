"""The GPU as all models of a process share it: one stream, one runtime, one block of scratch, one cap. Knows plans, and
no model.

Draft and target never run at once, and one stream is the order of everything, so what they compute in may be the same
memory: a block as large as the largest of them wants. It grows only while engines are opened; whoever runs in it asks
for its address each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError, OutOfBudget
from ..memory import shown
from .cuda import Cuda
from .trt_objects import Account, Messages, make_allocator, make_logger
from .trt_plan import open_plan

if TYPE_CHECKING:
    import tensorrt as trt


@dataclass(frozen=True, slots=True)
class Scratch:
    address: int
    size: int


_NOTHING = Scratch(0, 0)


class TrtDevice:
    """Not thread-safe. Close it last: engines and buffers are its guests."""

    def __init__(self, cap: int, cuda: Cuda | None = None) -> None:
        """``cap``: most bytes on the device, of plans and buffers together. Raises ``ConfigError``, ``DeviceError``."""
        import tensorrt as trt

        self.cuda = Cuda() if cuda is None else cuda
        self.messages = Messages()
        self.account = Account(cap)
        self._logger = make_logger(self.messages)
        self._allocator = make_allocator(self.cuda, self.account)
        self._runtime = trt.Runtime(self._logger)
        self._runtime.gpu_allocator = self._allocator
        self._scratch = _NOTHING
        self._closed = False
        self.stream = self.cuda.make_stream()

    @property
    def held_bytes(self) -> int:
        """Of plans, buffers and scratch."""
        return self.account.held

    @property
    def scratch(self) -> Scratch:
        return self._scratch

    def open_plan(self, path: Path) -> trt.ICudaEngine:
        """Its scratch is there when it returns. Raises ``BundleError``, ``DeviceError`` and ``OutOfBudget``."""
        engine = open_plan(self._runtime, path, self.messages, self.account)
        self._grow(int(engine.device_memory_size_v2))
        return engine

    def allocate(self, size: int, what: str) -> int:
        """Zeros of the device, within the cap. ``what`` for: in words. Raises ``OutOfBudget`` and ``DeviceError``."""
        account = self.account
        if account.held + size > account.cap:
            raise OutOfBudget(
                f"{what} takes {shown(size)} beside the {shown(account.held)} that are held, and the GPU's part of the "
                f"budget is {shown(account.cap)}: fewer sessions or less context would fit"
            )
        address = self.cuda.allocate(size)
        account.sizes[address] = size
        account.held += size
        account.peak = max(account.peak, account.held)
        try:
            self.cuda.zero(address, size, self.stream)
        except DeviceError:
            self.free(address)
            raise
        return address

    def free(self, address: int) -> None:
        """What ``allocate`` gave."""
        self.account.held -= self.account.sizes.pop(address)
        self.cuda.free(address)

    def failed(self, call: str, name: str = "failed") -> DeviceError:
        """What a call of TensorRT that only says "no" is told as."""
        detail = "; ".join(filter(None, (self.account.why(), self.messages.why())))
        return DeviceError(call, name, detail=detail)

    def close(self) -> None:
        """Twice is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._scratch.address:
            self.free(self._scratch.address)
            self._scratch = _NOTHING
        self.cuda.end_stream(self.stream)

    def _grow(self, size: int) -> None:
        if size <= self._scratch.size:
            return
        if self._scratch.address:
            self.cuda.wait(self.stream)
            old, self._scratch = self._scratch, _NOTHING
            self.free(old.address)
        self._scratch = Scratch(self.allocate(size, "scratch"), size)
