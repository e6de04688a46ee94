"""What the board may spend from now on: readings and limits in, a Budget out. Pure; knows no source, engine or thread.

The allowed power is the least of the cap and of what keeps the temperature below its limit at the horizon. Everything
else follows from it: the price of a step and so K, the wait behind a step, and whether anything runs at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .budget import Activity, Budget, Limits, State, StepPower
from .energy_model import EnergyModel
from .lessons import FORGOTTEN_S, WINDOW_S, Heard, Interval, Lessons, averaged
from .telemetry.plausible import impossible
from .telemetry.sample import Sample
from .thermal import ThermalEstimate, corrected, first_estimate
from .throttling import ThrottleWatch, watched

_CAP_SHARE = 0.995
"""Of a power cap: what is aimed at at most;"""
_YOUNG_SHARE, _YOUNG_S = 0.06, 30.0
"""so much less while what steps draw has been seen for less than some seconds,"""
_SURE, _TOLERATED, _MOST_DOUBT = 2.5, 0.005, 0.08
"""or so many standard errors of what is learnt, without what a mean of seconds may err by, up to so much less."""
_MOST_FOR_A_STEP = 0.01
"""Of a cap: what is left free for a step that may be one too many in its window."""
_MEAN_S = 10.0
"""A cap is a mean over so much time."""
_RISE = 0.02
"""Of a cap, a second, at most: how fast what is allowed follows a cap that rises."""
_BELOW_LIMIT_C = 0.6
"""Of a temperature limit: what is aimed at,"""
_STOP_BELOW_C = 0.3
"""and above what no step begins."""
_NOMINAL_IDLE_W, _NOMINAL_BUSY_W = 5.0, 10.0
"""Where only the temperature is limited and no power can be read; the thermal estimate makes up for it."""
_SAME = 0.004
"""Relative change of what is allowed above idle, below which prices stay as they are."""
_MARGIN = 0.02
"""Of the idle power: as much more must be allowed for a step to run,"""
_RESUME_MARGIN = 0.06
"""and as much for steps to run again after a critical state,"""
_RESUME_S = 5.0
"""which lasts at least so long."""
_CRITICAL_S = 5.0
"""For so long nothing may be allowed before the state is called critical; steps wait at once."""
_AHEAD_S = 1.0
"""A reading of times to come is none: it would pass for a fresh one until then, and hide all that come."""
_HEAT = "temperature"
_NEAR = 0.03
"""Between a cap and what the heat allows."""
_BINDS, _EASES = 1.0, 1.08
"""What is allowed, relative to what steps would draw: where warm begins and where it ends,"""
_EASED_S = 5.0
"""after so long."""


@dataclass(frozen=True, slots=True)
class GovernorMemory:
    """All that is kept from one call to the next."""

    sample_s: float | None = None
    """Time of the last sample that was learnt from,"""
    power_s: float | None = None
    """of the last power reading,"""
    temperature_s: float | None = None
    """and of the last temperature."""
    power_w: float = 0.0
    """The last reading."""
    zone: str = ""
    """The hottest."""
    thermal: ThermalEstimate | None = None
    watch: ThrottleWatch = ThrottleWatch()
    interval: Interval | None = None
    lessons: Lessons = Lessons()
    power: StepPower | None = None
    """As steps are priced now."""
    state: State = "unmonitored"
    reason: str = ""
    since_s: float = 0.0
    short_since_s: float | None = None
    """Since when nothing above idle is allowed."""
    reached: tuple[float, float] | None = None
    """(when, watts): how far up to its cap it has gone."""
    bound_s: float = -math.inf
    """When limits were last seen to hold steps back."""

    @property
    def energy(self) -> EnergyModel:
        return self.lessons.energy


def govern(
    memory: GovernorMemory, limits: Limits, sample: Sample | None, activity: Activity, now_s: float
) -> tuple[Budget, GovernorMemory]:
    """With the latest sample, which may be one that is known already, and what was done until ``now_s``.

    Cheap without a new sample. ``limits`` may change from call to call.
    """
    if limits.power_mw is None and limits.temperature_c is None:
        return Budget(), _turned(replace(memory, power=None), "unmonitored", Budget().reason, now_s)
    if memory.sample_s is not None and memory.sample_s - now_s > _AHEAD_S:
        memory = GovernorMemory()  # the clock went back: nothing that was kept has a time any more
    if sample is not None and _teaches(memory, sample, now_s):
        memory = _heard(memory, limits, sample, activity, now_s)
    blind = _blind(memory, limits, now_s)
    if blind:
        return _stale(memory, limits, blind, now_s)
    cap_w = _aim(memory.lessons, limits)
    heat_w = _by_heat(memory, limits)
    # Where both are as tight, the reason that was given stays.
    near = 1.0 + _NEAR if memory.reason.startswith(_HEAT) else 1.0 - _NEAR
    cause = _heat_cause(memory, limits) if heat_w < near * cap_w else _power_cause(limits)
    reached = _reached(memory, cap_w, now_s)
    memory = replace(memory, reached=reached)
    now_w = min(heat_w, _paid_back(memory, cap_w), reached[1])
    return _decided(memory, limits, _Allowed(min(heat_w, cap_w), now_w, cause), now_s)


def _teaches(memory: GovernorMemory, sample: Sample, now_s: float) -> bool:
    """Whether it is new, and what a board can say: sources clean what they read, but a limit must not hang on that."""
    if memory.sample_s is not None and sample.time_s <= memory.sample_s:
        return False
    # Not the other way round: NaN is no time. What nothing is learnt from may be wrong.
    return sample.time_s - now_s <= _AHEAD_S and not impossible(replace(sample, fan=None, memory=None, rails=()))


def _heard(memory: GovernorMemory, limits: Limits, sample: Sample, activity: Activity, now_s: float) -> GovernorMemory:
    """What a new sample teaches."""
    power_w, power_s, lessons = memory.power_w, memory.power_s, memory.lessons
    if sample.power_mw is not None:
        power_w, power_s = sample.power_mw / 1e3, sample.time_s
    elif power_s is None:
        # Never read, so what steps draw is a matter of speaking.
        power_w = _NOMINAL_IDLE_W + _NOMINAL_BUSY_W * lessons.rates.duty
    read = sample.power_mw is not None or power_s is None
    cap_w = _aim(lessons, limits)
    thermal, temperature_s, zone, hottest = memory.thermal, memory.temperature_s, memory.zone, sample.hottest
    warm_c = None if thermal is None else thermal.temperature_c
    reached_w = cap_w if memory.reached is None else memory.reached[1]
    heard = Heard(power_w if read else None, warm_c, cap_w, reached_w)
    interval, lessons = averaged(memory.interval, lessons, heard, activity, now_s)
    if hottest is not None:
        if thermal is None or temperature_s is None or sample.time_s - temperature_s > FORGOTTEN_S:
            thermal = first_estimate(hottest.temperature_c, power_w)
        else:
            thermal = corrected(thermal, hottest.temperature_c, power_w, sample.time_s - temperature_s)
        temperature_s, zone = sample.time_s, hottest.name
    return replace(
        memory, sample_s=sample.time_s, power_s=power_s, temperature_s=temperature_s, power_w=power_w, zone=zone,
        thermal=thermal, interval=interval, lessons=lessons,
        watch=watched(memory.watch, sample, lessons.rates.duty, lessons.drafts_a_step, now_s),
    )  # fmt: skip


# What is allowed


@dataclass(frozen=True, slots=True)
class _Allowed:
    steady_w: float
    now_w: float
    """Less than that while what was drawn beyond a cap is paid back."""
    cause: str


def _aim(lessons: Lessons, limits: Limits) -> float:
    if limits.power_mw is None:
        return math.inf
    cap_w = limits.power_mw / 1e3
    # A window may hold up to one step more than its share.
    step_j = max(0.0, lessons.energy.full_w(lessons.working) - cap_w) * min(lessons.step_s, 1.0)
    young = _YOUNG_SHARE * math.exp(-lessons.energy.worked_s / _YOUNG_S)
    less = max(1.0 - _CAP_SHARE, young, min(_MOST_DOUBT, _SURE * lessons.doubt_w / cap_w - _TOLERATED))
    return cap_w * (1.0 - less) - min(0.25 * step_j / _MEAN_S, _MOST_FOR_A_STEP * cap_w)


def _reached(memory: GovernorMemory, cap_w: float, now_s: float) -> tuple[float, float]:
    """A cap that has risen beyond what was ever drawn is gone up to slowly: what steps draw was learnt where there were
    few of them."""
    before = memory.reached
    if before is None or cap_w == math.inf:
        return now_s, cap_w
    known_w = max(before[1], memory.lessons.most_w)
    return now_s, min(cap_w, known_w + _RISE * cap_w * (now_s - before[0]))


def _paid_back(memory: GovernorMemory, cap_w: float) -> float:
    excess = memory.lessons.excess
    total_s = sum(seconds for seconds, _ in excess)
    if not total_s or cap_w == math.inf:
        return cap_w
    over_w = sum(seconds * watts for seconds, watts in excess) / total_s
    # What readings err by is no excess.
    over_w -= 2.0 * memory.energy.residual_w / math.sqrt(max(1.0, total_s))
    return cap_w - max(0.0, over_w) * total_s / (_MEAN_S - WINDOW_S)


def _by_heat(memory: GovernorMemory, limits: Limits) -> float:
    if limits.temperature_c is None or memory.thermal is None:
        return math.inf
    return memory.thermal.allowed_w(limits.temperature_c - _BELOW_LIMIT_C)


def _too_hot(memory: GovernorMemory, limits: Limits) -> bool:
    """The air may change faster than the estimate of it: close to the limit no step waits for that."""
    if limits.temperature_c is None or memory.thermal is None:
        return False
    return memory.thermal.temperature_c > limits.temperature_c - _STOP_BELOW_C


def _power_cause(limits: Limits) -> str:
    assert limits.power_mw is not None  # it is what binds
    return f"power: the cap is {limits.power_mw / 1e3:.1f} W"


def _heat_cause(memory: GovernorMemory, limits: Limits) -> str:
    assert memory.thermal is not None
    return f"{_HEAT}: {memory.zone} at {memory.thermal.temperature_c:.1f} C, the limit is {limits.temperature_c:g} C"


# What follows


def _blind(memory: GovernorMemory, limits: Limits, now_s: float) -> str:
    """What is needed and not known, in words; empty where all is."""
    for needed, name, read_s in (
        (limits.power_mw, "power", memory.power_s),
        (limits.temperature_c, "temperature", memory.temperature_s),
    ):
        if needed is None:
            continue
        if read_s is None:
            return f"no {name} was read yet"
        if now_s - read_s > limits.stale_s:
            return f"no {name} was read for more than {limits.stale_s:g} s"
    return ""


def _stale(memory: GovernorMemory, limits: Limits, blind: str, now_s: float) -> tuple[Budget, GovernorMemory]:
    reason = f"{blind}: K <= {limits.blind_draft_tokens}, {limits.blind_duty:.0%} of the time"
    memory = _turned(memory, "stale", reason, now_s)
    power = memory.power
    if power is not None and power.allowed_w <= power.idle_w:
        power = None  # a state that nothing can end must not stop everything
    return (
        Budget("stale", memory.reason, max_draft_tokens=limits.blind_draft_tokens, duty=limits.blind_duty, power=power),
        memory,
    )


def _decided(memory: GovernorMemory, limits: Limits, allowed: _Allowed, now_s: float) -> tuple[Budget, GovernorMemory]:
    energy, watch, cause, allowed_w = memory.energy, memory.watch, allowed.cause, allowed.steady_w
    idle_w = energy.idle_now_w
    full_w = energy.full_w(memory.lessons.working)
    critical, memory = _critical(memory, allowed_w, idle_w, now_s)
    if critical:
        reason = f"{cause}, and the board draws {idle_w:.1f} W without work"
        memory = _turned(memory, "critical", reason, now_s)
        budget = Budget("critical", memory.reason, admit=False, run=False, retry_after_s=_retry(memory, limits))
        return budget, memory if memory.power is None else replace(memory, power=None)
    power = _priced(memory, min(allowed.now_w, 2.0 * full_w))
    run = allowed.now_w > idle_w * (1.0 + _MARGIN) and not _too_hot(memory, limits)
    if not energy.known:
        # The first steps are what is learnt from.
        reason = "what steps draw is not known yet"
        memory = _turned(replace(memory, power=power), "warm", reason, now_s)
        return Budget("warm", reason, run=run, max_draft_tokens=limits.blind_draft_tokens, power=power), memory
    binds = allowed_w < _BINDS * full_w or (memory.state == "warm" and allowed_w < _EASES * full_w)
    if binds or power is not memory.power:
        memory = replace(memory, power=power, bound_s=now_s if binds else memory.bound_s)
    held = now_s - memory.bound_s < _EASED_S
    state: State = "warm" if held else "normal"
    reason = f"{cause}: {allowed_w:.1f} W allowed of {full_w:.1f}" if held else "within all limits"
    if watch.most_drafts is not None and not held:
        state, reason = "warm", f"drafts are cut to {watch.most_drafts} after {watch.sign}"
    if watch.throttled(now_s):
        state, reason = "throttled", f"the hardware holds itself back: {watch.sign}"
    memory = _turned(memory, state, reason, now_s)
    return Budget(state, memory.reason, run=run, max_draft_tokens=watch.most_drafts, power=power), memory


def _critical(memory: GovernorMemory, allowed_w: float, idle_w: float, now_s: float) -> tuple[bool, GovernorMemory]:
    if memory.state == "critical":
        short = allowed_w < idle_w * (1.0 + _RESUME_MARGIN)
        if short:
            memory = replace(memory, short_since_s=now_s)
        since_s = memory.short_since_s
        return short or (since_s is not None and now_s - since_s < _RESUME_S), memory
    if allowed_w >= idle_w * (1.0 + _MARGIN):
        return False, memory if memory.short_since_s is None else replace(memory, short_since_s=None)
    since_s = now_s if memory.short_since_s is None else memory.short_since_s
    return now_s - since_s >= _CRITICAL_S, replace(memory, short_since_s=since_s)


def _retry(memory: GovernorMemory, limits: Limits) -> float:
    if limits.temperature_c is None or memory.thermal is None:
        return 10.0
    cooled_s = memory.thermal.cooled_s(limits.temperature_c - 2.0 * _BELOW_LIMIT_C, memory.energy.idle_now_w)
    return min(60.0, max(5.0, cooled_s))


def _priced(memory: GovernorMemory, allowed_w: float) -> StepPower:
    """The same object while next to nothing changed: choosers price anew for each."""
    power, known = memory.energy.step_power(allowed_w), memory.power
    if known is None:
        return power
    above_w, before_w = power.allowed_w - power.idle_w, known.allowed_w - known.idle_w
    alike = abs(above_w - before_w) <= _SAME * abs(before_w) and all(
        abs(one - other) <= 0.02 * other + 1e-4
        for one, other in (
            (power.busy_w - power.idle_w, known.busy_w - known.idle_w),
            (power.row_j, known.row_j),
            (power.draft_j, known.draft_j),
        )
    )
    return known if alike else power


def _turned(memory: GovernorMemory, state: State, reason: str, now_s: float) -> GovernorMemory:
    """A reason is that of the change: it stays while the state does."""
    if state == memory.state and memory.reason.split(":")[0] == reason.split(":")[0]:
        return memory
    return replace(memory, state=state, reason=reason, since_s=now_s)
