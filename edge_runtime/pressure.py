"""What to let go of while the machine runs out of memory. Pure: knows no cache, no request and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .memory import shown

_EASE = 1.25
"""Times the reserve that must be available again before all is as usual: what was let go must not come and go."""
_RETRY_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Pressure:
    level: Literal["none", "evict", "shed"] = "none"
    """Evict: what idle slots remember is let go. Shed: that was not enough, and new requests are refused."""
    reason: str = ""
    retry_after_s: float = _RETRY_AFTER_S
    """What a refused client is told."""

    @property
    def lets_go(self) -> bool:
        return self.level != "none"


NO_PRESSURE = Pressure()


def next_pressure(was: Pressure, available: int, reserve: int) -> Pressure:
    """One look after another: caches go first, and requests where the look after that finds too little still.

    ``available`` and ``reserve`` in bytes.
    """
    if available >= reserve:
        return NO_PRESSURE if was.level == "none" or available >= _EASE * reserve else was
    reason = f"memory runs out: {shown(available)} are available and {shown(reserve)} are to stay so"
    return Pressure("evict" if was.level == "none" else "shed", reason)
