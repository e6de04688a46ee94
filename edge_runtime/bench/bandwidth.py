"""How fast this machine's memory is: what reading weights is held against. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..console import counted
from ..doctor.probes.device_arrays import DeviceArrays
from ..doctor.probes.host import Buffers
from ..doctor.probes.telling import Absent
from ..errors import DeviceError
from ..resident import machine_memory

_LARGEST_BYTES = 256 << 20
_SHARE = 32
"""Of the available memory that a buffer takes at most."""
_MEASURE_S = 0.5


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the memory that weights are read from, the quickest of many runs."""

    what: Literal["reading", "copying", "copying on the device"]
    threads: int
    """0 on a device."""
    gb_s: float
    """10^9 bytes a second that memory moves: a copy reads and writes each byte."""

    def __str__(self) -> str:
        if not self.threads:
            return f"{self.what} {self.gb_s:.1f} GB/s"
        return f"{self.what} with {counted(self.threads, 'thread')} {self.gb_s:.1f} GB/s"


def device_speeds(measure_s: float = _MEASURE_S) -> tuple[Speed, ...]:
    """Of an accelerator, by a copy on it as ``doctor --device`` does; none where it cannot be reached."""
    try:
        copy = DeviceArrays().copied(_size(), measure_s)
    except (Absent, DeviceError):
        return ()
    return (Speed("copying on the device", 0, copy.gb_s),)


def measure_speeds(threads: int, measure_s: float = _MEASURE_S, size_bytes: int | None = None) -> tuple[Speed, ...]:
    """Of the processor: reading, which is what decoding does, and copying, as ``doctor`` does; with one thread and with
    ``threads``."""
    buffers = Buffers(size_bytes or _size())
    gigabytes = 1e-9 * buffers.size_bytes
    found = []
    for count in sorted({1, threads}):
        found.append(Speed("reading", count, gigabytes / buffers.read_s(count, measure_s)))
        found.append(Speed("copying", count, 2.0 * gigabytes / buffers.copy_s(count, measure_s)))
    return tuple(found)


def best(speeds: Sequence[Speed]) -> Speed | None:
    """The measured limit; ``None`` of none."""
    return max(speeds, key=lambda speed: speed.gb_s, default=None)


def _size() -> int:
    memory = machine_memory()
    return _LARGEST_BYTES if memory is None else min(_LARGEST_BYTES, memory.available // _SHARE)
