"""Whether the hardware holds itself back, and how far drafts have to be cut for it. Pure; knows no limit of ours.

Measured, not assumed: a clock far below what the mode allows while there is work, a cooling device that is active, a
counter of over-current events that has grown. A draft makes a step draw more at once, which waiting does not change: so
over-current events cut K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .telemetry.sample import Sample

_SLOW = 0.8
"""Share of the clock that the mode allows, below which it is held back."""
_UNDER_LOAD = 0.9
"""Below this share of busy time a clock may be low because there is little to do."""
_SURE_S = 2.0
"""For so long, before it counts: a clock takes time to rise."""
_KEPT_S = 10.0
"""Hysteresis: for so long it counts behind the last sign of it."""
_FIRST_HOLD_S, _LONGEST_HOLD_S = 30.0, 600.0
"""Without an over-current event, before K may be one more; doubled each time that this was too much."""
_LATE_S = 3.0
"""Behind a cut, in which events may be those of longer drafts."""
_FREE = 16
"""Drafts from which a cut is none."""


@dataclass(frozen=True, slots=True)
class ThrottleWatch:
    events: tuple[tuple[str, int], ...] = ()
    """Counters as they were read last."""
    read_s: float | None = None
    slow_since_s: float | None = None
    until_s: float = -math.inf
    """Up to then the hardware counts as throttling."""
    sign: str = ""
    """The last one, in words."""
    most_drafts: int | None = None
    hold_s: float = _FIRST_HOLD_S
    raise_s: float = math.inf
    """When K may be one more."""
    cut_s: float = -math.inf
    """When K was cut last."""
    free_until_s: float = -math.inf
    """Up to then K is not cut: it did not help."""

    def throttled(self, now_s: float) -> bool:
        return now_s < self.until_s


def watched(watch: ThrottleWatch, sample: Sample, duty: float, drafts_a_step: float, now_s: float) -> ThrottleWatch:
    """With a new sample. ``duty``: busy share of late; ``drafts_a_step``: mean K of late."""
    grown = _grown(watch.events, sample.throttling.over_current_events) if watch.read_s is not None else ()
    slow = _slow(sample, duty)
    slow_since_s = (watch.slow_since_s if watch.slow_since_s is not None else now_s) if slow else None
    watch = replace(
        watch, events=sample.throttling.over_current_events, read_s=now_s, slow_since_s=slow_since_s,
        most_drafts=watch.most_drafts,
    )  # fmt: skip
    if grown:
        watch = _shortened(watch, drafts_a_step, now_s)
        told = ", ".join(f"{name} +{more}" for name, more in grown)
        return replace(watch, until_s=now_s + _KEPT_S, sign=f"over-current events: {told}")
    if watch.most_drafts is not None and now_s >= watch.raise_s:
        most = watch.most_drafts + 1
        watch = replace(watch, most_drafts=None if most >= _FREE else most, raise_s=now_s + watch.hold_s)
    if slow_since_s is not None and now_s - slow_since_s >= _SURE_S:
        clock, most_mhz = sample.gpu.clock_mhz, sample.gpu.max_clock_mhz
        return replace(watch, until_s=now_s + _KEPT_S, sign=f"the GPU runs at {clock:.0f} of {most_mhz:.0f} MHz")
    active = [one for one in sample.throttling.cooling if one.state > 0 and _throttles(one.name)]
    if active:
        told = ", ".join(f"{one.name} {one.state} of {one.max_state}" for one in active)
        return replace(watch, until_s=now_s + _KEPT_S, sign=f"cooling devices: {told}")
    return watch


def _grown(before: tuple[tuple[str, int], ...], now: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    known = dict(before)
    return tuple((name, count - known[name]) for name, count in now if name in known and count > known[name])


def _slow(sample: Sample, duty: float) -> bool:
    clock, most = sample.gpu.clock_mhz, sample.gpu.max_clock_mhz
    if clock is None or most is None:
        return False
    return clock < _SLOW * most and max(duty, sample.gpu.load or 0.0) >= _UNDER_LOAD


def _throttles(name: str) -> bool:
    """A fan is a cooling device too, and so is the warning of a hot surface."""
    return "freq" in name or "throttle" in name


def _shortened(watch: ThrottleWatch, drafts_a_step: float, now_s: float) -> ThrottleWatch:
    if now_s < watch.free_until_s:
        return watch
    most = max(0, math.ceil(drafts_a_step - 0.25) - 1)
    if watch.most_drafts is None:
        return replace(watch, most_drafts=most, cut_s=now_s, raise_s=now_s + watch.hold_s)
    if now_s - watch.cut_s < _LATE_S:
        # The counter may still show what the longer drafts before did.
        return replace(watch, raise_s=now_s + watch.hold_s)
    if watch.most_drafts == 0:
        # Steps without any draft trip the alarm as well (they may even draw more): cutting helps nothing.
        return replace(watch, most_drafts=None, raise_s=math.inf, free_until_s=now_s + _LONGEST_HOLD_S)
    hold_s = min(2.0 * watch.hold_s, _LONGEST_HOLD_S)
    most = min(most, watch.most_drafts - 1)
    return replace(watch, most_drafts=most, cut_s=now_s, hold_s=hold_s, raise_s=now_s + hold_s)
