"""Who waits, who starts and who is refused, against a plain model; whose turn it is; what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_runtime.errors import QueueFull
from edge_runtime.scheduler.admission import Admission, Waiter
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.tally import Tally
from edge_runtime.scheduler.turns import Turns


class AdmissionAgainstLists(RuleBasedStateMachine):
    """Clients come and go on so many slots."""

    limits = st.builds(
        Limits,
        queue=st.integers(1, 6),
        queue_per_client=st.integers(1, 4),
        running_per_client=st.none() | st.integers(1, 3),
    )

    @initialize(limits=limits, slots=st.integers(1, 3))
    def make(self, limits: Limits, slots: int) -> None:
        self.admission, self.slots = Admission(limits), slots
        self.waiting: list[Waiter] = []
        self.running: list[Waiter] = []
        self.number = 0

    @property
    def free(self) -> int:
        return self.slots - len(self.running)

    @rule(clients=st.lists(st.integers(0, 2), min_size=1, max_size=3), priority=st.integers(-2, 2))
    def come(self, clients: list[int], priority: int) -> None:
        limits = self.admission.limits
        refused = len(self.waiting) + len(clients) - self.free > limits.queue
        for client in clients:
            mine = [waiter for waiter in self.waiting if waiter.client == client]
            startable = self.free
            if limits.running_per_client is not None:
                running = sum(waiter.client == client for waiter in self.running)
                startable = min(startable, limits.running_per_client - running)
            refused = refused or len(mine) + clients.count(client) - startable > limits.queue_per_client
        if refused:
            with pytest.raises(QueueFull, match=r"of at most \d"):
                self.admission.check(clients, self.free)
            return
        self.admission.check(clients, self.free)
        for client in clients:
            self.number += 1
            waiter = Waiter(priority, self.number, client)
            self.admission.add(waiter)
            self.waiting.append(waiter)

    @rule(shunned=st.integers(0, 3))
    def start(self, shunned: int) -> None:
        """``shunned``: those that may not start yet, as the followers of a group."""
        most = self.admission.limits.running_per_client
        ready = [
            waiter
            for waiter in sorted(self.waiting, key=lambda waiter: (waiter.priority, waiter.number))
            if waiter.number % 4 != shunned
            and (most is None or sum(other.client == waiter.client for other in self.running) < most)
        ]
        started = self.admission.start(lambda number: bool(self.free) and number % 4 != shunned)
        assert started == (ready[0] if ready and self.free else None)
        if started is not None:
            self.waiting.remove(started)
            self.running.append(started)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave_the_queue(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.admission.remove(waiter)
        self.waiting.remove(waiter)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.running))
        self.admission.end(waiter.client)
        self.running.remove(waiter)

    @rule(limits=limits)
    def reload(self, limits: Limits) -> None:
        self.admission.limits = limits

    @invariant()
    def counts(self) -> None:
        assert self.admission.waiting == len(self.waiting)
        for client in range(3):
            assert self.admission.running_of(client) == sum(waiter.client == client for waiter in self.running)

    def teardown(self) -> None:
        for waiter in getattr(self, "waiting", []):
            self.admission.remove(waiter)
        for waiter in getattr(self, "running", []):
            self.admission.end(waiter.client)
        if hasattr(self, "admission"):
            assert not self.admission._waiting_by and not self.admission._running_by, "no client is remembered"


TestAdmissionAgainstLists = AdmissionAgainstLists.TestCase


def test_turns_without_a_clock_go_round() -> None:
    turns = Turns()
    assert turns.next() is None
    for number in (1, 2, 3):
        turns.join(number, 0)
    order = []
    for _ in range(7):
        number = turns.next()
        assert number is not None
        order.append(number)
        turns.charge(number, 0.0)
    assert order == [1, 2, 3, 1, 2, 3, 1]


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.floats(0.001, 0.1)), min_size=1, max_size=5),
    st.integers(1, 400),
)
def test_shares_are_by_time_and_priority(answers: list[tuple[int, float]], count: int) -> None:
    """However long the turns of each are, nobody is ever further behind its share than one turn of somebody."""
    turns, used_s = Turns(), [0.0] * len(answers)
    for number, (priority, _) in enumerate(answers):
        turns.join(number, priority)
    for _ in range(count):
        number = turns.next()
        assert number is not None
        turns.charge(number, answers[number][1])
        used_s[number] += answers[number][1]
    virtual = [used * 2.0**priority for used, (priority, _) in zip(used_s, answers, strict=True)]
    assert max(virtual) - min(virtual) <= max(turn_s * 2.0**priority for priority, turn_s in answers) + 1e-9


def test_a_newcomer_neither_waits_for_the_past_nor_makes_others_wait() -> None:
    turns = Turns()
    turns.join(1, 0)
    for _ in range(100):
        turns.charge(1, 1.0)
    turns.join(2, 0)
    order = []
    for _ in range(6):
        number = turns.next()
        assert number is not None
        order.append(number)
        turns.charge(number, 1.0)
    assert order == [2, 1, 2, 1, 2, 1]
    turns.leave(2)
    assert turns.next() == 1


@pytest.mark.parametrize("streams", [1, 2])
def test_answers_of_one_turn_that_follow_one_another_keep_nobody_waiting(streams: int) -> None:
    """A queue full of them, as of a program that sorts by one token each, and a long answer beside it."""
    turns, had = Turns(), {"long": 0, "short": 0}
    turns.join(0, 0)
    turns.charge(0, 0.2)  # of its prompt
    present = [turns.join(number, 0) or number for number in range(1, streams + 1)]
    newest = streams
    for _ in range(300):
        number = turns.next()
        assert number is not None
        turns.charge(number, 0.01)
        had["long" if number == 0 else "short"] += 1
        if number:
            present.remove(number)
            turns.leave(number)
            newest += 1
            turns.join(newest, 0)
            present.append(newest)
    assert had["long"] >= 300 / (streams + 1) - 25, had


def test_tokens_per_second_are_those_of_the_last_seconds() -> None:
    tally = Tally()
    assert tally.speed(100.0).tokens_per_s == 0.0
    for tick in range(200):
        tally.sent(2, 100.0 + tick / 10)
    assert tally.speed(120.0).tokens_per_s == pytest.approx(20.0, rel=0.2)
    assert tally.speed(200.0).tokens_per_s == 0.0
    tally.sent(30, 200.0)
    assert tally.speed(200.1).tokens_per_s == 30.0
    assert tally.speed(200.1).generated_tokens == 430


def test_latencies_are_of_the_last_answers() -> None:
    tally = Tally()
    for count in range(1000):
        tally.waited(count / 1000)
        tally.took(0.001 * (count % 2))
    speed = tally.speed(0.0)
    assert speed.ttft_ms_p50 == pytest.approx(872.0, abs=1.5) and speed.ttft_ms_p95 == pytest.approx(987.0, abs=1.5)
    assert speed.tpot_ms_p95 == 1.0
