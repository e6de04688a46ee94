"""What a board draws by what it computes, learnt from readings. Pure; knows no sensor, no limit and no clock.

Least squares of measured power on (time, busy time, rows, drafts, warmth), as rates over intervals of about a second:
the coefficients are the idle power, the joules of a busy second, of a row and of a drafted token, and what leaks more
when the chip is warm. What is left is one offset on top, which follows the residual as fast as noise lets it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .budget import StepPower

_MEMORY_S = 900.0
"""Of work, for the coefficients: what a row costs does not change, and a long memory has seen more kinds of steps."""
_KNOWN_S = 0.2
"""Of busy time, from which there is something to go by."""
_OFFSET_S, _SLOWEST_OFFSET_S = 5.0, 200.0
"""Of the offset: as fast as the noise of readings lets it be,"""
_OFFSET_NOISE = 0.005
"""relative to the power."""
_SETTLED_S = 5.0
"""With work, from which the coefficients hardly move and the offset follows at its full speed."""
_BUSY_SHARE = 4.0
"""Before it was seen: what a running step draws above the idle power, relative to that. Rather too much."""
_NOISE_S = 60.0
"""Of the residual's size."""
_UNIT = 1 / 50
"""Rows and drafts in fifties a second, so that all coefficients are some watts."""
_COOL_C, _WARMER_C = 50.0, 30.0
"""Where warmth is 0, and how much warmer it is 1."""
_PRIOR_S = (0.05, 0.2, 1.0, 1.0, 5.0)
"""Seconds of evidence that the prior counts as: that rows and drafts cost what the time costs that they take, and that
nothing leaks."""
_ALIKE = 0.2
"""Change of a rate, relative to 1 or to what it was, up to which two intervals are alike."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What was computed, a second."""

    duty: float = 0.0
    """Busy share of the time."""
    rows: float = 0.0
    drafts: float = 0.0

    def like(self, other: Rates) -> bool:
        return (
            abs(self.duty - other.duty) <= _ALIKE
            and abs(self.rows - other.rows) <= _ALIKE * max(self.rows, other.rows) + 5.0
            and abs(self.drafts - other.drafts) <= _ALIKE * max(self.drafts, other.drafts) + 5.0
        )


@dataclass(frozen=True, slots=True)
class EnergyModel:
    """Weighted sums of least squares, and what follows from them. Watts."""

    normal: tuple[tuple[float, ...], ...] = ((0.0,) * 5,) * 5
    """[5, 5] sum of weight x rate x rate."""
    right: tuple[float, ...] = (0.0,) * 5
    """[5] sum of weight x rate x power."""
    idle_w: float = 0.0
    """At 50 C, without the offset."""
    busy_w: float = 0.0
    """More while busy."""
    row_j: float = 0.0
    draft_j: float = 0.0
    leak_w: float = 0.0
    """More at a warmth of 1."""
    warmth: float = 0.0
    """Of late."""
    offset_w: float = 0.0
    residual_w2: float = 0.0
    """Mean square of what the model, its offset included, does not explain of an interval."""
    seen_s: float = 0.0
    busy_s: float = 0.0
    """Of ``seen_s``: what steps took,"""
    worked_s: float = 0.0
    """and what intervals took in which there were steps."""

    @property
    def known(self) -> bool:
        """Whether there is anything to price a step by."""
        return self.busy_s >= _KNOWN_S

    @property
    def residual_w(self) -> float:
        """Root mean square, of a reading averaged over about a second."""
        return math.sqrt(self.residual_w2)

    @property
    def idle_now_w(self) -> float:
        return max(0.0, self.idle_w + self.leak_w * self.warmth + self.offset_w)

    def power_w(self, rates: Rates) -> float:
        return (
            self.idle_w + self.leak_w * self.warmth + self.offset_w
            + self.busy_w * rates.duty + self.row_j * rates.rows + self.draft_j * rates.drafts
        )  # fmt: skip

    def full_w(self, rates: Rates) -> float:
        """What steps like these would draw without waits between them."""
        if rates.duty < 0.02:
            return self.idle_now_w + self.busy_w
        return self.power_w(Rates(1.0, rates.rows / rates.duty, rates.drafts / rates.duty))

    def doubt_w(self, rates: Rates) -> float:
        """Standard error of the mean power at ``rates``, in watts: large far from all that was seen."""
        x = np.array((1.0, rates.duty, rates.rows * _UNIT, rates.drafts * _UNIT, self.warmth))
        spread = np.linalg.solve(np.array(self.normal) + np.diag(_PRIOR_S), x)
        return self.residual_w * math.sqrt(max(0.0, float(x @ spread)))

    def step_power(self, allowed_w: float) -> StepPower:
        idle_w = self.idle_now_w
        return StepPower(allowed_w, idle_w, idle_w + self.busy_w, self.row_j, self.draft_j)


def learnt(
    model: EnergyModel, rates: Rates, power_w: float, seconds: float, temperature_c: float | None = None
) -> EnergyModel:
    """After an interval of ``seconds`` that drew ``power_w`` in the mean. To be told of steady intervals only: readings
    are late, and what they show of a change is what was before it."""
    if temperature_c is not None:
        model = replace(model, warmth=(temperature_c - _COOL_C) / _WARMER_C)
    if rates.duty == 0.0 and model.normal[0][0] - model.normal[0][1] > _MEMORY_S / 2.0:
        # A night without work must not make the idle power rigid, nor what was learnt of steps fade.
        return _trimmed(model, rates, power_w, seconds, 1.0)
    x = (1.0, rates.duty, rates.rows * _UNIT, rates.drafts * _UNIT, model.warmth)
    left = math.exp(-seconds / _MEMORY_S) if rates.duty > 0.0 else 1.0
    normal = tuple(
        tuple(left * old + seconds * one * other for old, other in zip(row, x, strict=True))
        for row, one in zip(model.normal, x, strict=True)
    )
    right = tuple(left * old + seconds * one * power_w for old, one in zip(model.right, x, strict=True))
    # Nothing is known before: idle as half of what is drawn now, busy as much as it may well be.
    lean = (0.5 * power_w, _BUSY_SHARE * (model.idle_w or 0.5 * power_w), 0.0, 0.0, 0.0)
    found = _solved(np.array(normal), np.array(right), np.array(lean))
    fresh = replace(
        model, normal=normal, right=right, idle_w=found[0], busy_w=found[1], row_j=found[2] * _UNIT,
        draft_j=found[3] * _UNIT, leak_w=found[4], seen_s=model.seen_s + seconds,
        busy_s=model.busy_s + seconds * rates.duty,
        worked_s=model.worked_s + (seconds if rates.duty > 0.0 else 0.0),
    )  # fmt: skip
    # Young coefficients are moved by what they have just been told; an offset would count it twice.
    return _trimmed(fresh, rates, power_w, seconds, min(1.0, fresh.worked_s / _SETTLED_S))


def _trimmed(model: EnergyModel, rates: Rates, power_w: float, seconds: float, share: float) -> EnergyModel:
    error_w = power_w - model.power_w(rates)
    noise = 1.0 - math.exp(-seconds / min(_NOISE_S, max(seconds, model.seen_s)))
    follow_s = 0.5 * model.residual_w2 / (_OFFSET_NOISE * max(1.0, power_w)) ** 2
    follow_s = min(_SLOWEST_OFFSET_S, max(_OFFSET_S, follow_s))
    return replace(
        model,
        offset_w=model.offset_w + share * (1.0 - math.exp(-seconds / follow_s)) * error_w,
        residual_w2=model.residual_w2 + noise * (error_w * error_w - model.residual_w2),
    )


def _solved(normal: np.ndarray, right: np.ndarray, lean: np.ndarray) -> list[float]:
    """[5] coefficients, none below 0: the most negative one is left out, and the others fitted again."""
    prior = np.array(_PRIOR_S)
    matrix, vector = normal + np.diag(prior), right + prior * lean
    used = list(range(len(lean)))
    while True:
        some = np.linalg.solve(matrix[np.ix_(used, used)], vector[used])
        worst = int(np.argmin(some))
        if some[worst] >= 0.0 or len(used) == 1:
            break
        del used[worst]
    found = [0.0] * len(lean)
    for place, value in zip(used, some, strict=True):
        found[place] = max(0.0, float(value))
    return found
