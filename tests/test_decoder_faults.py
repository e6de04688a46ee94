"""What goes wrong around the decoder: engines that fail, callers that leave, requests that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.errors import EngineError, InputError, PromptTooLong
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, FaultyDrafter, FaultyEngine, ScriptedDraft, decode
from edge_runtime.testing.faults import (
    DRAFT_FAULTS,
    FIELD_FAULTS,
    HEAD_FAULTS,
    LAW_FAULTS,
    ROW_FAULTS,
    SECRET,
    DraftFault,
    EngineFault,
)
from edge_runtime.verification import Row

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [5, 9, 2, 40, 5, 9, 2]
WHOLE = FakeModel()


def plain(max_tokens: int, params: SamplingParams = GREEDY, seed: int | None = None) -> Session:
    engine = FakeEngine(WHOLE)
    session = Session(engine.info, PROMPT, params, seed=seed, max_tokens=max_tokens)
    decode(Decoder(engine), session)
    return session


def self_draft(engine: FakeEngine) -> DraftModel:
    return DraftModel(FakeEngine(WHOLE), engine.info)


@pytest.mark.parametrize("fail_after", range(14))
@pytest.mark.parametrize("who", ["target", "draft"])
def test_engine_failure_leaves_the_session_able_to_go_on(who: str, fail_after: int) -> None:
    for params, seed in ((GREEDY, None), (SamplingParams(top_k=8), 4)):
        wanted = plain(30, params, seed)
        engine, draft_engine = FakeEngine(WHOLE, max_rows=4), FakeEngine(WHOLE, max_rows=4)
        decoder = Decoder(engine, DraftModel(draft_engine, engine.info), FixedLength(3, 2))
        session = Session(engine.info, PROMPT, params, seed=seed, max_tokens=30)
        (engine if who == "target" else draft_engine).fail_after = fail_after
        with pytest.raises(EngineError) as caught:
            decode(decoder, session)
        assert session.kv_len <= session.length
        assert session.finish_reason is None
        assert session.asks_drafter == (who == "draft")
        if fail_after % 2:
            assert decoder.goes_on_without(session, caught.value) == (who == "draft")
        decode(decoder, session)
        assert session.tokens.tolist() == wanted.tokens.tolist()
        assert session.totals.accepted == session.totals.drafted


@pytest.mark.parametrize(
    ("params", "seed"),
    [(GREEDY, None), (SamplingParams(), None), (SamplingParams(top_k=4), None), (SamplingParams(), 1)],
)
def test_rows_that_are_not_finite_are_an_error(params: SamplingParams, seed: int | None) -> None:
    engine = FakeEngine(WHOLE)
    decoder = Decoder(engine, self_draft(engine), FixedLength(3))
    session = Session(engine.info, PROMPT, params, seed=seed, max_tokens=20)
    decoder.prefill(session)
    engine.broken_rows = True
    with pytest.raises(EngineError, match="not usable"):
        decoder.step(session)
    assert session.length == len(PROMPT) + 1


@pytest.mark.parametrize("fail_after", range(14))
def test_a_turn_that_failed_may_be_repeated(fail_after: int) -> None:
    wanted = plain(20)
    engine = FakeEngine(WHOLE, max_rows=2)
    decoder = Decoder(engine, self_draft(engine), FixedLength(1))
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=20)
    engine.fail_after = fail_after
    failures = 0
    while session.finish_reason is None:
        before = (session.length, session.kv_len)
        try:
            decoder.advance(session)
        except EngineError:
            failures += 1
            assert (session.length, session.kv_len) == before
    assert failures == 1
    assert session.tokens.tolist() == wanted.tokens.tolist()


def test_progress_may_stop_a_prefill() -> None:
    engine = FakeEngine(WHOLE, max_rows=2)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=5)

    def leave(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Decoder(engine).prefill(session, leave)
    assert session.kv_len == 4
    engine.calls.clear()
    decode(Decoder(engine), session)
    assert session.tokens.tolist() == plain(5).tokens.tolist()
    assert sum(engine.rows_of("forward")) == len(PROMPT) - 4 + 4


def test_cut_takes_tokens_logprobs_and_cache_back() -> None:
    engine = FakeEngine(WHOLE)
    decoder = Decoder(engine, self_draft(engine), FixedLength(4))
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=30)
    decode(decoder, session)
    wanted = session.tokens.tolist()
    for length in (session.length, len(PROMPT) + 7, len(PROMPT) + 1, len(PROMPT)):
        session.cut(length)
        session.finish_reason = None
        assert len(session.logprobs) == len(session.generated) == length - len(PROMPT)
        assert session.kv_len <= length
        if length < len(wanted):
            decode(decoder, session)
        assert session.tokens.tolist() == wanted
    with pytest.raises(ValueError, match="cannot cut"):
        session.cut(len(PROMPT) - 1)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ([], {}, InputError),
        ([1] * 16, {}, PromptTooLong),
        ([1, 64], {}, InputError),
        ([1, -1], {}, InputError),
        ([1], {"max_tokens": 0}, InputError),
        ([1], {"kv_len": 2}, InputError),
        ([1], {"threshold": 0.0}, InputError),
    ],
)
def test_sessions_refuse(prompt: list[int], options: dict[str, int], error: type[InputError]) -> None:
    with pytest.raises(error):
        Session(FakeEngine(WHOLE, capacity=16).info, prompt, GREEDY, **options)  # type: ignore[arg-type]


def test_a_drafter_that_breaks_its_promises_is_named() -> None:
    engine = FakeEngine(WHOLE)
    for text in ([64] * 40, [-1] * 40):
        drafter = ScriptedDraft(text)
        session = Session(engine.info, PROMPT, GREEDY)
        decoder = Decoder(engine, drafter, FixedLength(2))
        decoder.prefill(session)
        with pytest.raises(EngineError, match="scripted proposed a token outside") as caught:
            decoder.step(session)
        assert session.length == len(PROMPT) + 1
        assert decoder.goes_on_without(session, caught.value)
        assert "scripted proposed a token outside" in decoder.step(session).reason


@pytest.mark.parametrize("fault", DRAFT_FAULTS + LAW_FAULTS, ids=lambda fault: f"{fault.at}: {fault.name}")
@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SamplingParams(top_k=8), 4), (SamplingParams(), 4)])
def test_a_drafter_that_fails_costs_drafts_and_no_text(
    fault: DraftFault, params: SamplingParams, seed: int | None
) -> None:
    engine = FakeEngine(WHOLE)
    drafter = FaultyDrafter(self_draft(engine))
    decoder = Decoder(engine, drafter, FixedLength(3))
    session = Session(engine.info, PROMPT, params, seed=seed, max_tokens=30)
    decoder.prefill(session)
    assert decoder.step(session).drafted == 3
    drafter.inject(fault)
    steps = []
    while session.finish_reason is None:
        assert drafter.happened < 2, "it is not asked again for this text"
        caught: list[Exception] = []
        try:
            steps.append(decoder.step(session))
        except Exception as problem:  # noqa: BLE001 - as a scheduler does it
            caught.append(problem)
        # It is told once.
        assert [(decoder.goes_on_without(session, one), decoder.goes_on_without(session, one)) for one in caught] in (
            [], [(True, False)],
        )  # fmt: skip
    assert session.tokens.tolist() == plain(30, params, seed).tokens.tolist()
    assert drafter.happened == 1
    assert fault.says in session.undrafted and fault.says in steps[-1].reason and SECRET not in session.undrafted


def test_a_step_is_not_drawn_anew_for_a_drafter_that_fails_behind_it() -> None:
    """A drafter may fail by what was kept of it: were the step taken again, the text would hang on that."""
    texts = []
    for fails in (False, True):
        engine = FakeEngine(WHOLE)
        drafter = FaultyDrafter(self_draft(engine))
        decoder = Decoder(engine, drafter, FixedLength(3))
        session = Session(engine.info, PROMPT, SamplingParams(), max_tokens=30, rng=np.random.default_rng(5))
        decoder.prefill(session)
        if fails:
            drafter.inject(next(fault for fault in DRAFT_FAULTS if fault.at == "observe"))
        texts.append((decoder.step(session).tokens, session.tokens.tolist()))
        assert bool(session.undrafted) == fails
    assert texts[0] == texts[1]


HEADS = [(fault, GREEDY, "batched") for fault in HEAD_FAULTS] + [(fault, SamplingParams(), 1) for fault in HEAD_FAULTS]
ROWS = [(fault, SamplingParams(top_p=0.999), "batched") for fault in ROW_FAULTS]


@pytest.mark.parametrize(
    ("fault", "params", "head_mode", "skip"),
    [(*one, skip) for one in HEADS + ROWS for skip in (0, 1, 3)]
    + [(fault, GREEDY, mode, 2) for fault in FIELD_FAULTS for mode in ("batched", 1)],
)
def test_what_an_engine_hands_out_is_looked_at_before_a_token_is_made_of_it(
    fault: EngineFault, params: SamplingParams, head_mode: Literal["batched"] | int, skip: int
) -> None:
    engine = FaultyEngine(WHOLE)
    decoder = Decoder(engine, self_draft(engine), FixedLength(3, head_mode))
    session = Session(engine.info, PROMPT, params, seed=3, max_tokens=60)
    engine.inject(fault, skip)
    with pytest.raises((EngineError, MemoryError), match=None if fault.says == "MemoryError" else fault.says):
        decode(decoder, session)
    # A step that failed has left nothing behind.
    decode(decoder, session)
    assert session.tokens.tolist() == plain(60, params, 3).tokens.tolist()


@pytest.mark.parametrize(
    "ask",
    [
        lambda row: row.draw(0.9999999),
        lambda row: row.residual(0.5, 1, None),
        lambda row: row.raw_logprobs(1, 2),
        lambda row: row.law(SamplingParams()),
    ],
)
def test_a_whole_row_is_looked_at_whoever_asks_for_it(ask: Callable[[Row], object]) -> None:
    engine = FaultyEngine(WHOLE, candidates=2)
    engine.forward(StepInput(0, np.array(PROMPT, np.int64), 0, None))
    head = engine.head(HeadRequest(len(PROMPT) - 1, len(PROMPT), 0.5))
    engine.inject(next(fault for fault in ROW_FAULTS if fault.spoils_row is not None))
    with pytest.raises(EngineError, match="not usable"):
        ask(Row(engine, head, 0, 0.5, np.zeros((2, WHOLE.vocab_size))))
