"""What a part of a step costs by its rows, learnt from steps. Pure; knows no clock and no engine.

A machine slows down and recovers as a whole: another process, a falling clock. So an estimate is a *shape* (how much
dearer so many rows are than others), which hardly ever changes, times a *speed*, which changes all the time. What a
choice of K hangs on is the shape. A row count that was last seen in a bad moment is therefore not held to what it took
then: it follows the speed of those that are seen now.

Shapes are learnt where one row count follows another, from the difference of the two. Held against the speed instead,
a count that runs for long would make the speed its own and never be found wrong; and since noise only ever adds, all
that is seen would grow against what is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_WINDOW = 7
"""Samples behind the speed; the median of so many forgives three."""
_OUTLIER = math.log(3.0)
_STRAYS = 5
"""Outliers in a row that are a new speed, not noise."""
_PRIMED = 10
"""Samples that one of a warm-up pass counts as."""
_YOUNG = 20
"""Comparisons up to which a shape is hardly more than its warm-up, which may have been disturbed."""
_STEADY = 4
"""Recent samples of others that tell what the machine's speed is."""
_LEAST_GAIN = 0.05
"""Of a shape, by one comparison: it learns over some twenty of them."""
_MOST_SEEN = 100
"""Comparisons that a shape counts as at most: what is tried seldom must not do all the moving."""
_FURTHEST = 0.25
"""Largest difference that a comparison counts as; more of it is noise."""


@dataclass(frozen=True, slots=True)
class RowCost:
    """One row count; logarithms of seconds at the speed that counts as 0."""

    shape: float
    seen: int
    """Comparisons behind it, the first sample included."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    by_rows: tuple[RowCost | None, ...] = ()
    """[rows seen] for 1, 2, ... rows; ``None`` where nothing was measured."""
    speed: float = 0.0
    """Logarithm of what everything takes now, relative to the shapes."""
    recent: tuple[tuple[int, float], ...] = ()
    """[<= 7] latest samples that counted: rows and logarithm of seconds."""
    strays: tuple[tuple[int, float], ...] = ()
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
        state = _with(state, rows, RowCost(sample - state.speed, 1))
    elif abs(sample - known.shape - state.speed) > _OUTLIER:
        strays = (*state.strays, (rows, sample))
        if len(strays) < _STRAYS:
            return replace(state, strays=strays)
        return _at_speed(state, strays)
    elif _too_dear(state, rows, known, sample):
        state = _with(state, rows, RowCost(0.5 * (known.shape + sample - state.speed), known.seen))
    elif state.recent and state.recent[-1][0] != rows:
        state = _compared(state, rows, sample)
    return _at_speed(state, (*state.recent, (rows, sample))[-_WINDOW:])


def _too_dear(state: CostEstimate, rows: int, known: RowCost, sample: float) -> bool:
    """Whether it was far quicker than a young shape says, while others were as quick as theirs: noise only
    ever adds."""
    others = [seen for seen, _ in state.recent if seen != rows]
    return known.seen <= _YOUNG and len(others) >= _STEADY and sample < known.shape + state.speed - _FURTHEST


def _at_speed(state: CostEstimate, recent: tuple[tuple[int, float], ...]) -> CostEstimate:
    # Some three times in each step: sorting seven beats the library's median.
    relative = sorted([sample - _shape(state, rows) for rows, sample in recent])
    half = len(relative) // 2
    speed = relative[half] if len(relative) % 2 else (relative[half - 1] + relative[half]) / 2.0
    return CostEstimate(state.by_rows, speed, recent)


def _compared(state: CostEstimate, rows: int, sample: float) -> CostEstimate:
    """With what a sample behind one of another row count says of both; the one that less is known of moves more."""
    other, before = state.recent[-1]
    ours, theirs = state.by_rows[rows - 1], state.by_rows[other - 1]
    assert ours is not None and theirs is not None  # both were seen
    off = (sample - ours.shape) - (before - theirs.shape)
    gain = max(1.0 / (min(ours.seen, theirs.seen) + 1), _LEAST_GAIN)
    off = gain * max(-_FURTHEST, min(_FURTHEST, off))
    share = theirs.seen / (ours.seen + theirs.seen)
    state = _with(state, rows, RowCost(ours.shape + share * off, min(ours.seen + 1, _MOST_SEEN)))
    return _with(state, other, RowCost(theirs.shape - (1.0 - share) * off, theirs.seen))


def _shape(state: CostEstimate, rows: int) -> float:
    cost = state.by_rows[rows - 1]
    return 0.0 if cost is None else cost.shape


def _with(state: CostEstimate, rows: int, cost: RowCost) -> CostEstimate:
    by_rows = [*state.by_rows, *[None] * (rows - len(state.by_rows))]
    by_rows[rows - 1] = cost
    return replace(state, by_rows=tuple(by_rows))


def _log(rows: int, seconds: float) -> float:
    if rows < 1 or not (math.isfinite(seconds) and seconds > 0.0):
        raise ValueError(f"a cost needs rows >= 1 and seconds > 0, not {rows} and {seconds}")
    return math.log(seconds)
