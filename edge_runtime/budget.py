"""What the board may spend: the limits that are configured, and what the governor allows now. Pure shapes and sums.

Power is watts where it is reckoned with and milliwatts where it is read or configured, as the board's files are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["normal", "warm", "throttled", "critical", "stale", "unmonitored"]
"""Warm: K, pace or admission are held back to stay within limits. Throttled: the hardware clocks down by itself, as
measured. Critical: no setting holds. Stale: what is known is too old. Unmonitored: no limit asks for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """As configured for a board; ``None``: no limit of this kind."""

    power_mw: int | None = None
    """Mean over any ten seconds, of the whole board."""
    temperature_c: float | None = None
    """Of the hottest zone."""
    stale_s: float = 3.0
    """Age of a reading from which nothing is known."""
    blind_draft_tokens: int = 2
    """K at most while nothing is known."""
    blind_duty: float = 0.5
    """Share of the time that steps may take while nothing is known."""


@dataclass(frozen=True, slots=True)
class StepPower:
    """What a step draws and what it may, by which steps are priced and paced. Watts and joules of the whole board."""

    allowed_w: float
    idle_w: float
    busy_w: float
    """While a step runs, but for what is below: what a second costs whatever is computed in it."""
    row_j: float = 0.0
    """More for each row that is verified."""
    draft_j: float = 0.0
    """More for each drafted token."""

    def joules(self, seconds: float, rows: int, drafts: int) -> float:
        """e of one step of so many seconds."""
        return self.busy_w * seconds + self.row_j * rows + self.draft_j * drafts


@dataclass(frozen=True, slots=True)
class Activity:
    """What the engine's thread has done since it began; only grows. What a governor learns from.

    To be told between two steps, or seconds of a step under way are counted with the next interval.
    """

    busy_s: float = 0.0
    """In forwards, heads and drafting, waits left out."""
    rows: int = 0
    """Fed to the target."""
    drafts: int = 0
    tokens: int = 0
    """Committed."""
    steps: int = 0
    """Of decoding."""
    waiting: bool = False
    """Whether there is work now."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the governor allows from now on."""

    state: State = "unmonitored"
    reason: str = "no limits of power or temperature"
    admit: bool = True
    """Whether new requests may start."""
    run: bool = True
    """Whether steps may: in a critical state the step under way is the last."""
    max_draft_tokens: int | None = None
    duty: float = 1.0
    """Share of the time that steps may take, on top of what ``power`` asks for."""
    power: StepPower | None = None
    """``None``: steps are neither priced nor paced by power."""
    retry_after_s: float | None = None
    """What a refused client is told."""
