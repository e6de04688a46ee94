"""What goes wrong around the scheduler: readers that leave, engines that fail, deadlines, swaps, the end."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from scheduling import (
    MODEL,
    PATIENCE_S,
    GatedEngine,
    Reader,
    ask,
    check_empty,
    cold,
    request,
    running,
    serve,
    until,
)

from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.engines.protocol import StepInput, StepOutput
from edge_runtime.errors import Cancelled, DeadlineExceeded, EdgeError, EngineError, InputError, Stopped, Unavailable
from edge_runtime.generation import Piece
from edge_runtime.scheduler.request import Event, Failed, Limits, Started, Ticket
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.testing import FakeEngine, FakeModel, ManualClock

SECRET = "what somebody " + "wrote"
"""Put together, so that the line of the test in a traceback does not hold it."""
PROMPT = [5, 9, 2, 40, 5, 9, 2]
LONG = [(7 * place) % 64 for place in range(40)]


# Cancel


def test_cancel_while_queued() -> None:
    engine = GatedEngine(slots=1)
    served = serve(engine)
    with running(served) as scheduler:
        ask(scheduler, served, request(PROMPT, 20), first := Reader())
        ticket = ask(scheduler, served, request(PROMPT, 20), second := Reader())
        engine.wait_inside()
        scheduler.cancel(ticket, "the client left")
        engine.let(1)
        assert isinstance(second.error, Cancelled) and str(second.error) == "the client left"
        assert len(second.events) == 1 and not first.done.is_set()
        engine.open()
        assert first.tokens == cold(PROMPT, 20)


@pytest.mark.parametrize("let", [0, 1, 4, 5, 9])
def test_cancel_within_one_turn_keeps_what_is_valid(let: int) -> None:
    """In the prefill (5 chunks) or in the middle of the answer; the next request starts from what was done."""
    engine = GatedEngine(slots=1, max_rows=8)
    served = serve(engine)
    with running(served) as scheduler:
        ticket = ask(scheduler, served, request(LONG, 50), reader := Reader())
        engine.wait_inside()
        engine.let(let)
        scheduler.cancel(ticket)
        ask(scheduler, served, request(LONG, 5), following := Reader())
        engine.let(1)
        assert isinstance(reader.error, Cancelled)
        reader.check_order()
        assert len(reader.pieces) == max(0, let + 1 - 4)
        engine.open()
        assert following.tokens == cold(LONG, 5)
    assert following.begun.cached_tokens == min(8 * (let + 1), 39)
    assert scheduler.snapshot().requests.cancelled == 1


@pytest.mark.parametrize("kind", [Started, Piece, Failed])
def test_cancel_from_the_sink_itself(kind: type[Event]) -> None:
    served, tickets, ready = serve(), list[Ticket](), threading.Event()

    def leave(event: Event) -> None:
        assert ready.wait(PATIENCE_S)
        if isinstance(event, kind):
            scheduler.cancel(tickets[0], "from the sink")
            scheduler.cancel(tickets[0], "again")

    with running(served) as scheduler:
        tickets.append(ask(scheduler, served, request(PROMPT, 50), reader := Reader(leave)))
        ready.set()
        if kind is Failed:
            assert len(reader.tokens) == 50
        else:
            assert str(reader.error) == "from the sink" and len(reader.pieces) <= 1
        reader.check_order()


def test_cancel_of_what_is_over_or_unknown_is_harmless() -> None:
    served = serve()
    with running(served) as scheduler:
        ticket = ask(scheduler, served, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8)
        scheduler.cancel(ticket)
        scheduler.cancel(Ticket(99))
        ask(scheduler, served, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8)


@pytest.mark.parametrize("moment", [Started, Piece])
@pytest.mark.parametrize("problem", [RuntimeError, SystemExit])
def test_a_sink_that_raises_ends_its_own_request(
    moment: type[Event], problem: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    served = serve()

    def fail(event: Event) -> None:
        if isinstance(event, moment | Failed):
            raise problem(SECRET)

    with running(served) as scheduler, caplog.at_level(logging.DEBUG):
        ask(scheduler, served, request(PROMPT, 50), other := Reader())
        ask(scheduler, served, request(PROMPT, 50), bad := Reader(fail))
        assert isinstance(bad.error, Cancelled) and len(bad.pieces) <= 1
        assert other.tokens == cold(PROMPT, 50)
        bad.check_order()
        ask(scheduler, served, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8)
    assert problem.__name__ in caplog.text and SECRET not in caplog.text


def test_random_cancels_leave_nothing_behind() -> None:
    """2,000 requests, most of them cancelled at whatever moment it happens to be."""
    chance = random.Random(5)
    engine = FakeEngine(MODEL, slots=3, max_rows=4)
    served = serve(engine, DraftModel(FakeEngine(MODEL, slots=3), engine.info), 2)
    readers: list[tuple[Reader, list[int], int]] = []
    with running(served, Limits(queue=64, queue_per_client=64)) as scheduler:
        while len(readers) < 2000:
            tickets, batch = [], []
            for _ in range(chance.randint(1, 12)):
                prompt = [*LONG[: chance.randint(1, 30)], chance.randint(0, 63)]
                leave_after = chance.choice([None, 0, 1, 2, 3])
                tickets_of: list[Ticket] = []
                reader = Reader(_leaving(leave_after, tickets_of, lambda ticket: scheduler.cancel(ticket)))
                max_tokens = chance.randint(1, 12)
                (ticket,) = scheduler.submit(served, [(request(prompt, max_tokens), reader)])
                tickets_of.append(ticket)
                tickets.append(ticket)
                batch.append((reader, prompt, max_tokens))
            for ticket in tickets:
                if chance.random() < 0.5:
                    scheduler.cancel(ticket)
            for reader, _, _ in batch:
                reader.wait()
            readers += batch
            engine.calls.clear()
        for reader, prompt, max_tokens in readers[-40:]:
            reader.check_order()
            if not isinstance(reader.events[-1], Failed):
                assert reader.tokens == cold(prompt, max_tokens)
        ask(scheduler, served, request(PROMPT), last := Reader())
        assert last.tokens == cold(PROMPT, 8)
    for reader, _, _ in readers:
        reader.check_order()
    requests = scheduler.snapshot().requests
    assert requests.failed == 0 and requests.cancelled > 500 and requests.finished > 100


def _leaving(after: int | None, tickets: list[Ticket], cancel: Callable[[Ticket], None]) -> Callable[[Event], None]:
    seen = 0

    def act(event: Event) -> None:
        nonlocal seen
        if after is not None and seen >= after and tickets:
            cancel(tickets[0])
        seen += 1

    return act


# Deadlines


def test_deadlines_in_the_queue_and_in_the_answer() -> None:
    clock, engine = ManualClock(), GatedEngine(slots=1)
    served = serve(engine)
    with running(served, Limits(deadline_s=50.0), clock=clock) as scheduler:
        ask(scheduler, served, request(PROMPT, 100, deadline_s=10.0), running_one := Reader())
        ask(scheduler, served, request(PROMPT, 100, deadline_s=5.0), waiting := Reader())
        ask(scheduler, served, request(PROMPT, 100), default := Reader())
        engine.wait_inside()
        clock.advance(6.0)
        engine.let(1)
        assert isinstance(waiting.error, DeadlineExceeded) and "waited in the queue" in str(waiting.error)
        assert waiting.events[:-1] == [] and not running_one.done.is_set()
        clock.advance(6.0)
        engine.let(1)
        assert isinstance(running_one.error, DeadlineExceeded) and "after 2 tokens" in str(running_one.error)
        running_one.check_order()
        engine.let(3)
        assert not default.done.is_set()
        clock.advance(40.0)
        ask(scheduler, served, request(PROMPT, 8, deadline_s=60.0), last := Reader())
        engine.let(1)
        assert isinstance(default.error, DeadlineExceeded)
        engine.open()
        assert last.tokens == cold(PROMPT, 8)
    assert scheduler.snapshot().requests.failed == 3


# Engines that fail


@pytest.mark.parametrize("fail_after", range(1, 24, 2))
@pytest.mark.parametrize("who", ["target", "draft"])
def test_a_failing_engine_fails_one_request_alone(fail_after: int, who: str) -> None:
    engine, draft_engine = FakeEngine(MODEL, slots=2, max_rows=4), FakeEngine(MODEL, slots=2, max_rows=4)
    served = serve(engine, DraftModel(draft_engine, engine.info), 2)
    (engine if who == "target" else draft_engine).fail_after = fail_after
    prompts = [PROMPT, [*PROMPT, 1, 2], LONG[:20]]
    readers = [Reader() for _ in prompts]
    scheduler = Scheduler(served, Limits())
    for prompt, reader in zip(prompts, readers, strict=True):
        ask(scheduler, served, request(prompt, 12), reader)
    scheduler.start()
    failed = [reader for reader in readers if isinstance(reader.wait().events[-1], Failed)]
    # A draft that fails costs its drafts, and no answer.
    assert len(failed) == (who == "target") and all(isinstance(reader.error, EngineError) for reader in failed)
    for prompt, reader in zip(prompts, readers, strict=True):
        reader.check_order()
        if reader not in failed:
            assert reader.tokens == cold(prompt, 12)
        ask(scheduler, served, request([*prompt, 3], 12), again := Reader())
        assert again.tokens == cold([*prompt, 3], 12), "nothing half-written is used again"
    scheduler.close()
    check_empty(scheduler)
    requests = scheduler.snapshot().requests
    assert requests.failed == len(failed)
    assert (requests.last_failure == "the fake engine was told to fail") == bool(failed)


def test_a_failure_grows_old() -> None:
    clock, engine = ManualClock(), FakeEngine(MODEL, slots=2)
    served = serve(engine)
    with running(served, clock=clock) as scheduler:
        assert scheduler.snapshot().requests.last_failure_age_s is None
        engine.fail_after = 0
        ask(scheduler, served, request(PROMPT), broken := Reader())
        assert isinstance(broken.error, EngineError)
        clock.advance(7.0)
        assert scheduler.snapshot().requests.last_failure_age_s == 7.0


def test_a_failing_copy_fails_its_request_and_not_the_source() -> None:
    engine = GatedEngine(slots=2, max_rows=8)
    served = serve(engine)
    with running(served) as scheduler:
        ask(scheduler, served, request(LONG, 20), first := Reader())
        engine.wait_inside()
        engine.let(6)
        engine.fail_after = 2  # the forward and the head under way
        ask(scheduler, served, request([*LONG, 1], 20), second := Reader())
        engine.open()
        assert isinstance(second.error, EngineError) and second.events[:-1] == []
        assert first.tokens == cold(LONG, 20)
        ask(scheduler, served, request([*LONG, 2], 20), third := Reader())
        assert third.tokens == cold([*LONG, 2], 20)


def test_rows_that_are_not_finite_fail_the_request_and_are_forgotten() -> None:
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine)
    with running(served) as scheduler:
        engine.broken_rows = True
        ask(scheduler, served, request(PROMPT), broken := Reader())
        assert "not usable" in str(broken.error)
        engine.broken_rows = False
        ask(scheduler, served, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8) and reader.begun.cached_tokens == 0


def test_what_a_slot_holds_behind_a_fault_is_used_by_nobody() -> None:
    """Also where the prompt had long been fed: what the engine did since is unknown."""
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine)
    with running(served) as scheduler:
        engine.fail_after = 20
        ask(scheduler, served, request(LONG, 20), broken := Reader())
        assert isinstance(broken.error, EngineError) and broken.pieces
        ask(scheduler, served, request(LONG), reader := Reader())
        assert reader.tokens == cold(LONG, 8) and reader.begun.cached_tokens == 0


class _Surprising(FakeEngine):
    surprise = False

    def forward(self, step: StepInput) -> StepOutput:
        if self.surprise:
            self.surprise = False
            raise KeyError(SECRET)
        return super().forward(step)


def test_what_nobody_foresaw_fails_the_request_and_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = _Surprising(MODEL, slots=2)
    served = serve(engine)
    with running(served) as scheduler, caplog.at_level(logging.DEBUG):
        engine.surprise = True
        ask(scheduler, served, request(PROMPT), bad := Reader())
        ask(scheduler, served, request(PROMPT), good := Reader())
        assert isinstance(bad.error, EngineError) and "KeyError" in str(bad.error)
        assert good.tokens == cold(PROMPT, 8)
        assert SECRET not in str(bad.error)
    assert "KeyError" in caplog.text and "forward" in caplog.text and SECRET not in caplog.text


class _Unresettable(PromptLookup):
    def reset(self, slot: int) -> None:
        raise RuntimeError(SECRET)


def test_a_drafter_that_cannot_forget_costs_nobody_else_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """It is told to where an answer failed, and where a slot goes to another user."""
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine, _Unresettable(2, 1), 2)
    with running(served) as scheduler:
        engine.fail_after = 5
        readers = [Reader() for _ in range(5)]
        for reader in readers:
            ask(scheduler, served, request(PROMPT, 20), reader)
        failed = [reader for reader in readers if isinstance(reader.wait().events[-1], Failed)]
        assert [str(reader.error) for reader in failed] == ["the fake engine was told to fail"]
        assert all(reader.tokens == cold(PROMPT, 20) for reader in readers if reader not in failed)
        ask(scheduler, served, replace(request(PROMPT, 20), client=3), other := Reader())
        assert other.tokens == cold(PROMPT, 20)
        assert "could not forget a text: RuntimeError" in scheduler.snapshot().speculation.reason
    assert "could not forget a text: RuntimeError" in caplog.text and SECRET not in caplog.text


def test_a_fault_of_the_scheduler_leaves_nobody_waiting() -> None:
    closed = threading.Event()
    # What it asks of a model around each turn, until there is no answer: nobody foresaw that.
    looks = iter([""] * 9)
    served = replace(serve(FakeEngine(MODEL, slots=2), close=closed.set), altered=lambda: next(looks))
    readers = [Reader() for _ in range(5)]
    scheduler = Scheduler(served, Limits())
    for reader in readers:
        ask(scheduler, served, request(PROMPT, 20), reader)
    scheduler.start()
    for reader in readers:
        assert isinstance(reader.error, EngineError)
        reader.check_order()
    assert closed.wait(PATIENCE_S)
    with pytest.raises(Unavailable, match="StopIteration"):
        ask(scheduler, served, request(PROMPT), Reader())
    assert scheduler.drain(0.0)
    scheduler.close()
    requests = scheduler.snapshot().requests
    assert requests.failed == 5 and requests.running == requests.waiting == 0


# Another model


def test_a_swap_lets_the_old_model_finish_and_closes_it_on_the_engines_thread() -> None:
    closed: list[str] = []
    gone = threading.Event()

    def close() -> None:
        closed.append(threading.current_thread().name)
        gone.set()

    other = FakeModel(seed=9)
    engine, another = GatedEngine(slots=1), GatedEngine(slots=2)
    another.model = other
    old, new = serve(engine, name="old", close=close), serve(another, name="new")
    with running(old) as scheduler:
        ask(scheduler, old, request(PROMPT, 20), first := Reader())
        ask(scheduler, old, request(LONG, 20), second := Reader())
        engine.wait_inside()
        scheduler.swap(new)
        assert scheduler.snapshot().model == "new"
        ask(scheduler, new, request(PROMPT, 20), third := Reader())
        ask(scheduler, old, request(PROMPT, 8), late := Reader())
        # A step of the old one, and the thread stands in one of the new one.
        engine.let_last()
        another.wait_inside()
        assert not closed
        assert {answer.model for answer in scheduler.snapshot().running} == {"old", "new"}
        assert len(scheduler.snapshot().slots) == 2
        another.open()
        engine.open()
        assert first.tokens == cold(PROMPT, 20) and second.tokens == cold(LONG, 20) and late.tokens == cold(PROMPT, 8)
        assert third.tokens == cold(PROMPT, 20, other)
        assert gone.wait(PATIENCE_S) and closed == ["edge-engine"]
        with pytest.raises(Unavailable, match="model 'old' is not served any more"):
            ask(scheduler, old, request(PROMPT), Reader())
        with pytest.raises(Unavailable, match="'stranger'"):
            ask(scheduler, serve(name="stranger"), request(PROMPT), Reader())
        ask(scheduler, new, request(PROMPT, 20), fourth := Reader())
        assert fourth.tokens == cold(PROMPT, 20, other)
    assert closed == ["edge-engine"]


def test_an_idle_model_that_is_swapped_is_closed_at_once() -> None:
    gone = [threading.Event() for _ in range(3)]
    models = [serve(FakeEngine(MODEL), name=str(index), close=event.set) for index, event in enumerate(gone)]
    with running(models[0]) as scheduler:
        scheduler.swap(models[0])
        scheduler.swap(models[1])
        assert gone[0].wait(PATIENCE_S)
        scheduler.swap(models[2])
        assert gone[1].wait(PATIENCE_S) and not gone[2].is_set()
    assert gone[2].is_set()


def test_a_model_that_does_not_close_hurts_nobody() -> None:
    def fail() -> None:
        raise RuntimeError

    served, new = serve(close=fail), serve()
    with running(served) as scheduler:
        scheduler.swap(new)
        ask(scheduler, new, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8)


# Everything at once


def test_clients_in_threads_of_their_own() -> None:
    """They submit, cancel, fail and look on while models are swapped; every request has its one end."""
    models = [serve(FakeEngine(MODEL, slots=2, max_rows=8), PromptLookup(), 1, name=str(index)) for index in range(4)]
    current = [models[0]]
    readers: list[list[Reader]] = [[] for _ in range(6)]
    problems: list[BaseException] = []

    def client(number: int) -> None:
        chance = random.Random(number)
        try:
            for _ in range(40):
                group = [Reader() for _ in range(chance.randint(1, 3))]
                wanted = request(LONG[: chance.randint(1, 30)], chance.randint(1, 12), client=number)
                try:
                    tickets = scheduler.submit(current[0], [(wanted, reader) for reader in group])
                except Unavailable:
                    continue
                readers[number] += group
                if chance.random() < 0.4:
                    scheduler.cancel(chance.choice(tickets))
                if chance.random() < 0.5:
                    group[-1].wait()
                now = scheduler.snapshot().requests
                over = now.finished + now.failed + now.cancelled + now.refused
                assert now.received == over + now.running + now.waiting
                assert now.waiting <= 16 + 2 * len(models)
        except BaseException as problem:  # noqa: BLE001 - of a thread; told below
            problems.append(problem)

    with running(models[0], Limits(queue=16, queue_per_client=6, running_per_client=2)) as scheduler:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for model, engine_fails in zip(models[1:], (3, 10, None), strict=True):
            seen = scheduler.snapshot().requests.received
            # Who asks may be through before this thread has its turn.
            until(
                lambda seen=seen: (
                    scheduler.snapshot().requests.received > seen + 60  # type: ignore[misc]
                    or not any(thread.is_alive() for thread in threads)
                )
            )
            target = current[0].decoder.target
            assert isinstance(target, FakeEngine)
            target.fail_after = engine_fails
            current[0] = model
            scheduler.swap(model)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not problems
        assert scheduler.drain(PATIENCE_S)
    for reader in (reader for group in readers for reader in group):
        reader.wait().check_order()


# The end


def test_drain_finishes_what_is_there_and_refuses_the_rest() -> None:
    engine = GatedEngine(slots=1)
    served = serve(engine)
    with running(served) as scheduler:
        ask(scheduler, served, request(PROMPT, 20), first := Reader())
        ask(scheduler, served, request(LONG, 20), second := Reader())
        engine.wait_inside()
        complete: list[bool] = []
        drainer = threading.Thread(target=lambda: complete.append(scheduler.drain(PATIENCE_S)))
        drainer.start()
        until(lambda: scheduler.snapshot().refusal)
        with pytest.raises(Unavailable, match="draining"):
            ask(scheduler, served, request(PROMPT), Reader())
        with pytest.raises(Unavailable, match="draining"):
            scheduler.swap(serve())
        engine.open()
        drainer.join(PATIENCE_S)
        assert complete == [True]
        assert first.tokens == cold(PROMPT, 20) and second.tokens == cold(LONG, 20)


def test_drain_breaks_off_after_its_time() -> None:
    engine = GatedEngine(slots=1)
    served = serve(engine)
    with running(served) as scheduler:
        readers = [Reader() for _ in range(3)]
        for reader in readers:
            ask(scheduler, served, request(PROMPT, 100), reader)
        engine.wait_inside()
        complete: list[bool] = []
        drainer = threading.Thread(target=lambda: complete.append(scheduler.drain(0.0)))
        drainer.start()
        until(lambda: scheduler.snapshot().refusal)
        engine.open()
        drainer.join(PATIENCE_S)
        assert complete == [False]
        for reader in readers:
            assert isinstance(reader.error, Stopped) and "not complete within 0 s" in str(reader.error)
            reader.check_order()


def test_close_ends_everything_and_again_is_harmless() -> None:
    closed = threading.Event()
    engine = GatedEngine(slots=1)
    served = serve(engine, close=closed.set)
    with running(served) as scheduler:
        readers = [Reader() for _ in range(3)]
        for reader in readers:
            ask(scheduler, served, request(PROMPT, 100), reader)
        engine.wait_inside()
        closer = threading.Thread(target=scheduler.close)
        closer.start()
        until(lambda: scheduler.snapshot().refusal)
        engine.open()
        closer.join(PATIENCE_S)
        assert closed.is_set()
        for reader in readers:
            assert isinstance(reader.error, Stopped)
            reader.check_order()
        with pytest.raises(Unavailable, match="closed"):
            ask(scheduler, served, request(PROMPT), Reader())


def test_a_scheduler_that_never_started_still_keeps_its_promises() -> None:
    for end in (lambda s: s.drain(0.0), lambda s: None):
        closed = threading.Event()
        served = serve(close=closed.set)
        scheduler = Scheduler(served, Limits())
        ask(scheduler, served, request(PROMPT), reader := Reader())
        end(scheduler)
        scheduler.close()
        assert isinstance(reader.error, Stopped) and closed.is_set()
        check_empty(scheduler)


def test_errors_carry_what_a_server_needs() -> None:
    assert (Cancelled("x").http_status, DeadlineExceeded("x").http_status) == (499, 504)
    # Whoever still listens, and may ask again: of the daemon that is started next.
    assert (Stopped("x").http_status, Stopped("x").retry_after_s) == (503, 1.0)
    assert issubclass(InputError, EdgeError)


def test_a_lookup_drafter_survives_all_of_it() -> None:
    """An index per slot, which is compared and never announced to."""
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine, PromptLookup(), 3)
    loop = [1, 2, 3, 4] * 6
    with running(served) as scheduler:
        for cut in (24, 8, 20, 24, 3):
            ask(scheduler, served, request(loop[:cut], 12), reader := Reader())
            assert reader.tokens == cold(loop[:cut], 12)
