"""Answers in turn on one engine: prefixes used again, fairness, groups, limits, what is told of it all."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scheduling import (
    GREEDY,
    MODEL,
    GatedEngine,
    Reader,
    ask,
    check_empty,
    cold,
    request,
    running,
    serve,
)

from edge_runtime.cost import CostTable
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.errors import InputError, PromptTooLong, QueueFull
from edge_runtime.generation import Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.request import Event, Limits, Request
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, ManualClock

PROMPT = [5, 9, 2, 40, 5, 9, 2]


def long_prompt(count: int, start: int = 0) -> list[int]:
    return [(7 * place + start) % 64 for place in range(count)]


@pytest.mark.parametrize("k", [0, 3])
def test_an_answer_is_that_of_a_decoder_alone(k: int) -> None:
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine, DraftModel(FakeEngine(MODEL, slots=2), engine.info), k)
    reader = Reader()
    with running(served) as scheduler:
        ask(scheduler, served, request(PROMPT, 20), reader)
        assert reader.tokens == cold(PROMPT, 20)
    reader.check_order()
    assert reader.begun.prompt_tokens == len(PROMPT) and reader.begun.cached_tokens == 0
    assert reader.result.finish_reason == "length"


def test_many_at_once_do_not_disturb_each_other() -> None:
    engine = FakeEngine(MODEL, slots=3, max_rows=4)
    served = serve(engine, DraftModel(FakeEngine(MODEL, slots=3), engine.info), 2)
    prompts = [long_prompt(3 + 5 * index, index) for index in range(10)]
    readers = [Reader() for _ in prompts]
    with running(served) as scheduler:
        for prompt, reader in zip(prompts, readers, strict=True):
            ask(scheduler, served, request(prompt, 15), reader)
        for prompt, reader in zip(prompts, readers, strict=True):
            assert reader.tokens == cold(prompt, 15)
            reader.check_order()


def test_the_second_turn_of_a_chat_feeds_only_what_is_new() -> None:
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine)
    with running(served) as scheduler:
        first, second = Reader(), Reader()
        ask(scheduler, served, request(PROMPT, 20), first)
        conversation = PROMPT + first.tokens + [1, 2, 3]
        engine.calls.clear()
        ask(scheduler, served, request(conversation, 6), second)
        assert second.tokens == cold(conversation, 6)
    assert second.begun.cached_tokens == len(PROMPT) + 19, "all but the last token, which the cache has not seen"
    assert engine.rows_of("copy") == []
    assert engine.rows_of("forward") == [4] + [1] * 5


def test_a_repeated_prompt_feeds_its_last_token_alone_and_keeps_the_first_answer() -> None:
    engine = FakeEngine(MODEL, slots=2)
    served, prompt = serve(engine), long_prompt(60)
    with running(served) as scheduler:
        for reader in (readers := [Reader(), Reader()]):
            engine.calls.clear()
            ask(scheduler, served, request(prompt, 30), reader)
            assert reader.tokens == cold(prompt, 30)
        assert readers[1].begun.cached_tokens == 59
        assert engine.rows_of("copy") == [59] and sum(engine.rows_of("forward")) == 30
        conversation = prompt + readers[0].tokens + [4]
        ask(scheduler, served, request(conversation, 2), again := Reader())
        assert again.tokens == cold(conversation, 2)
        assert again.begun.cached_tokens == len(conversation) - 2


def test_a_prefix_is_copied_from_an_answer_under_way() -> None:
    engine = GatedEngine(max_rows=8)
    served, system = serve(engine), long_prompt(40)
    with running(served) as scheduler:
        ask(scheduler, served, request([*system, 1], 20), first := Reader())
        engine.wait_inside()
        engine.let(8)
        ask(scheduler, served, request([*system, 2], 20), second := Reader())
        engine.open()
        assert first.tokens == cold([*system, 1], 20)
        assert second.tokens == cold([*system, 2], 20)
    assert second.begun.cached_tokens == 40
    assert engine.rows_of("copy") == [40]


conversations = st.lists(
    st.tuples(
        st.integers(0, 3),  # whose conversation
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.integers(1, 6),
        st.integers(0, 9),  # tokens taken back before
    ),
    min_size=2,
    max_size=14,
)


@settings(max_examples=60)
@given(conversations, st.integers(1, 3), st.sampled_from([0, 2]), st.sampled_from([3, 16]), st.booleans())
def test_warm_equals_cold(
    turns: list[tuple[int, list[int], int, int]], slots: int, k: int, max_rows: int, lookup: bool
) -> None:
    """Conversations that grow, branch and go back, on too few slots: no stale entry is ever attended to."""
    engine = FakeEngine(MODEL, slots=slots, max_rows=max_rows)
    drafter = PromptLookup() if lookup else DraftModel(FakeEngine(MODEL, slots=slots), engine.info)
    served = serve(engine, drafter, k)
    shared = long_prompt(20)
    texts = [list(shared), list(shared), [*shared, 1], [3]]
    scheduler = Scheduler(served, Limits())
    scheduler.start()
    try:
        for who, more, max_tokens, back in turns:
            text = texts[who]
            del text[max(1, len(text) - back) :]
            if len(text) + len(more) + max_tokens > 120:
                del text[20:]
            text += more
            ask(scheduler, served, request(text, max_tokens), reader := Reader())
            assert reader.tokens == cold(text, max_tokens)
            text += reader.tokens
    finally:
        scheduler.close()
    check_empty(scheduler)


def test_warm_conversations_feed_little() -> None:
    """The companion of the test above, which a scheduler that reuses nothing would pass."""
    engine = FakeEngine(MODEL, slots=4, capacity=512)
    served, texts = serve(engine), [long_prompt(100, who) for who in range(3)]
    with running(served) as scheduler:
        for _ in range(5):
            for text in texts:
                text += [1, 2, 3]
                ask(scheduler, served, request(text, 10), reader := Reader())
                text += reader.tokens
    made = 5 * 3 * 10
    assert sum(engine.rows_of("forward")) == 3 * 100 + 5 * 3 * 3 + made - 3
    speed = scheduler.snapshot().speed
    assert speed.generated_tokens == made
    assert speed.prompt_tokens - speed.cached_prompt_tokens == 3 * 100 + 5 * 3 * 3 + 4 * 3


@pytest.mark.parametrize("k", [0, 3])
def test_a_short_request_does_not_wait_for_a_long_one(k: int) -> None:
    engine = FakeEngine(MODEL, slots=2, capacity=600, clock=(clock := ManualClock()), cost=_cost())
    served = serve(engine, PromptLookup(), k)
    ends: list[str] = []
    long, short = Reader(), Reader()
    sent_by_then: list[int] = []

    def note(event: Event) -> None:
        if not isinstance(event, Piece) and len(short.events) > 1:
            sent_by_then.append(sum(len(piece.tokens) for piece in long.pieces))
            ends.append("short")

    short = Reader(note)
    scheduler = Scheduler(served, Limits(), clock)
    ask(scheduler, served, request(PROMPT, 500), long)
    ask(scheduler, served, request([8, 9], 20), short)
    scheduler.start()
    assert len(long.tokens) == 500 and len(short.tokens) == 20
    scheduler.close()
    assert sent_by_then[0] <= 20 * (k + 1) + 4, "as many turns as its own"
    assert long.tokens == cold(PROMPT, 500, capacity=600)


def _cost() -> CostTable:
    """A chunk of 16 rows takes as long as four steps."""
    return CostTable(body_s=tuple(0.01 + 0.002 * rows for rows in range(17))[1:], head_s=(0.001,) * 17, draft_s=0.0)


def test_a_short_request_does_not_wait_for_a_long_prompt() -> None:
    engine = FakeEngine(MODEL, slots=2, capacity=1000, clock=(clock := ManualClock()), cost=_cost())
    served = serve(engine)
    order: list[str] = []
    long, short = Reader(lambda event: order.append("long")), Reader(lambda event: order.append("short"))
    scheduler = Scheduler(served, Limits(), clock)
    ask(scheduler, served, request(long_prompt(900), 4), long)
    ask(scheduler, served, request([8, 9], 20), short)
    scheduler.start()
    assert short.wait() and len(long.tokens) == 4
    scheduler.close()
    assert order == ["long", *["short"] * 22, *["long"] * 5], "Started, and then nothing before the short one's end"


@pytest.mark.parametrize("priority", [-2, -1, 1, 2])
def test_each_step_of_priority_doubles_the_share(priority: int) -> None:
    engine = FakeEngine(MODEL, slots=2, capacity=600, clock=(clock := ManualClock()), cost=_cost())
    served = serve(engine)
    order: list[int] = []
    scheduler = Scheduler(served, Limits(), clock)
    ask(scheduler, served, request([1], 300), one := Reader(lambda event: order.append(0)))
    ask(scheduler, served, request([2], 300, priority=priority), two := Reader(lambda event: order.append(1)))
    scheduler.start()
    assert one.wait() and two.wait()
    scheduler.close()
    counts = (order[:300].count(0), order[:300].count(1))
    assert counts[1] / counts[0] == pytest.approx(2.0**-priority, rel=0.1)


def test_lower_priorities_are_served_first_and_equal_ones_by_arrival() -> None:
    served = serve(FakeEngine(MODEL, slots=1))
    order: list[int] = []
    scheduler = Scheduler(served, Limits())
    readers = []
    for index, priority in enumerate([0, 1, -1, 0, -2, 1, -1]):
        reader = Reader(lambda event, index=index: order.append(index) if isinstance(event, Piece) else None)  # type: ignore[misc]
        ask(scheduler, served, request([index], 1, priority=priority), reader)
        readers.append(reader)
    scheduler.start()
    assert all(reader.wait() for reader in readers)
    scheduler.close()
    assert order == [4, 2, 6, 0, 3, 1, 5]


def test_a_group_shares_its_prompt() -> None:
    engine, prompt = FakeEngine(MODEL, slots=4, capacity=256, max_rows=8), long_prompt(100)
    served = serve(engine)
    readers = [Reader() for _ in range(6)]
    params = SamplingParams()
    wanted = [Request(np.array(prompt), params, 10, seed=seed) for seed in range(6)]
    with running(served) as scheduler:
        tickets = scheduler.submit(served, list(zip(wanted, readers, strict=True)))
        texts = [tuple(reader.tokens) for reader in readers]
    assert len(set(texts)) == 6, "each has its own seed"
    assert [ticket.number for ticket in tickets] == [1, 2, 3, 4, 5, 6]
    assert readers[0].begun.cached_tokens == 0
    assert [reader.begun.cached_tokens for reader in readers[1:]] == [99] * 5
    assert sum(engine.rows_of("forward")) == 100 + 6 * 10 - 1


def test_a_group_goes_on_without_its_first() -> None:
    engine = GatedEngine(max_rows=4)
    served, readers = serve(engine), [Reader() for _ in range(3)]
    with running(served) as scheduler:
        tickets = scheduler.submit(served, [(request(long_prompt(30), 5), reader) for reader in readers])
        engine.wait_inside()
        scheduler.cancel(tickets[0])
        engine.open()
        assert "cancelled" in str(readers[0].error)
        for reader in readers[1:]:
            assert reader.tokens == cold(long_prompt(30), 5)


def test_a_group_is_admitted_as_a_whole_or_not_at_all() -> None:
    engine = GatedEngine(slots=2)
    served = serve(engine)
    with running(served, Limits(queue=3)) as scheduler:
        with pytest.raises(QueueFull, match="0 requests wait of at most 3, and 6 came at once"):
            scheduler.submit(served, [(request(PROMPT), Reader())] * 6)
        readers = [Reader() for _ in range(5)]
        scheduler.submit(served, [(request(PROMPT), reader) for reader in readers])
        engine.wait_inside()
        seen = scheduler.snapshot().requests
        assert seen.received == 11 and seen.refused == 6 and seen.running + seen.waiting == 5
        engine.open()
        assert all(reader.tokens == cold(PROMPT, 8) for reader in readers)
        assert scheduler.submit(served, []) == []


@pytest.mark.parametrize("wait_for_thread", [False, True])
def test_the_queue_is_bounded_however_quick_the_thread_is(wait_for_thread: bool) -> None:
    engine = GatedEngine(slots=2)
    served = serve(engine)
    with running(served, Limits(queue=3)) as scheduler:
        readers = []
        for _ in range(5):
            ask(scheduler, served, request(PROMPT), reader := Reader())
            readers.append(reader)
            if wait_for_thread and len(readers) == 1:
                engine.wait_inside()
        with pytest.raises(QueueFull, match="the queue is full: 3 requests wait of at most 3") as refused:
            ask(scheduler, served, request(PROMPT), Reader())
        assert refused.value.http_status == 429 and refused.value.retry_after_s > 0
        assert scheduler.snapshot().requests.queue_limit == 3
        scheduler.set_limits(Limits(queue=4))
        ask(scheduler, served, request(PROMPT), reader := Reader())
        engine.open()
        assert all(reader.wait() for reader in [*readers, reader])
        ask(scheduler, served, request(PROMPT), reader := Reader())
        assert reader.tokens == cold(PROMPT, 8)


def test_clients_have_limits_of_their_own() -> None:
    engine = GatedEngine(slots=4)
    served = serve(engine)
    with running(served, Limits(queue_per_client=2, running_per_client=1)) as scheduler:
        greedy = [Reader() for _ in range(3)]
        for reader in greedy:
            ask(scheduler, served, request(PROMPT, client=1000), reader)
        with pytest.raises(QueueFull, match="client 1000 has 2 requests waiting of at most 2"):
            ask(scheduler, served, request(PROMPT, client=1000), Reader())
        ask(scheduler, served, request(PROMPT, client=1001), other := Reader())
        engine.wait_inside()
        engine.let(3)
        assert sorted(answer.client for answer in scheduler.snapshot().running) == [1000, 1001]
        scheduler.set_limits(Limits(running_per_client=2))
        engine.let(3)
        assert sorted(answer.client for answer in scheduler.snapshot().running) == [1000, 1000, 1001]
        engine.open()
        assert all(reader.tokens == cold(PROMPT, 8) for reader in [*greedy, other])


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (request([]), InputError),
        (request([1] * 128), PromptTooLong),
        (request([1, 64]), InputError),
        (request([1, -1]), InputError),
        (request([1], 0), InputError),
        (request([1], stops=("",)), InputError),
        (request([1], priority=3), InputError),
    ],
)
def test_what_the_model_refuses_is_refused_before_any_event(wanted: Request, error: type[InputError]) -> None:
    served = serve()
    with running(served) as scheduler:
        with pytest.raises(error):
            scheduler.submit(served, [(request(PROMPT), good := Reader()), (wanted, bad := Reader())])
        assert scheduler.snapshot().requests.received == 0
    assert good.events == bad.events == []


@pytest.mark.parametrize(
    ("wanted", "cap", "made"), [(8, None, 8), (8, 5, 5), (3, 5, 3), (None, 5, 5), (None, None, 121)]
)
def test_the_limit_of_tokens_caps_what_was_asked_for(wanted: int | None, cap: int | None, made: int) -> None:
    served = serve()
    with running(served, Limits(max_tokens=cap)) as scheduler:
        ask(scheduler, served, request(PROMPT, wanted), reader := Reader())
        assert len(reader.tokens) == made and reader.result.finish_reason == "length"


def test_stop_strings_and_end_of_text() -> None:
    answer = cold(PROMPT, 30)
    served = serve(eos_ids=(answer[12],))
    end, stop = answer.index(answer[12]), answer.index(answer[5])
    with running(served) as scheduler:
        ask(scheduler, served, request(PROMPT, 30), whole := Reader())
        ask(scheduler, served, request(PROMPT, 30, stops=(chr(0x100 + answer[5]),)), stopped := Reader())
        assert whole.result.finish_reason == stopped.result.finish_reason == "stop"
        assert whole.tokens == answer[: end + 1] and len(whole.result.text) == end
        assert len(stopped.result.text) == min(stop, end)


def test_the_snapshot_adds_up() -> None:
    engine = GatedEngine(slots=2, max_rows=4)
    draft = DraftModel(FakeEngine(MODEL, slots=2), engine.info)
    served = serve(engine, draft, 3)
    with running(served) as scheduler:
        before = scheduler.snapshot()
        assert before.model == "fake" and before.refusal == "" and before.speed.ttft_ms_p50 is None
        assert before.speculation.acceptance_rate is None and before.speed.tokens_per_s == 0.0
        ask(scheduler, served, request(long_prompt(10), 13, client=7, priority=-1), reader := Reader())
        engine.wait_inside()
        engine.let(1)
        (answer,) = scheduler.snapshot().running
        assert (answer.client, answer.priority, answer.model, answer.number) == (7, -1, "fake", 1)
        assert (answer.prompt_tokens, answer.cached_tokens, answer.fed_tokens, answer.generated_tokens) == (10, 0, 4, 0)
        busy, free = scheduler.snapshot().slots
        assert busy.busy and busy.idle_s is None and busy.tokens == 4
        assert not free.busy and free.idle_s is None and free.tokens == 0
        assert not scheduler.snapshot().idle
        engine.let(3)
        (answer,) = scheduler.snapshot().running
        assert (answer.fed_tokens, answer.generated_tokens) == (10, 5), "the prefill's token, and a step of K=3"
        engine.open()
        assert len(reader.tokens) == 13
    after = scheduler.snapshot()
    assert after.idle and after.beat_s >= before.beat_s
    assert after.steps == 3 and after.speculation.drafts == 3
    assert after.speculation.draft_tokens == after.speculation.accepted_tokens == 9
    assert after.tried_by_position == after.accepted_by_position == (3, 3, 3)
    assert after.speculation.acceptance_rate == 1.0 and after.speculation.acceptance_length == 4.0
    assert after.speculation.running and after.speculation.num_draft_tokens == 3.0
    assert after.speculation.reason == "fixed K=3"
    assert after.speed.generated_tokens == 13 and after.speed.prompt_tokens == 10
    assert after.speed.ttft_ms_p50 is not None and after.speed.tpot_ms_p95 is not None


def test_nothing_grows_with_the_number_of_requests() -> None:
    engine = FakeEngine(MODEL, slots=2, capacity=32)
    served = serve(engine, PromptLookup(), 1)
    scheduler = Scheduler(served, Limits(queue=16, deadline_s=1e6))
    scheduler.start()

    def some(count: int, first: int) -> None:
        for start in range(first, first + count, 10):
            readers = [Reader() for _ in range(10)]
            tickets = []
            for index, reader in enumerate(readers):
                wanted = request([index, (start + index) % 64, 3], 2, client=start + index)
                tickets.append(ask(scheduler, served, wanted, reader))
            scheduler.cancel(tickets[-1])
            assert all(reader.wait() for reader in readers)
            engine.calls.clear()

    def blocks() -> int:
        gc.collect()
        return sys.getallocatedblocks()

    some(1000, 0)
    before = blocks()
    some(2000, 1000)
    after = blocks()
    scheduler.close()
    assert after - before < 500, "a reference kept for each request would be 2,000 of them"
    check_empty(scheduler)
    assert scheduler.snapshot().requests.received == 3000


def test_params_reach_the_session() -> None:
    served = serve()
    params = SamplingParams(temperature=0.8)
    with running(served) as scheduler:
        texts = []
        for seed in (1, 1, 2):
            ask(scheduler, served, Request(np.array(PROMPT), params, 20, seed=seed), reader := Reader())
            texts.append(reader.tokens)
        assert texts[0] == texts[1] != texts[2]
        assert GREEDY.greedy and texts[0] != cold(PROMPT, 20)


def test_one_clients_answers_are_drafted_from_for_nobody_else() -> None:
    """Through the whole scheduler, slots changing hands: how fast an answer comes must not tell what another asked."""
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine, SuffixCache(2048, secret=b"\x00"), 4)
    answer = cold(PROMPT, 60)
    kept = []
    with running(served) as scheduler:
        for client in (5, 5, 6, 5, 6, -1, -1):
            ask(scheduler, served, request(PROMPT, 60, client=client), reader := Reader())
            assert reader.tokens == answer
            kept.append(reader.result.accepted > 30)
    assert kept == [False, True, False, True, True, False, False]


def test_a_request_reaches_the_decoder_whole() -> None:
    engine = FakeEngine(MODEL, slots=2)
    served = serve(engine, DraftModel(FakeEngine(MODEL, slots=2), engine.info), 3)
    answer = cold(PROMPT, 20)
    with running(served) as scheduler:
        ask(scheduler, served, request(PROMPT, 20, max_draft_tokens=0), plain := Reader())
        assert plain.tokens == answer and plain.result.drafted == 0
        ask(scheduler, served, request(PROMPT, 20, max_draft_tokens=1), single := Reader())
        assert single.tokens == answer and len(single.result.steps_by_drafted) == 2
        ban = ShapingParams(logit_bias=dict.fromkeys(answer, -100.0))
        ask(scheduler, served, request(PROMPT, 20, shaping=ban), banned := Reader())
        assert not set(banned.tokens) & set(answer)
        ask(scheduler, served, request(PROMPT, 20, prediction=np.array(answer)), predicted := Reader())
        assert predicted.tokens == answer
        ask(scheduler, served, request(PROMPT, 4, grammar=_Only([7, 8])), bound := Reader())
        assert set(bound.tokens) <= {7, 8}
        ask(scheduler, served, request(PROMPT, 4, top_logprobs=2), told := Reader())
        assert told.tokens == answer[:4]
        ask(scheduler, served, request(PROMPT, 20), again := Reader())
        assert again.tokens == answer, "and nothing of it stays"
        for wrong in (
            request(PROMPT, max_draft_tokens=-1),
            request(PROMPT, top_logprobs=-1),
            request(PROMPT, shaping=ShapingParams(logit_bias={64: 1.0})),
        ):
            with pytest.raises(InputError):
                ask(scheduler, served, wrong, Reader())


class _Only:
    """A grammar of single tokens, and its state at once."""

    def __init__(self, tokens: list[int]) -> None:
        self._allowed = np.zeros(MODEL.vocab_size, np.bool_)
        self._allowed[tokens] = True

    def start(self) -> _Only:
        return self

    def allowed(self) -> NDArray[np.bool_]:
        return self._allowed

    def allows(self, token: int) -> bool:
        return bool(self._allowed[token])

    def forced(self, most: int) -> list[int]:
        return []

    def valid_prefix(self, tokens: list[int]) -> int:
        return next((place for place, token in enumerate(tokens) if not self.allows(token)), len(tokens))

    def accept(self, token: int) -> None:
        pass

    def rollback(self, count: int) -> None:
        pass
