"""The governor in the engine's loop: rests, refusals, energy, and what it does to K. Knows no board."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import pytest
from choosing import choosing
from scheduling import MODEL, PATIENCE_S, Reader, request, serve

from edge_runtime.budget import Budget, StepPower
from edge_runtime.budget import Limits as Caps
from edge_runtime.cost import CostTable
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.errors import Unavailable
from edge_runtime.generation import Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.governing import Done, Governing
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served
from edge_runtime.session import Session
from edge_runtime.telemetry.energy import Energy
from edge_runtime.telemetry.sample import Sample, Zone
from edge_runtime.testing import FakeEngine


class Board:
    """Readings as a test sets them; each look at its energy finds 2 J more."""

    trouble, is_fresh = None, True

    def __init__(self, temperature_c: float = 40.0, power_w: float = 10.0) -> None:
        self.temperature_c, self.power_w = temperature_c, power_w
        self.joules = self.time_s = 0.0

    @property
    def latest(self) -> Sample:
        return Sample(self.time_s, "test", int(1e3 * self.power_w), zones=(Zone("tj", self.temperature_c),))

    def energy(self) -> Energy:
        self.joules += 2.0
        return Energy(3.0, self.joules, 1.0, last_s=0.0, last_w=self.power_w)


def done(seconds: float = 0.1, ended_s: float = 0.0, tokens: int = 1) -> Done:
    return Done(ended_s, seconds, 1, 0, tokens, 1)


def test_without_limits_nothing_is_asked_and_nobody_rests() -> None:
    governing = Governing()
    assert governing.ask(0.0, True) == Budget() and not governing.listens
    governing.did(done())
    assert governing.rests_s(0.0) == 0.0
    assert governing.taken_j() is None


def test_who_cannot_see_takes_half_of_the_time_and_short_drafts() -> None:
    governing = Governing(Caps(temperature_c=80.0, blind_duty=0.5, blind_draft_tokens=2), None)
    budget = governing.ask(10.0, True)
    assert (budget.state, budget.max_draft_tokens, budget.admit) == ("stale", 2, True)
    rests = []
    for turn in range(200):
        governing.did(done(0.1, 10.0 + turn))
        rests.append(governing.rests_s(10.0 + turn))
    # As long as the step in the mean, and never twice the same, lest sensors meet the same phase again and again.
    assert sum(rests) / len(rests) == pytest.approx(0.1, rel=0.05) and len(set(rests)) > 100
    assert governing.rests_s(10.0 + 199 + 0.5) == 0.0


def test_limits_that_are_lifted_are_lifted_at_once() -> None:
    turned = []
    governing = Governing(Caps(temperature_c=80.0), None, lambda budget: turned.append(budget.state))
    governing.ask(0.0, True)
    governing.limits = Caps()
    assert governing.ask(0.1, True).state == "unmonitored" and governing.rests_s(0.1) == 0.0
    assert turned == ["stale", "unmonitored"]


def test_a_board_that_no_setting_holds_stops_steps_and_admission_and_goes_on_when_it_has_cooled() -> None:
    board = Board(temperature_c=95.0)
    governing = Governing(Caps(temperature_c=80.0), board)
    for now_s in range(12):
        board.time_s = 100.0 + now_s
        budget = governing.ask(board.time_s, True)
    assert (budget.state, budget.run, budget.admit) == ("critical", False, False)
    assert budget.retry_after_s is not None and budget.retry_after_s > 0.0
    governing.did(done())
    assert governing.rests_s(112.0) == math.inf


class Told(Governing):
    """A budget that the test sets."""

    listens = True

    def __init__(self, budget: Budget, readings: Board | None = None) -> None:
        super().__init__(readings=readings)
        self.told = budget

    def ask(self, now_s: float, waiting: bool) -> Budget:
        self.budget = self.told
        return self.budget


def told(scheduler: Scheduler, state: str) -> None:
    """Until the engine's thread has heard of it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (board := scheduler.snapshot().board) is None or board.budget.state != state:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _goes_on(scheduler: Scheduler, served: Served, governing: Told) -> None:
    governing.told = Budget()
    told(scheduler, "unmonitored")
    last = Reader()
    scheduler.submit(served, [(request([1, 2, 3], 4), last)])
    assert len(last.tokens) == 4
    scheduler.close()


def test_in_a_critical_state_answers_stand_still_newcomers_are_refused_and_all_goes_on_afterwards() -> None:
    critical = Budget("critical", "temperature: tj at 95 C, the limit is 80 C", False, False, retry_after_s=7.0)
    governing = Told(Budget())
    served = serve()
    scheduler = Scheduler(served, Limits(), governing=governing)
    first = threading.Event()
    scheduler.submit(served, [(request([1, 2, 3], 40), Reader(lambda event: first.set()))])
    scheduler.start()
    assert first.wait(PATIENCE_S)
    governing.told = critical
    told(scheduler, "critical")
    with pytest.raises(Unavailable, match="95 C") as refused:
        scheduler.submit(served, [(request([1, 2, 3], 4), Reader())])
    assert refused.value.retry_after_s == 7.0
    _goes_on(scheduler, served, governing)


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_answers_that_stand_still_end_with_the_reason_whether_they_have_begun_or_not() -> None:
    clock, governing, served = Clock(), Told(Budget()), serve()
    scheduler = Scheduler(served, Limits(), clock=clock, governing=governing)
    critical = Budget("critical", "temperature: tj at 95 C, the limit is 80 C", True, False, retry_after_s=7.0)

    def turn(event: object) -> None:
        if isinstance(event, Piece):
            governing.told = critical

    first, waits = Reader(turn), Reader()
    scheduler.submit(served, [(request([1, 2, 3], 40), first)])
    scheduler.start()
    assert first.first.wait(PATIENCE_S)
    told(scheduler, "critical")
    scheduler.submit(served, [(request([1, 2, 3], 4), waits)])
    clock.now_s += 29.0
    assert not waits.done.wait(0.6) and not first.done.is_set()
    clock.now_s += 2.0
    for reader in (first, waits):
        assert reader.done.wait(PATIENCE_S)
        assert isinstance(reader.error, Unavailable) and reader.error.retry_after_s == 7.0
        assert "95 C" in str(reader.error)
    assert "stopped after 1 tokens" in str(first.error) and "no step was taken" in str(waits.error)
    _goes_on(scheduler, served, governing)


def test_a_deadline_that_passes_while_no_step_is_allowed_says_why() -> None:
    clock, served, reader = Clock(), serve(), Reader()
    scheduler = Scheduler(
        served, Limits(deadline_s=5.0), clock=clock, governing=Told(Budget("critical", "power: hot", True, False))
    )
    scheduler.submit(served, [(request([1, 2], 4), reader)])
    scheduler.start()
    clock.now_s += 6.0
    assert reader.done.wait(PATIENCE_S) and "critical: power: hot" in str(reader.error)
    scheduler.close()


def test_who_waits_in_a_critical_state_can_still_be_cancelled_and_the_scheduler_closed() -> None:
    governing = Told(Budget("critical", "hot", False, False))
    served, reader, other = serve(), Reader(), Reader()
    scheduler = Scheduler(served, Limits(), governing=governing)
    first, _ = scheduler.submit(served, [(request([1, 2], 4), reader), (request([1, 3], 4), other)])
    scheduler.start()
    scheduler.cancel(first)
    assert "cancelled" in str(reader.error)
    scheduler.close()
    assert other.done.is_set()


def test_an_answer_is_charged_with_its_turns_and_the_waits_between_them() -> None:
    board = Board()
    governing = Governing(readings=board)
    governing.did(done(tokens=0))
    assert governing.taken_j() == 0.0  # where it began nobody knows
    governing.did(done(tokens=2))
    assert governing.taken_j() == 2.0
    governing.did(done(tokens=2))
    board.joules += 10.0  # a wait
    assert governing.taken_j() == 12.0
    assert governing.now().joules_per_token == pytest.approx(14.0 / 4)
    governing.idles()
    board.joules += 1000.0
    governing.did(done())
    assert governing.taken_j() == 0.0
    board.energy = lambda: Energy(3.0)  # type: ignore[method-assign]
    assert governing.taken_j() is None


def test_results_carry_the_energy_of_the_board() -> None:
    served, reader = serve(), Reader()
    scheduler = Scheduler(served, Limits(), governing=Governing(readings=Board()))
    scheduler.submit(served, [(request([1, 2, 3], 8), reader)])
    scheduler.start()
    result = reader.result
    assert result.joules is not None and result.joules > 0.0
    assert result.joules_per_token == pytest.approx(result.joules / 8)
    scheduler.close()
    served, reader = serve(), Reader()
    scheduler = Scheduler(served, Limits())
    scheduler.submit(served, [(request([1, 2, 3], 8), reader)])
    scheduler.start()
    assert reader.result.joules is None and reader.result.joules_per_token is None
    scheduler.close()


@pytest.mark.parametrize(("most", "drafted"), [(0, 0), (1, 1), (3, 3), (None, 4)])
def test_the_budget_bounds_k_whatever_policy_chose_it(most: int | None, drafted: int) -> None:
    target = FakeEngine(MODEL)
    decoder = Decoder(target, DraftModel(FakeEngine(MODEL), target.info), FixedLength(4))
    decoder.govern(Budget("warm", "the board is warm", max_draft_tokens=most))
    session = Session(target.info, [1, 2, 3], SamplingParams(temperature=0.0), max_tokens=30)
    decoder.prefill(session)
    result = decoder.step(session)
    assert result.drafted == drafted
    assert most != 0 or "the board is warm" in result.reason


def test_what_is_allowed_prices_drafts() -> None:
    """Rows are free by the clock and dear by energy: at a binding cap drafting that hardly pays is left."""
    table = CostTable((1.0, 1.0, 1.0, 1.0, 1.0, 1.0), (0.0,), 0.05)
    target = FakeEngine(MODEL)
    decoder = choosing(
        target, table, models=[DraftModel(FakeEngine(MODEL, slots=4), target.info)], drafts={"draft_model": (0.05, 0.0)}
    )
    chooser = decoder.length
    free = chooser.costs.table(0, "draft_model")  # type: ignore[union-attr]
    power = StepPower(allowed_w=12.0, idle_w=5.0, busy_w=10.0, row_j=20.0)
    decoder.govern(Budget("warm", power=power))
    bound = chooser.costs.table(0, "draft_model")  # type: ignore[union-attr]
    assert free is not None and bound is not None
    assert bound.power is power and bound.paced(1.0, 3) > 3 * bound.paced(1.0, 0) / 2 > free.paced(1.0, 0)
    assert chooser.costs.table(0, "draft_model") is bound  # type: ignore[union-attr]
    decoder.govern(replace(Budget(), reason="again"))
    again = chooser.costs.table(0, "draft_model")  # type: ignore[union-attr]
    assert again is not None and again.power is None
