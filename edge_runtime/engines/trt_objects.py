"""What TensorRT calls back: a log, a monitor of progress, an allocator. Knows neither graphs nor plans.

TensorRT's calls say that they failed, and their log says why; so the log keeps what it was last told. The classes are
made inside functions, for their bases are there only where tensorrt is. Nothing may be raised out of a callback:
TensorRT prints it and goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import DeviceError
from ..memory import shown
from .cuda import Cuda

if TYPE_CHECKING:
    import tensorrt as trt

_KEPT = 8
_LONGEST = 300


@dataclass(slots=True)
class Messages:
    """The last errors and warnings, oldest first."""

    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    warnings: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def why(self) -> str:
        """The last error, which is the one that a call failed with; then there is none."""
        said = self.errors.pop() if self.errors else ""
        self.errors.clear()
        return " ".join(said.split())[:_LONGEST]


def make_logger(messages: Messages) -> trt.ILogger:
    """It must live as long as what is made with it."""
    import tensorrt as trt

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                messages.errors.append(msg)
            elif severity == trt.ILogger.WARNING:
                messages.warnings.append(msg)

    return Log()


@dataclass(slots=True)
class Cancelling:
    """Whether a build is to end at its next step."""

    wanted: bool = False
    problem: Exception | None = None
    """Raised by whoever was told of the progress."""


Progress = Callable[[str, int, int], None]
"""(phase, steps done, steps in all)"""


def make_monitor(progress: Progress, cancelling: Cancelling) -> trt.IProgressMonitor | None:
    """``None`` where this TensorRT has none."""
    import tensorrt as trt

    if not hasattr(trt, "IProgressMonitor"):
        return None
    steps: dict[str, int] = {}

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str, num_steps: int) -> None:
            steps[phase_name] = num_steps

        def step_complete(self, phase_name: str, step: int) -> bool:
            """False ends the build."""
            most = steps.get(phase_name, 0)
            try:
                progress(phase_name, min(step + 1, most), most)
            except Exception as problem:  # noqa: BLE001  # raised again once TensorRT has returned
                cancelling.problem = problem
            return not cancelling.wanted and cancelling.problem is None

        def phase_finish(self, phase_name: str) -> None:
            steps.pop(phase_name, None)

    return Monitor()


@dataclass(slots=True)
class Account:
    """What an allocator has given, and to whom it refused."""

    cap: int
    """Bytes that it gives at most."""
    held: int = 0
    peak: int = 0
    refused: int = 0
    """Bytes of the last request that was refused; 0: none was."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Address -> bytes."""

    def why(self) -> str:
        """Empty where nothing was refused; then there is none."""
        refused, self.refused = self.refused, 0
        if not refused:
            return ""
        return f"TensorRT asked for {shown(refused)} beside {shown(self.held)}, and {shown(self.cap)} are its cap"


def make_allocator(cuda: Cuda, account: Account) -> trt.IGpuAllocator:
    """Counts, and refuses what would pass the cap: TensorRT then fails, and not the board."""
    import tensorrt as trt

    class Allocator(trt.IGpuAllocator):
        def __init__(self) -> None:
            trt.IGpuAllocator.__init__(self)

        def allocate(self, size: int, alignment: int, flags: int) -> int:
            if not size:
                return 0
            if account.held + size > account.cap:
                account.refused = size
                return 0
            try:
                address = cuda.allocate(size)  # aligned to 256, which is the most that TensorRT asks for
            except DeviceError:
                account.refused = size
                return 0
            account.sizes[address] = size
            account.held += size
            account.peak = max(account.peak, account.held)
            return address

        def reallocate(self, address: int, alignment: int, new_size: int) -> int:
            return 0  # "cannot be resized": TensorRT then allocates anew

        def deallocate(self, memory: int) -> bool:
            if not memory:
                return True
            size = account.sizes.pop(memory, None)
            if size is None:
                return False
            account.held -= size
            try:
                cuda.free(memory)
            except DeviceError:
                return False
            return True

    return Allocator()
