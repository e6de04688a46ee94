"""The decoder: same text as plain decoding whatever drafts, and every way a text can end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edge_runtime.cost import HeadMode
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength, LengthPlan
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.errors import EngineError
from edge_runtime.ledger import TextState
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session, StepResult, common_prefix
from edge_runtime.testing import FakeEngine, FakeModel, ScriptedDraft, decode

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 2, 40, 5, 9, 2]
WHOLE = FakeModel()
REPETITIVE = FakeModel(vocab_size=12, order=2, scale=4.0)
"""Falls into loops, so that prompt lookup finds something."""


class RandomLength:
    """Another K at every step."""

    name = "random"

    def __init__(self, most: int = 6) -> None:
        self._random, self._most = random.Random(1), most

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        return LengthPlan(min(k_max, self._random.randint(0, self._most)), "batched", "random")

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        pass


def plain(model: FakeModel, params: SamplingParams = GREEDY, **options: object) -> Session:
    engine = FakeEngine(model)
    session = Session(engine.info, [t % model.vocab_size for t in PROMPT], params, **options)  # type: ignore[arg-type]
    decode(Decoder(engine), session)
    return session


def draft_model(model: FakeModel, agreement: float = 1.0, **options: int) -> DraftModel:
    other = FakeModel(model.vocab_size, model.seed, model.order, model.scale, agreement)
    return DraftModel(FakeEngine(other, **options), FakeEngine(model).info)


def drafters(model: FakeModel) -> dict[str, Drafter]:
    return {
        "self": draft_model(model),
        "half": draft_model(model, 0.6),
        "foreign": draft_model(model, 0.0),
        "adversary": draft_model(model, -1.0),
        "lookup": PromptLookup(),
    }


@pytest.mark.parametrize("model", [WHOLE, REPETITIVE], ids=["whole", "repetitive"])
@pytest.mark.parametrize("name", ["self", "half", "foreign", "adversary", "lookup"])
@pytest.mark.parametrize("k", [0, 1, 2, 5, "random"])
def test_greedy_speculation_is_plain_decoding(model: FakeModel, name: str, k: int | str) -> None:
    wanted = plain(model, max_tokens=60)
    engine = FakeEngine(model)
    length = FixedLength(k) if isinstance(k, int) else RandomLength()
    session = Session(engine.info, wanted.tokens[: wanted.prompt_len], GREEDY, max_tokens=60)
    decode(Decoder(engine, drafters(model)[name], length), session)
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert session.logprobs == pytest.approx(wanted.logprobs, abs=1e-6)
    assert session.finish_reason == "length"


def test_plain_greedy_is_the_models_argmax() -> None:
    session = plain(WHOLE, max_tokens=20)
    ids = np.arange(WHOLE.vocab_size)
    for position in range(session.prompt_len, session.length):
        logits = WHOLE.logits(WHOLE.digest(session.tokens[:position]), ids).astype(np.float64)
        assert session.tokens[position] == logits.argmax()
        wanted = logits.max() - np.log(np.exp(logits).sum())
        assert session.logprobs[position - session.prompt_len] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_a_model_that_drafts_for_itself_is_fully_accepted(k: int) -> None:
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY)
    steps = decode(Decoder(engine, draft_model(WHOLE), FixedLength(k)), session)
    totals = session.totals
    assert totals.accepted == totals.drafted > 0
    assert {step.kind for step in steps} == {"bonus"}
    assert totals.accepted_by_position == totals.tried_by_position
    assert totals.committed == totals.accepted + totals.steps == len(session.generated) - 1


@pytest.mark.parametrize("head_mode", [1, 2, 3])
@pytest.mark.parametrize("agreement", [1.0, 0.6])
def test_head_in_groups_equals_batched_and_stops_at_the_rejection(head_mode: HeadMode, agreement: float) -> None:
    wanted = plain(WHOLE, max_tokens=50)
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=50)
    steps = decode(Decoder(engine, draft_model(WHOLE, agreement), FixedLength(5, head_mode)), session)
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert isinstance(head_mode, int)
    for step in steps:
        # Rows that can matter are those up to the first rejection; the group is what is read at once.
        needed = step.accepted + 1
        rows = step.drafted + 1
        assert sum(count for count, _ in step.head_calls) == min(rows, -(-needed // head_mode) * head_mode)


def test_head_is_never_asked_for_more_rows_than_it_holds() -> None:
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=40)
    decode(Decoder(engine, draft_model(WHOLE), FixedLength(7), max_head_rows=3), session)
    assert session.tokens.tolist() == plain(WHOLE, max_tokens=40).tokens.tolist()
    assert max(engine.rows_of("head")) == 3


@pytest.mark.parametrize("k", range(7))
@pytest.mark.parametrize("room", range(1, 11))
def test_context_end(k: int, room: int) -> None:
    capacity = len(PROMPT) + room
    wanted = plain(WHOLE, max_tokens=room)
    engine = FakeEngine(WHOLE, capacity=capacity)
    session = Session(engine.info, PROMPT, GREEDY)
    decode(Decoder(engine, draft_model(WHOLE, 0.7, capacity=capacity), FixedLength(k)), session)
    assert session.length == capacity
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert session.finish_reason == "length"


@pytest.mark.parametrize("k", range(7))
@pytest.mark.parametrize("max_tokens", range(1, 11))
def test_max_tokens(k: int, max_tokens: int) -> None:
    wanted = plain(WHOLE, max_tokens=max_tokens)
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=max_tokens)
    steps = decode(Decoder(engine, draft_model(WHOLE), FixedLength(k)), session)
    assert len(session.generated) == sum(len(step.tokens) for step in steps) == max_tokens
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert session.finish_reason == steps[-1].finish_reason == "length"
    assert session.totals.accepted == session.totals.drafted


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("head_mode", ["batched", 1])
@pytest.mark.parametrize("index", range(1, 8))
def test_end_of_text_at_every_draft_index(index: int, head_mode: HeadMode, seed: int | None) -> None:
    params = GREEDY if seed is None else SamplingParams(top_k=8)
    text = plain(WHOLE, params, max_tokens=30, seed=seed).tokens.tolist()
    eos = text[len(PROMPT) + index]
    first = text.index(eos, len(PROMPT))
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, params, eos_ids=[eos], seed=seed)
    drafter = ScriptedDraft(text)
    steps = decode(Decoder(engine, drafter, FixedLength(7, head_mode)), session)
    assert session.tokens.tolist() == text[: first + 1]
    assert session.finish_reason == steps[-1].finish_reason == "stop"
    assert session.kv_len <= session.length
    # What lay behind the end was never judged, so it is no rejection either.
    assert session.totals.accepted == session.totals.drafted
    for go_on in (Decoder.step, Decoder.prefill, Decoder.advance):
        with pytest.raises(ValueError, match="finished"):
            go_on(Decoder(engine, drafter, FixedLength(3)), session)


def test_end_of_text_as_the_first_and_as_a_recovered_token() -> None:
    text = plain(WHOLE, max_tokens=10).tokens.tolist()
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY, eos_ids=[text[len(PROMPT)]])
    assert Decoder(engine).prefill(session).finish_reason == "stop"
    assert len(session.generated) == 1
    place = len(PROMPT) + 2
    session = Session(engine.info, PROMPT, GREEDY, eos_ids=[text[place]])
    steps = decode(Decoder(engine, ScriptedDraft(text, wrong_at=[place]), FixedLength(4)), session)
    assert (steps[-1].kind, steps[-1].finish_reason, steps[-1].accepted) == ("recovered", "stop", 1)
    assert session.tokens.tolist() == text[: place + 1]


def test_counters_follow_the_script() -> None:
    text = plain(WHOLE, max_tokens=40).tokens.tolist()
    n = len(PROMPT)
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=12)
    drafter = ScriptedDraft(text, wrong_at=[n + 3])
    steps = decode(Decoder(engine, drafter, FixedLength(4)), session)
    # Prefill gives token 0; the draft of 1..4 fails at 3; 4..7 are kept with their bonus; 9 and 10, and the end.
    assert [(step.drafted, step.accepted, len(step.tokens)) for step in steps] == [
        (0, 0, 1),
        (4, 2, 3),
        (4, 4, 5),
        (2, 2, 3),
    ]
    totals = session.totals
    assert drafter.observed == [2, 4, 2]
    assert (totals.steps, totals.drafted, totals.accepted, totals.committed) == (3, 10, 8, 11)
    assert totals.tried_by_position == [3, 3, 2, 1]
    assert totals.accepted_by_position == [3, 3, 1, 1]
    assert totals.steps_by_drafted == {4: 2, 2: 1}
    assert session.log_likelihood == pytest.approx(sum(sum(step.logprobs) for step in steps))


@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 16])
def test_prefill_in_chunks_reads_one_row(max_rows: int) -> None:
    wanted = plain(WHOLE, max_tokens=1)
    engine = FakeEngine(WHOLE, max_rows=max_rows)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=20)
    told: list[tuple[int, int]] = []
    result = Decoder(engine).prefill(session, lambda done, of: told.append((done, of)))
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert engine.rows_of("head") == [1]
    assert sum(engine.rows_of("forward")) == len(PROMPT) == session.kv_len
    assert told[-1] == (len(PROMPT), len(PROMPT)) and told == sorted(told)
    assert (result.kind, result.k, result.drafted) == ("bonus", 0, 0)
    decode(Decoder(engine, draft_model(WHOLE, 0.7, max_rows=max_rows), FixedLength(3)), session)
    assert session.tokens.tolist() == plain(WHOLE, max_tokens=20).tokens.tolist()


@pytest.mark.parametrize("kv_len", range(len(PROMPT) + 1))
def test_warm_equals_cold(kv_len: int) -> None:
    wanted = plain(WHOLE, max_tokens=30)
    engine = FakeEngine(WHOLE)
    drafter = draft_model(WHOLE, 0.7)
    decoder = Decoder(engine, drafter, FixedLength(3))
    decode(decoder, Session(engine.info, PROMPT, GREEDY, max_tokens=10))
    decode(decoder, Session(engine.info, [*PROMPT[:kv_len], 1, 1, 1], GREEDY, max_tokens=10))
    engine.calls.clear()
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=30, kv_len=kv_len)
    decoder.prefill(session)
    assert sum(engine.rows_of("forward")) == max(1, len(PROMPT) - kv_len)
    decode(decoder, session)
    assert session.tokens.tolist() == wanted.tokens.tolist()


def test_a_wrong_kv_len_shows() -> None:
    """The fake must be able to fail: a cache that holds another prompt gives another text."""
    engine = FakeEngine(WHOLE)
    decode(Decoder(engine), Session(engine.info, [1, 2, 3, 4], GREEDY, max_tokens=4))
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=30, kv_len=3)
    decode(Decoder(engine), session)
    assert session.tokens.tolist() != plain(WHOLE, max_tokens=30).tokens.tolist()


def test_deterministic_engine_pads_at_the_very_end_too() -> None:
    capacity = len(PROMPT) + 9
    for k in range(4):
        engine = FakeEngine(WHOLE, capacity=capacity, min_rows=2)
        draft = DraftModel(FakeEngine(WHOLE, capacity=capacity, min_rows=2), engine.info)
        session = Session(engine.info, PROMPT, GREEDY)
        decode(Decoder(engine, draft, FixedLength(k)), session)
        assert session.tokens.tolist() == plain(WHOLE, max_tokens=9).tokens.tolist()
        assert session.totals.accepted == session.totals.drafted


def test_two_slots_do_not_disturb_each_other() -> None:
    engine = FakeEngine(WHOLE, slots=2)
    draft = DraftModel(FakeEngine(WHOLE, slots=2), engine.info)
    decoder = Decoder(engine, draft, FixedLength(3))
    prompts = [PROMPT, [8, 1]]
    sessions = [Session(engine.info, prompt, GREEDY, max_tokens=40, slot=slot) for slot, prompt in enumerate(prompts)]
    for session in sessions:
        decoder.prefill(session)
    while any(session.finish_reason is None for session in sessions):
        for session in sessions:
            if session.finish_reason is None:
                decoder.step(session)
    for session, prompt in zip(sessions, prompts, strict=True):
        alone = Session(FakeEngine(WHOLE).info, prompt, GREEDY, max_tokens=40)
        decode(Decoder(FakeEngine(WHOLE)), alone)
        assert session.tokens.tolist() == alone.tokens.tolist()
        assert session.totals.accepted == session.totals.drafted


def test_a_draft_without_the_sessions_slot_says_so() -> None:
    engine = FakeEngine(WHOLE, slots=2)
    decoder = Decoder(engine, draft_model(WHOLE), FixedLength(3))
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=20, slot=1)
    steps = decode(decoder, session)
    assert session.tokens.tolist() == plain(WHOLE, max_tokens=20).tokens.tolist()
    assert session.totals.drafted == 0 and "no slot 1" in steps[1].reason


@pytest.mark.parametrize("max_rows", [2, 3, 16])
@pytest.mark.parametrize("k", [0, 3])
def test_turns_of_two_sessions(k: int, max_rows: int) -> None:
    """A turn feeds one chunk or makes one step; also a cache that was lost in the middle of a text comes back so."""
    engine = FakeEngine(WHOLE, slots=2, max_rows=max_rows)
    draft = FakeEngine(WHOLE, slots=2)
    decoder = Decoder(engine, DraftModel(draft, engine.info), FixedLength(k))
    sessions = [Session(engine.info, prompt, GREEDY, max_tokens=20, slot=i) for i, prompt in enumerate([PROMPT, [8]])]
    turns = 0
    while open_sessions := [session for session in sessions if session.finish_reason is None]:
        for session in open_sessions:
            turns += 1
            if turns in (17, 40):
                session.kv_len = 0
            calls, length = len(engine.calls) + len(draft.calls), session.length
            result = decoder.advance(session)
            if result is None:
                assert len(engine.calls) + len(draft.calls) == calls + 1 and session.length == length
            else:
                assert session.tokens[length:].tolist() == list(result.tokens)
    for session in sessions:
        alone = Session(FakeEngine(WHOLE).info, session.tokens[: session.prompt_len], GREEDY, max_tokens=20)
        decode(Decoder(FakeEngine(WHOLE)), alone)
        assert session.tokens.tolist() == alone.tokens.tolist()
        assert session.totals.accepted == session.totals.drafted
        with pytest.raises(ValueError, match="finished"):
            decoder.advance(session)


@pytest.mark.parametrize("fail_after", [None, 0, 1, 2, 3])
def test_a_draft_catches_up_in_turns_of_its_own(fail_after: int | None) -> None:
    """A long prompt must not hold the others up twice, once for the target and once for the draft."""
    text = plain(WHOLE, max_tokens=60).tokens.tolist()
    engine, draft = FakeEngine(WHOLE, max_rows=8), FakeEngine(WHOLE, max_rows=8)
    decoder = Decoder(engine, DraftModel(draft, engine.info), FixedLength(3))
    session = Session(engine.info, text[:40], GREEDY, max_tokens=20)
    decoder.prefill(session)
    draft.fail_after = fail_after
    results: list[StepResult | None] = []
    while session.finish_reason is None:
        try:
            results.append(decoder.advance(session))
        except EngineError:
            assert fail_after is not None
    first = next(result for result in results if result is not None)
    assert results[:6] == [None] * 5 + [first], "five chunks of the prompt"
    assert first.caught_up == 40 and first.times.overhead_s >= 0.0
    assert None not in results[5:]
    assert session.tokens.tolist() == text[:60]
    assert session.totals.accepted == session.totals.drafted
    assert max(draft.rows_of("forward")) <= 8


@pytest.mark.parametrize("count", range(1, len(PROMPT) + 1))
def test_a_session_on_a_copied_prefix_writes_the_same_text(count: int) -> None:
    wanted = plain(WHOLE, max_tokens=20)
    engine = FakeEngine(WHOLE, slots=2)
    decoder = Decoder(engine)
    decode(decoder, Session(engine.info, [*PROMPT[:count], 1, 2], GREEDY, max_tokens=8))
    engine.copy_prefix(0, 1, count)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=20, slot=1, kv_len=count)
    decode(decoder, session)
    assert session.tokens.tolist() == wanted.tokens.tolist()


def test_sessions_of_one_slot_take_turns() -> None:
    """Each finds the caches full of the other's text, and says with kv_len what is still its own."""
    engine = FakeEngine(WHOLE)
    decoder = Decoder(engine, draft_model(WHOLE), FixedLength(3))
    sessions = [Session(engine.info, prompt, GREEDY, max_tokens=20) for prompt in (PROMPT, [*PROMPT[:5], 1])]
    for turn in range(4):
        session = sessions[turn % 2]
        session.kv_len = common_prefix(sessions[0].tokens, sessions[1].tokens) if turn else 0
        for _ in range(2):
            decoder.step(session)
    for session in sessions:
        alone = Session(engine.info, session.tokens[: session.prompt_len], GREEDY, max_tokens=20)
        decode(Decoder(FakeEngine(WHOLE)), alone)
        assert session.tokens.tolist() == alone.tokens[: session.length].tolist()
        assert session.totals.accepted == session.totals.drafted > 0


def test_threshold_is_lossy_and_says_what_it_keeps() -> None:
    """Kept: what the target gives half of its mass at temperature 1. Two drafts cannot both have it."""
    sure = FakeModel(vocab_size=4, scale=1.0)
    text = plain(sure, max_tokens=40).tokens.tolist()
    ids = np.arange(4)
    kept_others = 0
    for threshold in (0.5, 0.2):
        for place in range(len(PROMPT) + 1, len(PROMPT) + 20):
            engine = FakeEngine(sure)
            prompt = text[:place]
            draft = ScriptedDraft(text, wrong_at=[place + 1])
            session = Session(
                engine.info, prompt, SamplingParams(top_k=2), max_tokens=4, policy="threshold", threshold=threshold
            )
            decoder = Decoder(engine, draft, FixedLength(1))
            decoder.prefill(session)
            assert session.tokens[-1] == text[place]
            decoder.step(session)
            logits = sure.logits(sure.digest(session.tokens[: place + 1]), ids).astype(np.float64)
            law = np.exp(logits) / np.exp(logits).sum()
            wrong = text[place + 1] ^ 1
            accepted = law[wrong] >= threshold
            kept_others += int(accepted)
            assert session.totals.accepted == accepted
            assert session.tokens[place + 1] == (wrong if accepted else text[place + 1])
    assert kept_others > 0


@pytest.mark.parametrize("head_mode", [1, 2])
def test_the_threshold_rule_ends_a_verification_early(head_mode: HeadMode) -> None:
    """The first source article's early rejection is the rule itself: no row behind the first cut is read."""
    texts, sure = [], FakeModel(vocab_size=8, scale=2.0)
    for mode in ("batched", head_mode):
        engine = FakeEngine(sure)
        session = Session(engine.info, [1, 2, 3], GREEDY, max_tokens=60, policy="threshold", threshold=0.3)
        steps = decode(Decoder(engine, draft_model(sure, 0.8), FixedLength(5, mode)), session)  # type: ignore[arg-type]
        texts.append(session.tokens.tolist())
        if mode == "batched":
            continue
        assert isinstance(head_mode, int)
        assert any(0 < step.accepted < step.drafted for step in steps)
        for step in steps:
            needed, rows = step.accepted + 1, step.drafted + 1
            assert sum(count for count, _ in step.head_calls) == min(rows, -(-needed // head_mode) * head_mode)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("max_rows", [2, 3, 4, 8])
@pytest.mark.parametrize("k", range(7))
def test_a_step_feeds_whatever_the_cache_lacks(k: int, max_rows: int) -> None:
    """Also a whole prompt, with a draft behind it."""
    wanted = plain(WHOLE, max_tokens=20)
    engine = FakeEngine(WHOLE, max_rows=max_rows)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=20)
    decoder = Decoder(engine, draft_model(WHOLE, max_rows=max_rows), FixedLength(k))
    while session.finish_reason is None:
        decoder.step(session)
        session.kv_len = max(0, session.kv_len - 3)
    assert session.tokens.tolist() == wanted.tokens.tolist()
    assert session.totals.accepted == session.totals.drafted
