"""The governor under any series of readings: missing, broken, jumping, out of order; and whatever was done meanwhile.

What it allows is always well-formed and within the limits, hotter or less power never allows more, what it remembers
stays bounded and finite, and once all is cool again so is everything allowed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace

from any_examples import examples
from hypothesis import given, note
from hypothesis import strategies as st

from edge_runtime.budget import Activity, Budget, Limits, StepPower
from edge_runtime.governor import GovernorMemory, govern
from edge_runtime.pacing import most_drafts, pace_s
from edge_runtime.pressure import NO_PRESSURE, Pressure, next_pressure
from edge_runtime.scheduler.governing import Done, Governing
from edge_runtime.telemetry.energy import Energy
from edge_runtime.telemetry.sample import CoolingDevice, GpuReading, Sample, Throttling, Zone
from edge_runtime.thermal import ThermalEstimate, corrected, first_estimate

BROKEN = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308])
STATES = {"normal", "warm", "throttled", "critical", "stale", "unmonitored"}

watts = st.integers(0, 60_000) | st.none() | st.integers(0, 199_999)
celsius = st.floats(20.0, 105.0) | st.floats(-50.0, 150.0)
clocks = st.none() | st.floats(0.0, 1300.0)
throttlings = st.builds(
    Throttling,
    over_current_events=st.sampled_from(
        [(), (("oc1", 0),), (("oc1", 3), ("oc3", 1)), (("oc3", 2),), (("oc1", 1 << 62),)]
    ),
    cooling=st.sampled_from([(), (CoolingDevice("pwm-fan", 2, 4),), (CoolingDevice("cpufreq-0", 1, 9),)]),
)
limits_of = st.builds(
    Limits,
    power_mw=st.none() | st.integers(1000, 60_000) | st.integers(1000, 1_000_000),
    temperature_c=st.none() | st.floats(30.0, 105.0),
    stale_s=st.sampled_from([0.6, 3.0, 60.0]),
    blind_draft_tokens=st.integers(0, 8),
    blind_duty=st.sampled_from([0.01, 0.5, 1.0]),
)


@st.composite
def samples(draw: st.DrawFn, broken: bool = True) -> Sample:
    """Without its time."""
    zones = draw(st.lists(st.builds(Zone, st.sampled_from(["gpu", "tj", "soc0"]), celsius), max_size=3))
    power_mw = draw(watts)
    if broken and draw(st.integers(0, 9)) == 0:
        zones = [*zones, Zone("bad", draw(BROKEN))]
        power_mw = draw(BROKEN | st.just(power_mw))  # type: ignore[arg-type]
    return Sample(
        0.0, "test", power_mw, zones=tuple(zones), throttling=draw(throttlings),
        gpu=GpuReading(draw(clocks), draw(clocks), draw(st.none() | st.floats(0.0, 1.0))),
    )  # fmt: skip


moments = st.tuples(
    # What goes by, and how old the reading is by then.
    st.sampled_from([0.0, 1e-9, 0.05, 0.5, 0.5, 0.5, 1.0, 2.0, 7.0, 40.0, 1e5, -0.5, -100.0]),
    st.none() | samples(),
    st.sampled_from([0.0, 0.0, 0.1, 2.0, 50.0, -5.0, -1e6]),
    # Of the time, what was worked, and how.
    st.sampled_from([0.0, 0.0, 0.3, 1.0, 3.0]),
    st.sampled_from([(0, 0), (1, 0), (3, 2), (17, 16)]),
    st.none() | limits_of,
)


def series(most: int) -> st.SearchStrategy[list[tuple]]:  # type: ignore[type-arg]
    return st.lists(moments, min_size=1, max_size=most)


class Told:
    """A governor that is told a series, moment by moment."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.memory, self.activity, self.now_s = limits, GovernorMemory(), Activity(), 1000.0
        self.sample: Sample | None = None
        self.budget = Budget()

    def goes(self, moment: tuple) -> None:  # type: ignore[type-arg]
        gone_s, sample, age_s, duty, (rows, drafts), limits = moment
        self.now_s += gone_s
        self.limits = limits or self.limits
        steps = round(20 * duty * max(0.0, min(gone_s, 60.0)))
        was = self.activity
        self.activity = Activity(
            was.busy_s + duty * max(0.0, gone_s), was.rows + rows * steps, was.drafts + drafts * steps,
            was.tokens + steps, was.steps + steps, duty > 0.0,
        )  # fmt: skip
        if sample is not None:
            self.sample = replace(sample, time_s=self.now_s - age_s)
        self.budget, self.memory = govern(self.memory, self.limits, self.sample, self.activity, self.now_s)

    def rests(self, seconds: float, temperature_c: float, power_mw: int) -> None:
        """Cool readings of a board without work, two a second."""
        for _ in range(int(2 * seconds)):
            cool = Sample(0.0, "test", power_mw, zones=(Zone("tj", temperature_c),))
            self.goes((0.5, cool, 0.0, 0.0, (0, 0), None))


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, bool | str) or value is None:
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif is_dataclass(value):
        for field in fields(value):
            yield from numbers(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for place, one in enumerate(value):
            yield from numbers(one, f"{path}[{place}]")


OPEN = (".watch.until_s", ".watch.raise_s", ".watch.cut_s", ".watch.free_until_s", ".bound_s", ".reached[1]")
"""What begins as infinite, and says so: never, or without a cap."""


def check_budget(budget: Budget, limits: Limits) -> None:
    assert budget.state in STATES and budget.reason.strip()
    assert (budget.state == "unmonitored") == (limits.power_mw is None and limits.temperature_c is None)
    assert budget.max_draft_tokens is None or budget.max_draft_tokens >= 0
    assert 0.0 < budget.duty <= 1.0
    assert budget.admit == (budget.state != "critical")
    assert budget.run or budget.state != "unmonitored"
    assert budget.retry_after_s is None or 0.0 < budget.retry_after_s <= 60.0
    if budget.state == "critical":
        assert not budget.run and budget.retry_after_s is not None
    if budget.state == "stale":
        assert budget.run and budget.max_draft_tokens == limits.blind_draft_tokens
        assert budget.duty == limits.blind_duty
    power = budget.power
    if power is not None:
        assert all(math.isfinite(value) for _, value in numbers(power))
        assert power.idle_w >= 0.0 and power.busy_w >= power.idle_w and power.row_j >= 0.0 and power.draft_j >= 0.0
        if limits.power_mw is not None and budget.state != "stale":
            assert power.allowed_w <= 1.005 * limits.power_mw / 1e3, "more than the cap"
    for seconds, rows, drafts in ((0.05, 1, 0), (0.1, 5, 4)):
        wait_s = pace_s(seconds, rows, drafts, budget)
        assert wait_s >= 0.0, "not a number is no wait"
        assert budget.run or wait_s == math.inf
    assert 0 <= most_drafts(16, budget) <= 16


def check_memory(memory: GovernorMemory) -> None:
    for path, value in numbers(memory):
        assert math.isfinite(value) or (not math.isnan(value) and path in OPEN), path
    assert len(memory.lessons.excess) <= 16
    assert memory.energy.residual_w2 >= 0.0 and memory.energy.seen_s >= 0.0


@examples(60)
@given(limits_of, series(40))
def test_whatever_is_read_what_it_allows_is_well_formed(limits: Limits, told: list[tuple]) -> None:  # type: ignore[type-arg]
    governor = Told(limits)
    for moment in told:
        governor.goes(moment)
        note(f"{governor.now_s} {governor.budget}")
        check_budget(governor.budget, governor.limits)
        check_memory(governor.memory)


@examples(40)
@given(limits_of, series(25), st.floats(20.0, 45.0))
def test_once_all_is_cool_again_everything_is_allowed_again(
    limits: Limits,
    told: list[tuple],
    cool_c: float,  # type: ignore[type-arg]
) -> None:
    governor = Told(limits)
    for moment in told:
        governor.goes(moment)
    governor.limits = Limits(40_000, 95.0)
    governor.rests(150.0, cool_c, 5_000)
    budget = governor.budget
    assert budget.admit and budget.run and budget.state in ("normal", "warm", "throttled"), budget
    assert budget.power is None or budget.power.allowed_w > 1.2 * budget.power.idle_w


@examples(60)
@given(limits_of, series(25), st.floats(20.0, 100.0), st.floats(0.0, 40.0), st.floats(0.0, 0.9))
def test_hotter_or_a_lower_cap_never_allows_more(
    limits: Limits,
    told: list[tuple],
    cool_c: float,
    hotter_c: float,
    less: float,  # type: ignore[type-arg]
) -> None:
    governor = Told(limits)
    for moment in told:
        governor.goes(moment)
    now_s = governor.now_s + 0.5
    newest_s = max(now_s, (governor.memory.sample_s or 0.0) + 0.5)

    def read(temperature_c: float, limits: Limits) -> Budget:
        power_mw = None if governor.sample is None else governor.sample.power_mw
        sample = Sample(newest_s, "test", power_mw, zones=(Zone("tj", temperature_c),))
        budget, _ = govern(governor.memory, limits, sample, governor.activity, newest_s)
        return budget

    warm = replace(governor.limits, temperature_c=governor.limits.temperature_c or 70.0)
    never_more(read(cool_c + hotter_c, warm), read(cool_c, warm))
    # Of a temperature limit as well.
    never_more(read(cool_c, replace(warm, temperature_c=warm.temperature_c - 20.0 * less)), read(cool_c, warm))  # type: ignore[operator]
    # With what is known by now, which the cap does not change.
    if governor.limits.power_mw is not None:
        lower = replace(governor.limits, power_mw=max(1000, int(governor.limits.power_mw * (1.0 - less))))
        found = [
            govern(governor.memory, one, governor.sample, governor.activity, now_s)[0]
            for one in (lower, governor.limits)
        ]
        if "stale" not in {one.state for one in found}:
            never_more(*found)


def never_more(less: Budget, more: Budget) -> None:
    note(f"{less}\n{more}")
    assert more.admit or not less.admit
    assert more.run or not less.run
    if less.power is not None and more.power is not None:
        # Prices stay as they are while next to nothing changed.
        above_w = max(1.0, abs(more.power.allowed_w - more.power.idle_w))
        assert less.power.allowed_w <= more.power.allowed_w + 0.01 * above_w + 1e-9
    if more.max_draft_tokens is not None and less.run:
        assert less.max_draft_tokens is not None and less.max_draft_tokens <= more.max_draft_tokens


readings_of = st.lists(st.tuples(celsius, st.floats(0.0, 100.0), st.floats(1e-6, 100.0)))
"""(temperature, watts, seconds since the one before) each."""


@examples(100)
@given(
    st.tuples(st.floats(20.0, 100.0), st.floats(0.5, 60.0)), readings_of, st.floats(20.0, 105.0), st.floats(0.0, 30.0),
    st.floats(0.0, 60.0),
)  # fmt: skip
def test_a_thermal_estimate_stays_finite_and_monotone(
    first: tuple[float, float],
    readings: list[tuple[float, float, float]],
    target_c: float,
    more_c: float,
    power_w: float,
) -> None:
    state = first_estimate(*first)
    for temperature_c, watts_, seconds in readings:
        hotter = corrected(state, temperature_c + more_c, watts_, seconds)
        state = corrected(state, temperature_c, watts_, seconds)
        assert all(math.isfinite(value) for _, value in numbers(state)) and state.rise_c_per_w > 0.0
        assert hotter.allowed_w(target_c) <= state.allowed_w(target_c) + 1e-6
    assert state.allowed_w(target_c) <= state.allowed_w(target_c + more_c)
    cooled_s = state.cooled_s(target_c, power_w)
    assert cooled_s >= 0.0
    assert cooled_s >= state.cooled_s(target_c + more_c, power_w) or cooled_s == math.inf
    assert isinstance(state, ThermalEstimate)


@examples(100)
@given(
    st.floats(0.0, 60.0), st.floats(0.1, 60.0), st.floats(0.0, 60.0), st.floats(0.0, 0.1), st.floats(0.0, 60.0),
    st.floats(1e-4, 1.0), st.integers(1, 64), st.sampled_from([0.01, 0.5, 1.0]),
)  # fmt: skip
def test_less_power_never_shortens_a_wait(
    idle_w: float, more_w: float, busy_w: float, row_j: float, less_w: float, seconds: float, rows: int, duty: float
) -> None:
    power = StepPower(idle_w + more_w, idle_w, idle_w + busy_w, row_j, row_j)
    budgets = [
        Budget("warm", "a test", duty=duty, power=replace(power, allowed_w=power.allowed_w - less))
        for less in (0.0, less_w)
    ]
    waits = [pace_s(seconds, rows, rows - 1, budget) for budget in budgets]
    assert 0.0 <= waits[0] <= waits[1] + 1e-9
    if waits[0] < math.inf:
        drawn_w = (power.joules(seconds, rows, rows - 1) + idle_w * waits[0]) / (seconds + waits[0])
        assert drawn_w <= power.allowed_w * (1.0 + 1e-9) + 1e-9


class Readings:
    """As a monitor would keep them."""

    def __init__(self) -> None:
        self.latest: Sample | None = None
        self.trouble: str | None = None
        self.is_fresh = True
        self.counted = Energy(3.0)

    def energy(self) -> Energy:
        return self.counted


@examples(40)
@given(limits_of, series(30))
def test_in_the_engines_loop_nothing_is_raised_and_rests_are_waits(limits: Limits, told: list[tuple]) -> None:  # type: ignore[type-arg]
    readings = Readings()
    states: list[Budget] = []
    governing = Governing(limits, readings, states.append)
    now_s, since = 1000.0, 0
    for gone_s, sample, age_s, duty, (rows, drafts), new_limits in told:
        now_s += max(0.0, gone_s)
        if sample is not None:
            readings.latest = replace(sample, time_s=now_s - age_s)
            readings.counted = readings.counted.after(now_s - age_s, sample.power_mw)
        governing.limits = new_limits or governing.limits
        before = governing.budget.state
        budget = governing.ask(now_s, duty > 0.0)
        assert (budget.state != before) == (len(states) > since), "every change of state is told, and nothing else"
        since = len(states)
        assert governing.rests_s(now_s) >= 0.0
        if governing.rests_s(now_s) == 0.0 and duty:
            governing.did(Done(now_s, duty * 0.05, rows, drafts, 1, 1))
            governing.taken_j()
        seen = governing.now()
        assert seen.budget is budget and seen.busy_s >= 0.0
        assert math.isfinite(seen.pace_s) and seen.pace_s >= 0.0


@examples(100)
@given(st.integers(1, 10_000), st.lists(st.integers(0, 20_000), max_size=30))
def test_pressure_is_one_step_at_a_time_and_ends(reserve: int, seen: list[int]) -> None:
    level, order = NO_PRESSURE, {"none": 0, "evict": 1, "shed": 2}
    for available in seen:
        before, level = level, next_pressure(level, available, reserve)
        assert order[level.level] <= order[before.level] + 1
        assert (level.level == "none") == (not level.reason)
        if available < reserve:
            assert level.lets_go
        # Less available never lets go of less.
        harder = next_pressure(before, max(0, available - 1000), reserve)
        assert order[harder.level] >= order[level.level]
    assert next_pressure(level, 2 * reserve, reserve) == Pressure()


@examples(100)
@given(st.lists(st.tuples(st.floats(-100.0, 1e6), st.none() | st.floats(0.0, 1e6))), st.floats(0.1, 60.0))
def test_energy_only_grows_and_every_second_is_counted_once(
    readings: list[tuple[float, float | None]], gap_s: float
) -> None:
    energy = Energy(gap_s)
    for time_s, power_mw in readings:
        before, energy = energy, energy.after(time_s, power_mw)
        assert energy.joules >= before.joules and energy.measured_s >= before.measured_s
        if before.last_s is not None and energy.last_s is not None:
            gone_s = energy.measured_s + energy.unmeasured_s - before.measured_s - before.unmeasured_s
            assert abs(gone_s - (energy.last_s - before.last_s)) < 1e-6 * max(1.0, energy.last_s)
