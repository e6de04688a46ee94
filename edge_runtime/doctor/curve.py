"""What verifying drafts costs, by K, and from which K on it does not pay. Pure; knows no probe and no engine.

Of the products alone, and with drafts that cost nothing: the daemon prices whole steps, as it measures them. So where
a draft does not pay here, it pays nowhere; where it does, it may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cost import expected_tokens

ASSUMED_ACCEPTANCE = 0.7
"""Of each draft token, for the gains that are shown."""
_STEPS = 40
"""Of a bisection: far more than a float's worth is shown."""


@dataclass(frozen=True, slots=True)
class VerifyLine:
    k: int
    """Draft tokens: one row less than are run."""
    seconds: float
    cost: float
    """Over that of one row."""
    needed: float | None
    """Acceptance from which a step of K is worth more than plain decoding; ``None``: not even where all are kept."""
    gain: float
    """Tokens per second over plain decoding, at ``ASSUMED_ACCEPTANCE``."""


@dataclass(frozen=True, slots=True)
class VerifyCurve:
    what: str
    lines: tuple[VerifyLine, ...]
    """By K from 0 on."""

    @property
    def best(self) -> VerifyLine:
        """Of equal gains the least K."""
        return max(self.lines, key=lambda line: (line.gain, -line.k))

    @property
    def lost_from(self) -> int | None:
        """The least K from which on no step that was measured is worth a plain one; ``None``: there is none."""
        lost = None
        for line in reversed(self.lines):
            if line.k == 0 or line.gain > 1.0:
                break
            lost = line.k
        return lost

    def told(self) -> str:
        best, lost, most = self.best, self.lost_from, self.lines[-1]
        kept = f"with {ASSUMED_ACCEPTANCE:.0%} of the drafts kept"
        if best.k == 0:
            return f"{kept} no K up to {most.k} is worth verifying: {most.k + 1} rows cost {most.cost:.1f} times one"
        told = f"{kept} K = {best.k} gains most ({best.gain:.2f} times plain decoding, drafts not counted)"
        if lost is not None:
            return f"{told}; from K = {lost} on it does not pay"
        return f"{told}; up to K = {most.k} every step pays"


def verify_curve(what: str, seconds: Sequence[float]) -> VerifyCurve:
    """``seconds`` [>= 1] of 1, 2, ... rows. Several rows never take longer than more of them: noise only ever adds."""
    lines = []
    for k, one in enumerate(seconds):
        one = one if k == 0 else min(seconds[k:])
        cost = one / seconds[0]
        gain = expected_tokens([ASSUMED_ACCEPTANCE] * k) / cost
        lines.append(VerifyLine(k, one, cost, 0.0 if k == 0 else needed_acceptance(k, cost), gain))
    return VerifyCurve(what, tuple(lines))


def needed_acceptance(k: int, cost: float) -> float | None:
    """The a with 1 + a + ... + a^k = ``cost``; ``None`` where even a = 1 brings no more tokens than that."""
    if cost <= 1.0:
        return 0.0
    if cost >= k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if expected_tokens([middle] * k) < cost else (low, middle)
    return high
