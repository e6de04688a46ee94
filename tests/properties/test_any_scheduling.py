"""The whole scheduler (queue, turns, slots, prefixes used again) against a plain model of what it owes.

A state machine submits, cancels, takes rounds, presses for memory, swaps models, halts the board, breaks engines and
readers, and drains; every answer must be the one that plain decoding gives, or a typed error that something explains.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from any_examples import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_machine import CAPACITY, COST, DRAFTERS, EOS, VOCAB, Model, Owed, Stepped, Told, Watcher, Wish, model_of

from edge_runtime.budget import Budget
from edge_runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    PromptTooLong,
    QueueFull,
    Unavailable,
)
from edge_runtime.pressure import NO_PRESSURE, Pressure
from edge_runtime.scheduler.entry import Line
from edge_runtime.scheduler.request import Failed, Finished, Limits, Started, Ticket
from edge_runtime.session import common_prefix
from edge_runtime.testing import ManualClock

SHARED = [(7 * place + 3) % EOS for place in range(CAPACITY)]
"""Prompts begin with it, or with what was said before."""
HALT = Budget("critical", "temperature: tj at 99.0 C", admit=False, run=False, retry_after_s=7.0)
STANDS_S = 30.0


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """What engines and readers that break leave in the log."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


LIMITS = st.builds(
    Limits,
    queue=st.integers(2, 12),
    queue_per_client=st.integers(1, 8),
    running_per_client=st.none() | st.integers(1, 2),
    max_tokens=st.none() | st.integers(1, 20),
    deadline_s=st.sampled_from([None, None, None, 0.3, 2.0]),
)
DISTURBANCES = (
    "time_goes_by", "memory_runs_low", "the_board_halts", "drafts_are_cut", "limits_change", "another_model_comes",
    "an_engine_breaks", "an_engine_breaks", "rows_are_not_finite",
)  # fmt: skip


class Scheduling(RuleBasedStateMachine, Watcher):
    @initialize(
        kind=st.sampled_from(DRAFTERS),
        slots=st.integers(1, 3),
        max_rows=st.sampled_from([3, 8, 16]),
        k=st.integers(1, 4),
        limits=LIMITS,
    )
    def make(self, kind: str, slots: int, max_rows: int, k: int, limits: Limits) -> None:
        self.clock, self.told = ManualClock(), Told()
        self.models = [model_of(kind, slots, max_rows, k, self.clock, 1)]
        self.scheduler = Stepped(self.models[0].served, limits, self.clock, self.told)
        self.setting, self.slots = (kind, slots, max_rows, k), slots
        self.limits, self.pressure, self.admits = limits, NO_PRESSURE, True
        self.draining = False
        self.owed: list[Owed] = []
        self.wrong = []
        self.counts: Counter[str] = Counter()
        self.faults = 0
        """Engine errors that may come."""
        self.stood_s: float | None = None
        self.last_turn: dict[int, int] = {}
        """Number -> turns of anybody until it began, or had its last one."""

    # What is asked

    def _prompt(self, data: st.DataObject) -> tuple[int, ...]:
        said = [one for one in self.owed if isinstance(one.last, Finished)]
        kind = data.draw(st.sampled_from(["shared", "again", "said", "full", "short"]))
        tail = data.draw(st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=6))
        if kind == "again" and self.owed:
            return data.draw(st.sampled_from(self.owed)).wish.prompt
        if kind == "said" and said:
            one = data.draw(st.sampled_from(said))
            back = data.draw(st.integers(0, 3))
            text = [*one.wish.prompt, *one.right.tokens]
            return tuple([*text[: max(1, len(text) - back)], *tail][: CAPACITY - 1])
        if kind == "full":
            return tuple([*SHARED[: CAPACITY - 4], *tail, *SHARED][: CAPACITY - 1])
        shared = data.draw(st.integers(0, CAPACITY - 8)) if kind == "shared" else 0
        return (*SHARED[:shared], *tail)

    def _wish(self, data: st.DataObject) -> Wish:
        draw = data.draw
        sampled = draw(st.booleans())
        return Wish(
            self._prompt(data),
            temperature=draw(st.sampled_from([0.7, 1.3])) if sampled else 0.0,
            seed=draw(st.integers(0, 3)) if sampled else None,
            max_tokens=draw(st.none() | st.integers(1, 12)),
            stops=draw(st.sampled_from([(), (), ("a",), ("ba", "cd", "e"), ("gg",)])),
            presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5])),
            top_logprobs=draw(st.sampled_from([None, None, 0, 2])),
            client=draw(st.integers(0, 2)),
            priority=draw(st.integers(-2, 2)),
            deadline_s=None if draw(st.integers(0, 9)) else self.clock.now_s + draw(st.floats(0.0, 1.0)),
            max_draft_tokens=draw(st.sampled_from([None, None, 0, 1])),
        )

    @rule(data=st.data(), count=st.sampled_from([1, 1, 1, 2, 3]), rounds=st.integers(0, 6))
    def submit(self, data: st.DataObject, count: int, rounds: int) -> None:
        self._submit(data, count)
        self._take(rounds)

    @rule(data=st.data(), count=st.integers(2, 5))
    def submit_many(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self._submit(data, 1)
        self._take(1)

    def _submit(self, data: st.DataObject, count: int) -> None:
        wish = self._wish(data)
        raises = data.draw(st.integers(0, 19)) == 0
        model = self.models[-1] if data.draw(st.integers(0, 5)) else data.draw(st.sampled_from(self.models))
        self.counts["received"] += count
        refusal = self._refusal(model, wish, count)
        made: list[Owed] = []
        for _ in range(count):
            made.append(self._owe(wish, model, made[0] if made else None, raises))
        asked = [(one.wish.request(), one) for one in made]
        if refusal is not None:
            self.counts["refused"] += count
            with pytest.raises(refusal) as refused:
                self.scheduler.submit(model.served, asked)
            assert type(refused.value) is refusal and str(refused.value)
            assert refused.value.retry_after_s is None or refused.value.retry_after_s > 0  # type: ignore[attr-defined]
            return
        tickets = self.scheduler.submit(model.served, asked)
        for one, ticket in zip(made, tickets, strict=True):
            one.number = ticket.number
        self.owed += made

    def _owe(self, wish: Wish, model: Model, leader: Owed | None, raises: bool) -> Owed:
        caps = [cap for cap in (wish.max_tokens, self.limits.max_tokens) if cap is not None]
        deadline_s = wish.deadline_s
        if deadline_s is None and self.limits.deadline_s is not None:
            deadline_s = self.clock.now_s + self.limits.deadline_s
        return Owed(0, wish, model, min(caps, default=None), deadline_s, leader, self, raises)

    def _refusal(self, model: Model, wish: Wish, count: int) -> type[Unavailable] | None:
        """By the words of ``Limits``, with lists."""
        if self.draining or not self._is_served(model):
            return Unavailable
        if self.pressure.level == "shed" or not self.admits:
            return Unavailable
        waiting = [one for one in self.owed if one.waiting]
        free = self.slots - len(self._running(model))
        if len(waiting) - free + count > self.limits.queue:
            return QueueFull
        soon = free
        if self.limits.running_per_client is not None:
            mine = [one for one in self.owed if one.running and one.wish.client == wish.client]
            soon = min(free, self.limits.running_per_client - len(mine))
        theirs = [one for one in waiting if one.wish.client == wish.client]
        return QueueFull if len(theirs) - soon + count > self.limits.queue_per_client else None

    def _is_served(self, model: Model) -> bool:
        """The current one, and those that have answers to end or were not looked at since."""
        return model is self.models[-1] or any(line.served is model.served for line in self.scheduler._book._lines)

    def _running(self, model: Model) -> list[Owed]:
        return [one for one in self.owed if one.running and one.model is model]

    @rule(prompt=st.sampled_from([(), (VOCAB,), (-1,), (1,) * CAPACITY, (1,) * 1000]), good=st.booleans())
    def submit_what_is_refused(self, prompt: tuple[int, ...], good: bool) -> None:
        """All or none, and nobody hears of it."""
        model = self.models[-1]
        asked = [self._owe(Wish((1, 2)), model, None, False)] if good else []
        asked.append(self._owe(Wish(prompt), model, None, False))
        with pytest.raises(PromptTooLong if len(prompt) >= CAPACITY else InputError):
            self.scheduler.submit(model.served, [(one.wish.request(), one) for one in asked])
        assert all(one.waiting for one in asked)

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.owed[-8:]))
        self.scheduler.cancel(Ticket(one.number), "the client left")
        one.cancelled = one.cancelled or one.last is None

    # What happens

    @rule(count=st.sampled_from([1, 4, 15, 40]))
    def take(self, count: int) -> None:
        self._take(count)

    @rule()
    def end_all(self) -> None:
        """Nobody waits for ever: each that is there ends within as many rounds as it has chunks and tokens, and one."""
        left = [one for one in self.owed if one.last is None]
        self._take(sum(2 + len(one.wish.prompt) + CAPACITY for one in left))
        assert all(one.last is not None for one in left)

    def _take(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round()

    def _round(self) -> None:
        before, halted = len(self.scheduler.turned), not self.told.wanted.run
        self.admits = self.told.wanted.admit
        self.stood_s = None if not halted else self.clock.now_s if self.stood_s is None else self.stood_s
        assert self.scheduler.take(), "the engine's thread ended"
        self._raise()
        turned = self.scheduler.turned[before:]
        assert len(turned) <= 1 and not (turned and halted)
        for number in turned:
            self.last_turn[number] = len(self.scheduler.turned)
        self._nobody_waits_long()

    def _raise(self) -> None:
        if self.wrong:
            raise self.wrong[0]

    def _nobody_waits_long(self) -> None:
        """Among those that run: whatever the others are, so many turns of theirs pass at most between two of one's own.

        A turn of the dearest kind costs as much as some of the cheapest, and as many more as weights differ.
        """
        kinds = (COST.body(self.setting[2]) + COST.head(self.setting[2])) / (COST.body(1) + COST.head(1))
        for one in self.owed:
            if one.running:
                others = [other.wish.priority for other in self.owed if other is not one]
                ahead = 2.0 ** max((one.wish.priority - priority for priority in others), default=0)
                bound = (self.slots * len(self.models) + 1) * 2 * (2 + kinds * max(1.0, ahead))
                assert len(self.scheduler.turned) - self.last_turn[one.number] <= bound, one.number

    @rule(data=st.data(), what=st.sampled_from(DISTURBANCES), rounds=st.integers(1, 6))
    def disturb(self, data: st.DataObject, what: str, rounds: int) -> None:
        getattr(self, f"_{what}")(data, rounds)

    def _time_goes_by(self, data: st.DataObject, rounds: int) -> None:
        self.clock.advance(data.draw(st.sampled_from([0.01, 0.3, 5.0])))

    def _memory_runs_low(self, data: st.DataObject, rounds: int) -> None:
        for level in ("evict", "shed"):
            self.pressure = Pressure(level, "memory runs out")  # type: ignore[arg-type]
            self.scheduler.press(self.pressure)
            self._take(rounds)
            self._submit(data, 1)
        self.pressure = NO_PRESSURE
        self.scheduler.press(NO_PRESSURE)

    def _the_board_halts(self, data: st.DataObject, rounds: int) -> None:
        self.told.wanted = HALT
        self._take(rounds)
        self._submit(data, 1)
        if rounds == 6:
            self.clock.advance(STANDS_S + 1.0)
            self._take(1)
            assert all(one.last is not None for one in self.owed), "whoever stands still is told in the end"
        self.told.wanted = Budget()
        self._take(1)

    def _drafts_are_cut(self, data: st.DataObject, rounds: int) -> None:
        self.told.wanted = Budget("warm", "cut", max_draft_tokens=data.draw(st.sampled_from([None, 0, 1])))

    def _limits_change(self, data: st.DataObject, rounds: int) -> None:
        self.limits = data.draw(LIMITS)
        self.scheduler.set_limits(self.limits)

    def _another_model_comes(self, data: st.DataObject, rounds: int) -> None:
        if len(self.models) < 4:
            model = model_of(*self.setting, self.clock, data.draw(st.integers(1, 2)))
            self.scheduler.swap(model.served)
            self.models.append(model)

    def _an_engine_breaks(self, data: st.DataObject, rounds: int) -> None:
        model = self.models[-1]
        engine = model.draft if data.draw(st.booleans()) and model.draft is not None else model.target
        if engine.fail_after is None:
            self.faults += 1
        engine.fail_after = rounds - 1

    def _rows_are_not_finite(self, data: st.DataObject, rounds: int) -> None:
        self.faults += 1
        for model in self.models:
            model.target.broken_rows = True
        self._take(1)
        for model in self.models:
            model.target.broken_rows = False

    # What holds

    def starts(self, owed: Owed, event: Started) -> None:
        """Who starts is the first that may, and what it starts from is its own prompt's beginning."""
        number = owed.number
        self.last_turn[number] = len(self.scheduler.turned)
        others = [one for one in self.owed if one.running]
        assert len([one for one in others if one.model is owed.model]) < self.slots
        assert self._may_run(owed, others), "a client has more running than it may"
        for one in self.owed:
            free = self.slots > len([other for other in others if other.model is one.model])
            if one.waiting and one is not owed and free and self._may_run(one, others) and self._led(one):
                assert (one.wish.priority, one.number) > (owed.wish.priority, number), "overtaken"
        assert self._led(owed)
        prompt, cached = np.array(owed.wish.prompt), event.cached_tokens
        assert event.prompt_tokens == len(prompt) and 0 <= cached < len(prompt)
        slot = self._entry(owed).placement.slot
        _check_cache(owed.model, slot, prompt[:cached])
        self.counts["prompt_tokens"] += len(prompt)
        self.counts["cached_tokens"] += cached

    def _may_run(self, owed: Owed, running: list[Owed]) -> bool:
        most = self.limits.running_per_client
        return most is None or sum(one.wish.client == owed.wish.client for one in running) < most

    def _led(self, owed: Owed) -> bool:
        leader = owed.leader
        if leader is None or leader.last is not None or leader.pieces:
            return True
        if leader.started is None:
            return False
        answer = next(one for one in self.scheduler.snapshot().running if one.number == leader.number)
        return answer.fed_tokens >= len(leader.wish.prompt) - 1

    def ends(self, owed: Owed, event: Finished | Failed) -> None:
        owed.check_so_far()
        if isinstance(event, Finished):
            self.counts["finished"] += 1
            right, result = owed.right, event.result
            assert (result.text, result.tokens, result.finish_reason) == (right.text, right.tokens, right.finish_reason)
            assert "".join(piece.text for piece in owed.pieces) == result.text
            assert sum(len(piece.tokens) for piece in owed.pieces) == len(result.tokens)
            assert [piece.finish_reason for piece in owed.pieces[:-1]] == [None] * (len(owed.pieces) - 1)
            assert result.prompt_tokens == len(owed.wish.prompt)
            return
        error = event.error
        assert str(error)
        if isinstance(error, Cancelled):
            self.counts["cancelled"] += 1
            assert owed.cancelled or owed.raises or self.draining, error
            return
        self.counts["failed"] += 1
        if isinstance(error, DeadlineExceeded):
            assert owed.deadline_s is not None and self.clock.now_s >= owed.deadline_s
        elif isinstance(error, Unavailable):
            assert self.stood_s is not None and self.clock.now_s - self.stood_s >= STANDS_S
        else:
            assert isinstance(error, EngineError), error
            self.faults -= 1
            assert self.faults >= 0, error
            assert "Error;" not in str(error), "an exception that nobody foresaw"

    def _entry(self, owed: Owed):  # type: ignore[no-untyped-def]
        return self.scheduler._book.entries[owed.number]

    def _line(self, model: Model) -> Line | None:
        return next((line for line in self.scheduler._book._lines if line.served is model.served), None)

    @invariant()
    def slots_are_apart_and_hold_what_they_say(self) -> None:
        for model in self.models:
            line = self._line(model)
            if line is None:
                assert model.closed == 1 and not self._running(model)
                continue
            assert not model.closed
            running = self._running(model)
            taken = {}
            for one in running:
                entry = self._entry(one)
                session = entry.generation.session
                assert session.slot == entry.placement.slot and session.slot not in taken
                taken[session.slot] = session
                assert 0 <= session.kv_len <= session.length <= min(session.limit, CAPACITY)
                if model.target.fail_after is None:
                    _check_cache(model, session.slot, session.tokens[: session.kv_len])
            status = line.slots.status(self.clock.now_s)
            assert {one.slot for one in status if one.busy} == set(taken)
            for slot in range(self.slots):
                held = line.slots.held(slot)
                session = taken.get(slot)
                # A text's entries are its own, whatever comes.
                assert session is None or common_prefix(held, session.tokens) == len(held)
                _check_cache(model, slot, held)

    @invariant()
    def counts_add_up(self) -> None:
        seen = self.scheduler.snapshot()
        waiting = [one for one in self.owed if one.waiting]
        running = [one for one in self.owed if one.running]
        requests = seen.requests
        assert (requests.running, requests.waiting) == (len(running), len(waiting))
        assert sorted(one.number for one in seen.running) == [one.number for one in running]
        for name in ("received", "refused", "finished", "failed", "cancelled"):
            assert getattr(requests, name) == self.counts[name], name
        gone = requests.finished + requests.failed + requests.cancelled + requests.refused
        assert requests.received == gone + requests.running + requests.waiting
        sent = sum(len(piece.tokens) for one in self.owed for piece in one.pieces)
        assert seen.speed.generated_tokens == sent
        assert seen.speed.prompt_tokens >= self.counts["prompt_tokens"]
        assert seen.speed.cached_prompt_tokens >= self.counts["cached_tokens"]
        assert len(self.scheduler._book.entries) == len(running) + len(waiting)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        way = len(self.owed) % 3
        for model in self.models:
            for engine in (model.target, model.draft):
                if engine is not None:
                    engine.fail_after = None
        self.draining = True
        if way:
            # Drained in time, or broken off.
            if way == 1:
                self.told.wanted = Budget()
            complete = self.scheduler.drain(1e9 if way == 1 else 0.0)
            assert complete or way == 2
            for _ in range(3):
                self.scheduler.take()
            assert all(one.last is not None for one in self.owed)
            with pytest.raises(Unavailable):
                self.scheduler.submit(self.models[-1].served, [(Wish((1,)).request(), lambda event: None)])
        self.scheduler.close()
        self._raise()
        assert all(one.last is not None for one in self.owed), "somebody waits for ever"
        assert all(model.closed == 1 for model in self.models)
        assert not self.scheduler._book.entries


def _check_cache(model: Model, slot: int, tokens: np.ndarray) -> None:  # type: ignore[type-arg]
    """The engine's entries are exactly those of these tokens, each made behind the right ones."""
    engine, digest = model.target, 0
    assert engine.cache[slot, : len(tokens)].tolist() == tokens.tolist()
    for place, token in enumerate(tokens.tolist()):
        digest = engine.model.extend(digest, token)
        assert engine.digests[slot][place] == digest


Scheduling.TestCase.settings = examples(40, steps=40)
TestScheduling = Scheduling.TestCase
