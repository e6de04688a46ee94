"""The states of the governor, and that nothing it may spend rests on what it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from edge_runtime.budget import Activity, Budget, Limits
from edge_runtime.governor import GovernorMemory, govern
from edge_runtime.pacing import pace_s
from edge_runtime.telemetry.sample import CoolingDevice, GpuReading, Sample, Throttling, Zone

IDLE_W, BUSY_W = 5.0, 12.0
STEP_S, ROWS, DRAFTS = 0.05, 3, 2


@dataclass
class Board:
    """Readings without noise, of a board whose temperature is set by hand."""

    limits: Limits
    temperature_c: float = 50.0
    working: bool = True
    readable: bool = True
    has_power: bool = True
    throttling: Throttling = Throttling()
    gpu: GpuReading = GpuReading(1000.0, 1000.0, 1.0)
    now_s: float = 100.0
    activity: Activity = Activity()
    memory: GovernorMemory = GovernorMemory()
    budget: Budget = Budget()
    sample: Sample | None = None
    drawn_w: list[float] = field(default_factory=list)
    reasons: list[tuple[str, str]] = field(default_factory=list)

    def pass_s(self, seconds: float) -> Budget:
        """In half seconds, each of which is worked as far as the budget allows."""
        for _ in range(int(seconds / 0.5)):
            wait_s = pace_s(STEP_S, ROWS, DRAFTS, self.budget)
            duty = STEP_S / (STEP_S + wait_s) if self.working else 0.0
            steps, was = 0.5 * duty / STEP_S, self.activity
            self.activity = replace(
                was, busy_s=was.busy_s + 0.5 * duty, rows=was.rows + round(ROWS * steps),
                drafts=was.drafts + round(DRAFTS * steps), steps=was.steps + round(steps), waiting=self.working,
            )  # fmt: skip
            self.now_s += 0.5
            watts = IDLE_W + BUSY_W * duty
            self.drawn_w.append(watts)
            if self.readable:
                self.sample = Sample(
                    self.now_s, "test", power_mw=round(1e3 * watts) if self.has_power else None,
                    zones=(Zone("tj", self.temperature_c),), gpu=self.gpu, throttling=self.throttling,
                )  # fmt: skip
            self.budget, self.memory = govern(self.memory, self.limits, self.sample, self.activity, self.now_s)
            if not self.reasons or self.reasons[-1][0] != self.budget.state:
                self.reasons.append((self.budget.state, self.budget.reason))
        return self.budget

    def mean_w(self, seconds: float) -> float:
        last = self.drawn_w[-int(seconds / 0.5) :]
        return sum(last) / len(last)


def _running(limits: Limits) -> Board:
    board = Board(limits, working=False)
    board.pass_s(10.0)
    board.working = True
    board.pass_s(60.0)
    return board


def test_nothing_configured_nothing_held_back() -> None:
    board = _running(Limits())
    assert board.budget == Budget()
    assert board.reasons == [("unmonitored", "no limits of power or temperature")]


def test_within_ample_limits_nothing_is_held_back_either() -> None:
    board = _running(Limits(power_mw=40_000, temperature_c=90.0))
    assert board.budget.state == "normal"
    assert board.budget.max_draft_tokens is None
    assert pace_s(STEP_S, ROWS, DRAFTS, board.budget) == 0.0
    assert board.mean_w(10.0) == pytest.approx(IDLE_W + BUSY_W)


def test_a_binding_cap_is_drawn_and_no_more() -> None:
    board = _running(Limits(power_mw=10_000))
    assert board.budget.state == "warm"
    assert "the cap is 10.0 W" in board.budget.reason
    assert board.mean_w(20.0) == pytest.approx(10.0, rel=0.025)
    assert max(sum(board.drawn_w[at : at + 20]) / 20 for at in range(20, len(board.drawn_w) - 20)) < 10.3


def test_a_cap_that_changes_is_followed_at_once_and_said() -> None:
    board = _running(Limits(power_mw=40_000))
    board.limits = Limits(power_mw=8_000)
    board.pass_s(1.0)
    assert board.budget.state == "warm"
    board.pass_s(20.0)
    assert board.mean_w(10.0) == pytest.approx(8.0, rel=0.03)
    board.limits = Limits(power_mw=40_000)
    board.pass_s(20.0)
    assert board.budget.state == "normal"
    assert [state for state, _ in board.reasons[-3:]] == ["normal", "warm", "normal"]


def test_a_cap_below_the_idle_power_is_critical_and_ends_with_it() -> None:
    board = _running(Limits(power_mw=10_000))
    board.limits = Limits(power_mw=4_500)
    budget = board.pass_s(0.5)
    assert not budget.run  # at once, whatever it is called
    budget = board.pass_s(10.0)
    assert (budget.state, budget.admit, budget.run) == ("critical", False, False)
    assert "W without work" in budget.reason
    assert budget.retry_after_s is not None and budget.retry_after_s > 0.0
    board.limits = Limits(power_mw=10_000)
    budget = board.pass_s(20.0)
    assert (budget.state, budget.admit, budget.run) == ("warm", True, True)


def test_a_board_too_hot_without_work_is_critical_and_recovers_with_hysteresis() -> None:
    board = _running(Limits(temperature_c=80.0))
    board.temperature_c = 84.0
    budget = board.pass_s(30.0)
    assert (budget.state, budget.run) == ("critical", False)
    assert "tj at 8" in budget.reason and "the limit is 80 C" in budget.reason
    board.temperature_c = 70.0
    assert not board.pass_s(2.0).admit
    assert board.pass_s(40.0).admit
    assert board.budget.state in ("normal", "warm")


def test_close_to_the_limit_no_step_is_begun_whatever_the_air_seems_to_be() -> None:
    board = _running(Limits(temperature_c=80.0))
    board.temperature_c = 79.0
    assert board.pass_s(60.0).run
    board.temperature_c = 81.0  # by the air, of which the estimate knows nothing yet
    for _ in range(6):
        budget, thermal = board.pass_s(0.5), board.memory.thermal
        assert thermal is not None and not (budget.run and thermal.temperature_c >= 80.0)
    assert not budget.run


@pytest.mark.parametrize("limits", [Limits(power_mw=10_000), Limits(temperature_c=85.0)])
def test_blind_it_is_careful_and_says_so(limits: Limits) -> None:
    board = Board(replace(limits, stale_s=2.0, blind_draft_tokens=1, blind_duty=0.25), readable=False)
    budget = board.pass_s(2.0)
    assert (budget.state, budget.max_draft_tokens, budget.duty) == ("stale", 1, 0.25)
    assert "was read yet" in budget.reason
    board.readable = True
    board.pass_s(30.0)
    assert board.budget.state != "stale"
    board.readable = False
    budget = board.pass_s(5.0)
    assert (budget.state, budget.max_draft_tokens, budget.duty) == ("stale", 1, 0.25)
    assert "for more than 2 s" in budget.reason
    assert budget.run and budget.admit


def test_a_lost_power_reading_blinds_only_where_power_is_limited() -> None:
    for limits, state in ((Limits(power_mw=30_000), "stale"), (Limits(temperature_c=85.0), "normal")):
        board = _running(limits)
        board.has_power = False
        assert board.pass_s(10.0).state == state


def test_without_any_power_reading_a_temperature_is_still_kept() -> None:
    board = Board(Limits(temperature_c=80.0), has_power=False)
    board.temperature_c = 60.0
    assert board.pass_s(30.0).state == "normal"
    board.temperature_c = 82.0
    assert board.pass_s(10.0).state in ("warm", "critical")
    assert board.mean_w(3.0) < IDLE_W + 0.7 * BUSY_W


def test_hardware_that_throttles_is_reported_as_measured() -> None:
    board = _running(Limits(temperature_c=90.0))
    board.gpu = GpuReading(500.0, 1000.0, 1.0)
    assert board.pass_s(10.0).state == "throttled"
    assert "the GPU runs at 500 of 1000 MHz" in board.budget.reason
    board.gpu = GpuReading(1000.0, 1000.0, 1.0)
    assert board.pass_s(20.0).state == "normal"
    board.throttling = Throttling(cooling=(CoolingDevice("devfreq-17000000.gpu", 1, 6),))
    assert board.pass_s(2.0).state == "throttled"


def test_over_current_events_shorten_drafts() -> None:
    board = _running(Limits(power_mw=40_000))
    board.throttling = Throttling((("oc3", 0),))
    board.pass_s(1.0)
    board.throttling = Throttling((("oc3", 4),))
    budget = board.pass_s(1.0)
    assert (budget.state, budget.max_draft_tokens) == ("throttled", DRAFTS - 1)


@pytest.mark.parametrize("late_s", [0.0, 0.5, 1.0])
def test_a_load_that_is_never_the_same_twice_is_learnt_from_as_well(late_s: float) -> None:
    """Several clients, waits between turns: no second is like the one before, and what steps draw is known all the
    same."""
    limits, memory, activity = Limits(power_mw=10_000), GovernorMemory(), Activity()
    duties = [0.9, 0.2, 0.6, 0.1, 0.7, 0.3, 0.85, 0.15]
    watts: list[float] = []
    for tick in range(400):
        now_s, duty = 100.0 + 0.25 * tick, duties[tick // 4 % len(duties)] if tick > 40 else 0.0
        steps = 0.25 * duty / STEP_S
        activity = replace(
            activity, busy_s=activity.busy_s + 0.25 * duty, rows=activity.rows + round(ROWS * steps),
            drafts=activity.drafts + round(DRAFTS * steps), steps=activity.steps + round(steps), waiting=True,
        )  # fmt: skip
        watts.append(IDLE_W + BUSY_W * duty)
        read_w = watts[max(0, tick - round(late_s / 0.25))]
        sample = Sample(now_s, "test", power_mw=round(1e3 * read_w), zones=(Zone("tj", 50.0),))
        budget, memory = govern(memory, limits, sample, activity, now_s)
    assert budget.state == "warm" and "not known" not in budget.reason and budget.max_draft_tokens is None
    assert memory.energy.full_w(memory.lessons.working) == pytest.approx(IDLE_W + BUSY_W, rel=0.15)


def test_a_cap_that_rises_is_gone_up_to_slowly_and_one_that_falls_holds_at_once() -> None:
    """What steps draw was learnt where there were few of them; how much is wrong with that shows on the way."""
    board = Board(Limits(power_mw=7_000))
    board.pass_s(60.0)
    board.limits, before_s = Limits(power_mw=15_000), len(board.drawn_w)
    board.pass_s(20.0)
    risen = board.drawn_w[before_s:]
    assert max(risen[:6]) < 9.5 and max(later - sooner for sooner, later in pairwise(risen[:20])) < 0.6
    board.pass_s(30.0)
    assert board.drawn_w[-1] > 14.0
    board.limits = Limits(power_mw=8_000)
    board.pass_s(2.0)
    assert board.drawn_w[-1] < 8.1


def test_the_same_sample_teaches_nothing_twice() -> None:
    board = _running(Limits(power_mw=10_000))
    before = board.memory
    _, after = govern(before, board.limits, board.sample, board.activity, board.now_s)
    assert (after.lessons, after.thermal, after.interval) == (before.lessons, before.thermal, before.interval)


def test_prices_stay_the_same_object_while_nothing_changes() -> None:
    board = _running(Limits(power_mw=40_000, temperature_c=90.0))
    powers = set()
    for _ in range(20):
        board.pass_s(0.5)
        powers.add(id(board.budget.power))
    assert len(powers) == 1


def test_two_limits_that_are_as_tight_do_not_take_turns_in_the_reason() -> None:
    board = Board(Limits(power_mw=10_000, temperature_c=80.0), temperature_c=60.0)
    board.pass_s(60.0)
    told = []
    for place in range(80):
        board.temperature_c = 79.45 if place % 4 < 2 else 79.35
        board.pass_s(1.0)
        told.append(board.budget.reason.split(":")[0])
    assert sum(one != other for one, other in pairwise(told)) <= 2


def _reasons(board: Board) -> Iterator[str]:
    for _ in range(20):
        board.pass_s(1.0)
        yield board.budget.reason


def test_a_reason_is_that_of_the_change() -> None:
    assert len(set(_reasons(_running(Limits(power_mw=10_000))))) == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -256.0, 1e308])
@pytest.mark.parametrize("where", ["zone", "power", "clock"])
def test_what_no_board_can_say_is_no_reading(wrong: float, where: str) -> None:
    """Sources clean what they read. Should one not, the engine's thread must neither end nor learn from it."""
    board = _running(Limits(15_000, 80.0))
    known = board.memory
    sample = Sample(board.now_s + 0.4, "test", 9_000, zones=(Zone("tj", 60.0),), gpu=GpuReading(900.0, 1000.0, 1.0))
    if where == "zone":
        sample = replace(sample, zones=(Zone("tj", 60.0), Zone("soc", wrong)))
    elif where == "power":
        sample = replace(sample, power_mw=wrong)  # type: ignore[arg-type]
    else:
        sample = replace(sample, gpu=GpuReading(wrong, 1000.0, 1.0))
    budget, memory = govern(known, board.limits, sample, board.activity, board.now_s + 0.5)
    assert memory.lessons == known.lessons and memory.thermal == known.thermal
    assert budget.admit and budget.run
    budget, _ = govern(memory, board.limits, sample, board.activity, board.now_s + 4.0)
    assert budget.state == "stale" and "was read for more than 3 s" in budget.reason
    board.now_s += 4.0
    assert board.pass_s(10.0).state in ("normal", "warm"), "and what is read afterwards counts"


def test_a_reading_of_times_to_come_neither_passes_for_fresh_nor_hides_those_that_follow() -> None:
    board = _running(Limits(15_000))
    ahead = Sample(board.now_s + 1e6, "test", 14_000)
    known = board.memory
    for later_s in (0.5, 2.0, 4.0):
        budget, board.memory = govern(board.memory, board.limits, ahead, board.activity, board.now_s + later_s)
    assert budget.state == "stale"
    board.now_s += 4.0
    assert board.pass_s(2.0).state != "stale"
    assert board.memory.sample_s != known.sample_s


def test_a_clock_that_went_back_is_begun_with_anew() -> None:
    board = _running(Limits(15_000, 80.0))
    board.now_s -= 90.0
    board.pass_s(1.0)
    assert board.memory.sample_s == board.now_s, "it does not wait until the old times are reached again"
    board.pass_s(20.0)
    assert board.budget.state in ("normal", "warm") and board.budget.run


def test_what_was_drawn_before_there_was_a_cap_does_not_make_up_for_what_is_drawn_beyond_it() -> None:
    """A cap that comes by a reload: what the first seconds draw too much is taken back like any other excess."""
    board = _running(Limits(None, 95.0))
    board.limits = Limits(12_000, 95.0)
    readings = [17_000] * 8
    for power_mw in readings:
        board.now_s += 0.5
        board.activity = replace(board.activity, busy_s=board.activity.busy_s + 0.4, rows=board.activity.rows + 24)
        sample = Sample(board.now_s, "test", power_mw, zones=(Zone("tj", 50.0),))
        board.budget, board.memory = govern(board.memory, board.limits, sample, board.activity, board.now_s)
    assert all(watts > 0.0 for _, watts in board.memory.lessons.excess[-2:])
    total_s = sum(seconds for seconds, _ in board.memory.lessons.excess)
    assert sum(seconds * watts for seconds, watts in board.memory.lessons.excess) / total_s > 3.0
    assert board.budget.power is not None and board.budget.power.allowed_w < 11.0
