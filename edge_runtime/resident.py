"""The memory of this process, from /proc. Knows no model."""

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
