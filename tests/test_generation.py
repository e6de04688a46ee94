"""From session to text: stop strings inside accepted drafts, consumers that leave, and the figures."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from edge_runtime.cost import CostTable
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.engines.protocol import Floats, Ids
from edge_runtime.errors import EngineError
from edge_runtime.generation import Generation, GenerationResult, Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, ManualClock, ScriptedDraft
from edge_runtime.text.stream import TextStream

GREEDY = SamplingParams(temperature=0.0)
MODEL = FakeModel()
PROMPT = [5, 9, 2, 40]


class Letters:
    """A letter per token; stop strings are held back while they may still come."""

    def __init__(self, *stops: str) -> None:
        self._stops, self._held, self.stopped = stops, "", False

    def push(self, token: int) -> str:
        assert not self.stopped, "nothing is pushed behind a stop"
        self._held += chr(0x100 + token)
        for stop in self._stops:
            if stop in self._held:
                text, self.stopped = self._held[: self._held.index(stop)], True
                return text
        keep = max((n for s in self._stops for n in range(1, len(s)) if self._held.endswith(s[:n])), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


def spell(tokens: list[int]) -> str:
    return "".join(chr(0x100 + token) for token in tokens)


def plain(count: int = 40) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(MODEL.logits(MODEL.digest(np.array(tokens)), np.arange(64)).argmax()))
    return tokens


TEXT = plain()
ANSWER = TEXT[len(PROMPT) :]


def generation(k: int, *stops: str, eos: int | None = None, max_tokens: int = 20, wrong: int = 6) -> Generation:
    engine = FakeEngine(MODEL)
    drafter = ScriptedDraft(TEXT, wrong_at=[len(PROMPT) + wrong])
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=max_tokens, eos_ids=[] if eos is None else [eos])
    return Generation(Decoder(engine, drafter, FixedLength(k)), session, Letters(*stops))


def run(generation: Generation) -> tuple[list[Piece], GenerationResult]:
    pieces = list(generation)
    return pieces, generation.result()


@pytest.mark.parametrize("k", range(6))
def test_pieces_add_up(k: int) -> None:
    pieces, result = run(generation(k))
    assert result.text == "".join(piece.text for piece in pieces) == spell(ANSWER[:20])
    assert result.tokens == tuple(t for piece in pieces for t in piece.tokens) == tuple(ANSWER[:20])
    assert result.finish_reason == pieces[-1].finish_reason == "length"
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    logprobs = [logprob for piece in pieces for logprob in piece.logprobs]
    assert result.mean_log_likelihood == pytest.approx(sum(logprobs) / 20)


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize(("first", "size"), list(itertools.product(range(12), (1, 2, 3))))
def test_a_stop_string_cuts_text_ids_logprobs_and_cache(k: int, first: int, size: int) -> None:
    stop = spell(ANSWER[first : first + size])
    first = spell(ANSWER).index(stop)
    made = generation(k, stop)
    pieces, result = run(made)
    session = made.session
    assert result.text == spell(ANSWER[:first])
    # The token that completes the stop string is the last, as in plain decoding.
    assert result.tokens == tuple(ANSWER[: first + size])
    assert result.tokens == tuple(t for piece in pieces for t in piece.tokens)
    assert len(session.logprobs) == first + size == sum(len(piece.logprobs) for piece in pieces)
    assert session.kv_len <= session.length == len(PROMPT) + first + size
    assert result.finish_reason == session.finish_reason == pieces[-1].finish_reason == "stop"


def test_decoding_goes_on_rightly_behind_a_stop() -> None:
    for k in range(6):
        made = generation(k, spell(ANSWER[3:5]))
        run(made)
        made.session.finish_reason = None
        again = Generation(made._decoder, made.session, Letters())
        list(again)
        assert made.session.tokens.tolist() == TEXT[: len(PROMPT) + 20]


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("index", range(10))
def test_the_end_token_is_no_text(k: int, index: int) -> None:
    eos = ANSWER[index]
    index = ANSWER.index(eos)
    _, result = run(generation(k, eos=eos))
    assert result.text == spell(ANSWER[:index])
    assert result.tokens == tuple(ANSWER[: index + 1])
    assert result.finish_reason == "stop"


def test_what_a_stop_string_held_back_comes_at_the_end() -> None:
    stop = spell([ANSWER[19], 63, 63])  # its start is the last token
    _, result = run(generation(3, stop))
    assert result.text == spell(ANSWER[:20]) and result.finish_reason == "length"
    _, result = run(generation(3, spell([ANSWER[4], 63]), eos=ANSWER[5]))
    assert result.text == spell(ANSWER[:5]) and result.finish_reason == "stop"


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("taken", range(8))
def test_a_consumer_may_leave_and_come_back(k: int, taken: int) -> None:
    made = generation(k)
    pieces = iter(made)
    for _ in range(taken):
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    session = made.session
    assert session.kv_len <= session.length
    assert made.result().tokens == tuple(ANSWER[: session.length - len(PROMPT)])
    assert made.result().text == spell(list(made.result().tokens))
    _, result = run(made)
    assert result.text == spell(ANSWER[:20]) and result.tokens == tuple(ANSWER[:20])


@pytest.mark.parametrize("k", [0, 3])
def test_turns_are_pieces_and_chunks(k: int) -> None:
    engine = FakeEngine(MODEL, max_rows=4)
    told: list[tuple[int, int]] = []
    session = Session(engine.info, TEXT[:14], GREEDY, max_tokens=10)
    decoder = Decoder(engine, ScriptedDraft(TEXT), FixedLength(k))
    made = Generation(decoder, session, Letters(), progress=lambda done, of: told.append((done, of)))
    pieces = []
    while made.finish_reason is None:
        pieces.append(made.turn())
    assert pieces[:4] == [None, None, None, pieces[3]] and None not in pieces[3:]
    assert told == [(4, 14), (8, 14), (12, 14), (14, 14)]
    assert made.result().text == "".join(piece.text for piece in pieces if piece) == spell(TEXT[14:24])
    assert made.result().ttft_s is not None
    with pytest.raises(ValueError, match="finished"):
        made.turn()


@pytest.mark.parametrize("place", [8, 14])
def test_progress_that_raises_loses_no_text(place: int) -> None:
    def leave(done: int, total: int) -> None:
        if done == place:
            raise KeyboardInterrupt

    engine = FakeEngine(MODEL, max_rows=4)
    session = Session(engine.info, TEXT[:14], GREEDY, max_tokens=10)
    made = Generation(Decoder(engine), session, Letters(), progress=leave)
    with pytest.raises(KeyboardInterrupt):
        list(made)
    assert made.result().tokens == tuple(TEXT[14 : session.length])
    assert made.result().text == spell(TEXT[14 : session.length])
    made = Generation(made._decoder, session, Letters())
    list(made)
    assert session.tokens.tolist() == TEXT[:24]


def test_a_failure_in_the_middle_can_be_taken_up() -> None:
    made = generation(3)
    engine = made._decoder.target
    assert isinstance(engine, FakeEngine)
    engine.fail_after = 5
    with pytest.raises(EngineError):
        list(made)
    _, result = run(made)
    assert result.text == spell(ANSWER[:20])


@pytest.mark.parametrize("k", range(6))
def test_characters_and_stops_that_span_tokens_and_steps(k: int) -> None:
    """The real stream, with every character cut into single bytes."""
    wanted = "à€😀 né"
    pieces = {token: bytes([byte]) for token, byte in enumerate(wanted.encode())}
    prompt, answer = [60], list(pieces)
    for stops, text in (((), wanted), (("😀 n",), "à€")):
        # A model whose order is one token: token t is followed by t + 1.
        engine = FakeEngine(_Counting())
        drafter = ScriptedDraft([*prompt, *answer, *range(len(answer), 40)])
        session = Session(engine.info, prompt, GREEDY, max_tokens=len(answer))
        made = Generation(Decoder(engine, drafter, FixedLength(k)), session, TextStream(pieces.__getitem__, stops))
        parts = [piece.text for piece in made]
        assert "".join(parts) == made.result().text == text
        assert "\ufffd" not in text
        count = len(answer) if not stops else wanted.encode().index(b" n") + 2
        assert made.result().tokens == tuple(answer[:count])


class _Counting(FakeModel):
    def logits(self, digest: int, ids: Ids) -> Floats:
        return (8.0 * (ids == digest)).astype(np.float32)

    def extend(self, digest: int, token: int) -> int:
        return 0 if token == 60 else token + 1


def test_the_figures() -> None:
    clock = ManualClock()
    cost = CostTable(body_s=(0.010, 0.011, 0.012, 0.013), head_s=(0.001, 0.002, 0.003, 0.004), draft_s=0.0)
    target = FakeEngine(MODEL, clock=clock, cost=cost)
    draft = FakeEngine(MODEL, clock=clock, cost=CostTable(body_s=(0.002,), head_s=(0.0,), draft_s=0.0))
    decoder = Decoder(target, DraftModel(draft, target.info), FixedLength(3), clock=clock)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=10)
    told: list[int] = []
    made = Generation(decoder, session, Letters(), clock=clock, progress=lambda done, of: told.append(done))
    empty = made.result()
    assert (empty.tokens, empty.text, empty.ttft_s, empty.tpot_s, empty.mean_log_likelihood) == (
        (),
        "",
        None,
        None,
        None,
    )
    for _ in made:
        clock.advance(5.0)  # a slow consumer is no cost of ours
    result = made.result()
    prefill_s = cost.body(4) + cost.head(1)
    # Prefill gives one token; steps of three drafts give 4 and 4, and one token is left, for which nothing is drafted.
    draft_s = 0.002 + 6 * 0.002
    verify_s = 2 * (0.013 + 0.004) + 0.011
    assert told == [4]
    assert result.prefill_s == result.ttft_s == pytest.approx(prefill_s)
    assert result.draft_s == pytest.approx(draft_s)
    assert result.verify_s == pytest.approx(verify_s)
    assert result.overhead_s == pytest.approx(0.0)
    assert result.tpot_s == pytest.approx((draft_s + verify_s) / 9)
    assert (result.steps, result.drafted, result.accepted) == (3, 6, 6)
    assert (result.acceptance_rate, result.acceptance_length, result.accepted_length) == (1.0, 3.0, 2.0)
    assert result.acceptance_by_position == (1.0, 1.0, 1.0)
    assert result.steps_by_drafted == (1, 0, 0, 2)
    assert (result.drafter, result.reason, result.prompt_tokens) == ("draft_model", "fixed K=3", 4)
