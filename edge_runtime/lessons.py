"""What readings teach of what steps draw: averaged over intervals, and learnt from where those are steady. Pure; knows
no limit but the cap that its caller aims at, and no clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .budget import Activity
from .energy_model import EnergyModel, Rates, learnt

_INTERVAL_S = 1.0
"""Readings are averaged over so much time at least before the power of steps is learnt from them."""
_STEADY = 2
"""Intervals that must be alike before one is learnt from: readings are late, and sensors slow."""
_WIDE_S = 6.0
"""Where none are, as with several clients and waits between turns: the mean of so much time, to which what is late at
its ends matters little."""
FORGOTTEN_S = 30.0
"""Without a reading, before what was drawn and how warm it was says nothing any more."""
WINDOW_S = 7.0
"""What was drawn beyond the cap in so much time is taken back in the rest of that."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Readings since an interval began."""

    began_s: float
    activity: Activity
    sum_w: float = 0.0
    readings: int = 0


@dataclass(frozen=True, slots=True)
class Lessons:
    """What intervals have taught."""

    energy: EnergyModel = EnergyModel()
    rates: Rates = Rates()
    """Of the last interval,"""
    working: Rates = Rates()
    """and of the last that had work."""
    drafts_a_step: float = 0.0
    """Mean K of the last interval with steps,"""
    step_s: float = 0.0
    """and mean seconds of one."""
    wide: Interval | None = None
    """Since one was learnt from."""
    most_w: float = 0.0
    """Mean power of those that were, the highest, as far as it was allowed."""
    doubt_w: float = 0.0
    """Standard error of what steps draw as close to the cap as they come."""
    alike: int = 0
    """Intervals before this one that were like it."""
    excess: tuple[tuple[float, float], ...] = ()
    """(seconds, watts above the cap of then) of the last intervals, the latest last."""


@dataclass(frozen=True, slots=True)
class Heard:
    """With one sample."""

    power_w: float | None
    temperature_c: float | None
    """As estimated."""
    cap_w: float
    """What is aimed at,"""
    reached_w: float
    """and how far up to it steps were allowed."""


def averaged(
    interval: Interval | None, lessons: Lessons, heard: Heard, activity: Activity, now_s: float
) -> tuple[Interval, Lessons]:
    """With one sample more. An interval that is long enough ends, and another begins."""
    if interval is None or now_s - interval.began_s > FORGOTTEN_S:
        return Interval(now_s, activity), replace(lessons, rates=Rates(), wide=None, excess=())
    if heard.power_w is not None:
        sum_w = interval.sum_w + heard.power_w
        interval = Interval(interval.began_s, interval.activity, sum_w, interval.readings + 1)
    seconds, before = now_s - interval.began_s, interval.activity
    if seconds < _INTERVAL_S or not interval.readings:
        return interval, lessons
    rates = _rates(before, activity, seconds)
    mean_w, steps = interval.sum_w / interval.readings, activity.steps - before.steps
    energy, alike = lessons.energy, lessons.alike + 1 if rates.like(lessons.rates) else 0
    joined = _joined(lessons.wide, interval)
    wide: Interval | None = joined
    if alike >= _STEADY:
        energy, wide = learnt(energy, rates, mean_w, seconds, heard.temperature_c), None
    elif now_s - joined.began_s >= _WIDE_S:
        whole_s = now_s - joined.began_s
        whole = _rates(joined.activity, activity, whole_s)
        energy, wide = learnt(energy, whole, joined.sum_w / joined.readings, whole_s, heard.temperature_c), None
    working = rates if rates.duty > 0.0 else lessons.working
    return Interval(now_s, activity), Lessons(
        energy,
        rates,
        working,
        (activity.drafts - before.drafts) / steps if steps else lessons.drafts_a_step,
        (activity.busy_s - before.busy_s) / steps if steps else lessons.step_s,
        wide,
        # What was drawn beyond what was allowed must not allow more.
        lessons.most_w if wide is not None else max(lessons.most_w, min(mean_w, heard.reached_w)),
        _doubt(energy, working, heard.cap_w),
        alike,
        # Without a cap there is no excess, and none that would make up for one behind it.
        () if heard.cap_w == math.inf else _recent((*lessons.excess, (seconds, mean_w - heard.cap_w))),
    )


def _doubt(energy: EnergyModel, working: Rates, cap_w: float) -> float:
    if working.duty <= 0.0 or cap_w == math.inf:
        return 0.0
    above_w = energy.full_w(working) - energy.idle_now_w
    share = min(1.0, max(0.0, cap_w - energy.idle_now_w) / max(above_w, 1e-3)) / working.duty
    return energy.doubt_w(Rates(working.duty * share, working.rows * share, working.drafts * share))


def _joined(wide: Interval | None, last: Interval) -> Interval:
    if wide is None:
        return last
    return Interval(wide.began_s, wide.activity, wide.sum_w + last.sum_w, wide.readings + last.readings)


def _rates(before: Activity, after: Activity, seconds: float) -> Rates:
    return Rates(
        min(1.0, (after.busy_s - before.busy_s) / seconds),
        (after.rows - before.rows) / seconds,
        (after.drafts - before.drafts) / seconds,
    )


def _recent(excess: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    total_s, first = 0.0, len(excess)
    while first and total_s < WINDOW_S:
        first -= 1
        total_s += excess[first][0]
    return excess[first:]
