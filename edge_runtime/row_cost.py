"""What a part of a step costs by its rows, learnt from steps. Pure; knows no clock and no engine.

A machine slows down and recovers as a whole: another process, a falling clock. So an estimate is a *shape* (how much
dearer so many rows are than others), which hardly ever changes, times a *speed*, which changes all the time. What a
choice of K hangs on is the shape. A row count that was last seen in a bad moment is therefore not held to what it took
then: it follows the speed of those that are seen now.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

_WINDOW = 7
"""Samples behind the speed; the median of so many forgives three."""
_OUTLIER = math.log(3.0)
_STRAYS = 5
"""Outliers in a row that are a new speed, not noise."""
_PRIMED = 10
"""Samples that one of a warm-up pass counts as."""
_LEAST_GAIN = 0.05
"""Of a shape, by one sample: it learns over some twenty of them."""


@dataclass(frozen=True, slots=True)
class RowCost:
    """One row count; logarithms of seconds at the speed that counts as 0."""

    shape: float
    seen: int


@dataclass(frozen=True, slots=True)
class CostEstimate:
    by_rows: tuple[RowCost | None, ...] = ()
    """[rows seen] for 1, 2, ... rows; ``None`` where nothing was measured."""
    speed: float = 0.0
    """Logarithm of what everything takes now, relative to the shapes."""
    recent: tuple[float, ...] = ()
    """[<= 7] latest samples that counted, relative to their shapes."""
    strays: tuple[float, ...] = ()
    """[< 5] the same of outliers since the last sample that counted."""

    def measured(self) -> dict[int, float]:
        """Rows -> seconds now, for ``cost.dense_by_rows``.

        Fewer rows never take longer than more: noise only ever adds, so what more were seen to take bounds fewer.
        """
        seconds: dict[int, float] = {}
        least = math.inf
        for rows in range(len(self.by_rows), 0, -1):
            cost = self.by_rows[rows - 1]
            if cost is not None:
                least = min(least, cost.shape + self.speed)
                seconds[rows] = math.exp(least)
        return dict(sorted(seconds.items()))


def prime_cost(state: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    """With a median of a warm-up pass, taken at the speed of now. Raises ``ValueError``."""
    return _with(state, rows, RowCost(_log(rows, seconds) - state.speed, _PRIMED))


def observe_cost(state: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    """After a forward, a head call or a draft of ``rows`` that took ``seconds``. Raises ``ValueError``.

    A sample three times off is dropped; five such in a row (a clock that fell) are the new speed.
    """
    sample = _log(rows, seconds)
    known = state.by_rows[rows - 1] if rows <= len(state.by_rows) else None
    if known is None:
        return _with(state, rows, RowCost(sample - state.speed, 1))
    relative = sample - known.shape
    if abs(relative - state.speed) > _OUTLIER:
        strays = (*state.strays, relative)
        if len(strays) < _STRAYS:
            return replace(state, strays=strays)
        return replace(state, speed=statistics.median(strays), recent=strays, strays=())
    recent = (*state.recent, relative)[-_WINDOW:]
    speed = statistics.median(recent)
    gain = max(1.0 / (known.seen + 1), _LEAST_GAIN)
    learnt = RowCost(known.shape + gain * (relative - speed), known.seen + 1)
    return _with(replace(state, speed=speed, recent=recent, strays=()), rows, learnt)


def _with(state: CostEstimate, rows: int, cost: RowCost) -> CostEstimate:
    by_rows = [*state.by_rows, *[None] * (rows - len(state.by_rows))]
    by_rows[rows - 1] = cost
    return replace(state, by_rows=tuple(by_rows))


def _log(rows: int, seconds: float) -> float:
    if rows < 1 or not (math.isfinite(seconds) and seconds > 0.0):
        raise ValueError(f"a cost needs rows >= 1 and seconds > 0, not {rows} and {seconds}")
    return math.log(seconds)
