"""Memory as /proc tells it: of this process, of the machine; and giving back what is free. Knows no model."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from .groups import group_folders, is_count, kernel_text

_M_ARENA_MAX = -8
"""malloc.h"""


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes."""

    peak: int
    now: int
    anonymous: int
    """Not backed by a file: what cannot be dropped under pressure."""


def resident() -> Resident:
    fields = _numbers(Path("/proc/self/status"))
    peak, now, anonymous = (1024 * fields.get(name, 0) for name in ("VmHWM:", "VmRSS:", "RssAnon:"))
    return Resident(peak, now, anonymous)


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes, of processor and accelerator together where they share one pool."""

    total: int
    available: int
    """What could be had without swapping: not what is free, since caches of files give way."""


def machine_memory(root: Path = Path("/")) -> MachineMemory | None:
    """Within what the control groups of this process allow it; ``None`` where it is not told."""
    fields = _numbers(root / "proc/meminfo")
    if "MemTotal:" not in fields or "MemAvailable:" not in fields:
        return None
    total, available = fields["MemTotal:"] * 1024, fields["MemAvailable:"] * 1024
    for limit, left in _group_limits(root):
        total, available = min(total, limit), min(available, left)
    return MachineMemory(total, available)


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, what is left of it) of each control group around this process that has one."""
    for folder in group_folders(root):
        limit, used = kernel_text(folder / "memory.max").strip(), kernel_text(folder / "memory.current").strip()
        if is_count(limit) and is_count(used):
            # Pages of files are counted as used, and give way.
            yield int(limit), max(0, int(limit) - int(used) + _numbers(folder / "memory.stat").get("file", 0))


def _numbers(path: Path) -> dict[str, int]:
    """First word -> number behind it."""
    rows = [line.split() for line in kernel_text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and is_count(row[1])}


def peak_resident_bytes() -> int:
    return resident().peak


def give_pages_back(array: NDArray[Any]) -> None:
    """The whole pages of a contiguous array: they read as zeros, and cost nothing until they are written again."""
    page = mmap.PAGESIZE
    first = -(-array.ctypes.data // page) * page
    stop = (array.ctypes.data + array.nbytes) // page * page
    if first < stop:
        _libc().madvise(ctypes.c_void_p(first), ctypes.c_size_t(stop - first), mmap.MADV_DONTNEED)


def give_back() -> None:
    """Return to the system what was freed. glibc keeps it, in the arenas of whichever threads once asked for it: a
    model that was closed would go on counting. Milliseconds; nothing under another C library (malloc_trim(3)).
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_arena() -> None:
    """All threads take memory from one place, from now on. To be called before there are any; nothing under another C
    library (mallopt(3)).

    glibc has an arena for each few threads, and what a thread leaves behind in its own keeps pages that nobody else
    fills: a megabyte each time that a model was changed for another, for ever.
    """
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


@cache
def _libc() -> ctypes.CDLL:
    """One for all: each is a type of its own, and a circle that only the collector ends."""
    return ctypes.CDLL(None)
