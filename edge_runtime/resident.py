"""The memory of this process: how much, from /proc, and giving back what is free. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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


def peak_resident_bytes() -> int:
    return resident().peak


def give_back() -> None:
    """Return to the system what was freed. glibc keeps it, in the arenas of whichever threads once asked for it: a
    model that was closed would go on counting. Milliseconds; nothing under another C library (malloc_trim(3)).
    """
    import ctypes

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
