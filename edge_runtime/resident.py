"""Memory as /proc tells it: of this process, of the machine; and giving back what is free. Knows no model."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes."""

    peak: int
    now: int
    anonymous: int
    """Not backed by a file: what cannot be dropped under pressure."""


def resident() -> Resident:
    fields = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key in ("VmHWM", "VmRSS", "RssAnon"):
            fields[key] = int(value.split()[0]) * 1024
    return Resident(fields.get("VmHWM", 0), fields.get("VmRSS", 0), fields.get("RssAnon", 0))


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes, of processor and accelerator together where they share one pool."""

    total: int
    available: int
    """What could be had without swapping: not what is free, since caches of files give way."""


def machine_memory(root: Path = Path("/")) -> MachineMemory | None:
    """``None`` where it is not told."""
    fields = {}
    try:
        for line in (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                fields[key] = int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    if len(fields) < 2:
        return None
    return MachineMemory(fields["MemTotal"], fields["MemAvailable"])


def peak_resident_bytes() -> int:
    return resident().peak


def give_pages_back(array: NDArray[Any]) -> None:
    """The whole pages of a contiguous array: they read as zeros, and cost nothing until they are written again."""
    page = mmap.PAGESIZE
    first = -(-array.ctypes.data // page) * page
    stop = (array.ctypes.data + array.nbytes) // page * page
    if first < stop:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), mmap.MADV_DONTNEED)


def give_back() -> None:
    """Return to the system what was freed. glibc keeps it, in the arenas of whichever threads once asked for it: a
    model that was closed would go on counting. Milliseconds; nothing under another C library (malloc_trim(3)).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
