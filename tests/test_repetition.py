"""A text that repeats itself: seen once its end is nothing else, and at the same token whatever drafts."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.errors import InputError
from edge_runtime.generation import Generation
from edge_runtime.repetition import LEAST_SPAN, ROUNDS, period
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, ScriptedDraft, decode
from edge_runtime.text.stream import TextStream

GREEDY = SamplingParams(temperature=0.0)
LOOPING = FakeModel(vocab_size=5, order=1, seed=4)
"""What follows a token is always the same, so that a text of five tokens' kinds soon goes round."""
PROMPT = [4, 0, 2]


def slow_period(tokens: list[int], span: int) -> int | None:
    if len(tokens) < span:
        return None
    end = tokens[-span:]
    return next((p for p in range(1, span // ROUNDS + 1) if all(end[i] == end[i - p] for i in range(p, span))), None)


def test_period_of_random_and_of_repeated_texts() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(3000):
        words = rng.integers(0, 3, rng.integers(1, 7)).tolist()
        tokens = rng.integers(0, 3, rng.integers(0, 8)).tolist() + words * int(rng.integers(1, 9))
        tokens = tokens[: len(tokens) - int(rng.integers(0, 3))]
        span = int(rng.integers(LEAST_SPAN, 20))
        wanted = slow_period(tokens, span)
        assert period(np.array(tokens, np.int64), span) == wanted
        found.append(wanted)
    assert {None, 1, 2, 3, 5} <= set(found)


@pytest.mark.parametrize(
    ("tokens", "span", "wanted"),
    [([7] * 9, 9, 1), ([7] * 9, 10, None), ([1, 2, 3] * 3, 9, 3), ([1, 2, 3, 4] * 2, 8, None), ([1] + [2] * 6, 6, 1)],
)
def test_period(tokens: list[int], span: int, wanted: int | None) -> None:
    assert period(np.array(tokens, np.int64), span) == wanted


def plain(count: int = 60) -> list[int]:
    engine = FakeEngine(LOOPING)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=count)
    decode(Decoder(engine), session)
    return session.generated.tolist()


@pytest.mark.parametrize("span", [12, 15, 20, 33])
@pytest.mark.parametrize("k", range(8))
def test_the_answer_ends_where_it_only_repeats_itself(span: int, k: int) -> None:
    text = plain()
    wanted = next(n for n in range(len(text) + 1) if slow_period(text[:n], span) is not None)
    assert wanted < len(text), "the model loops"
    engine = FakeEngine(LOOPING)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=60, repeat_limit=span)
    stream = TextStream(lambda token: bytes([65 + token]))
    made = Generation(Decoder(engine, ScriptedDraft([*PROMPT, *text]), FixedLength(k)), session, stream)
    pieces = list(made)
    result = made.result()
    assert list(result.tokens) == text[:wanted] == [token for piece in pieces for token in piece.tokens]
    assert len(session.logprobs) == wanted and session.kv_len <= session.length
    assert result.finish_reason == pieces[-1].finish_reason == "length"
    assert f"the last {span} tokens only repeat themselves" in result.reason
    # Taken up again behind a cut, it is a text like any other.
    session.cut(session.prompt_len + 2)
    assert session.repetition == ""


def test_the_end_of_text_and_stop_strings_come_first() -> None:
    text = plain()
    wanted = next(n for n in range(len(text) + 1) if slow_period(text[:n], 12) is not None)
    for k in (0, 5):
        for eos, stops in (([], (bytes(65 + token for token in text[: wanted - 1]).decode()[-9:],)), ([], ())):
            engine = FakeEngine(LOOPING)
            session = Session(engine.info, PROMPT, GREEDY, max_tokens=60, repeat_limit=12, eos_ids=eos)
            stream = TextStream(lambda token: bytes([65 + token]), stops)
            made = Generation(Decoder(engine, ScriptedDraft([*PROMPT, *text]), FixedLength(k)), session, stream)
            list(made)
            result = made.result()
            assert result.finish_reason == ("stop" if stops else "length")
            assert ("repeat" in result.reason) == (not stops)


def test_it_is_off_by_default_and_refuses_what_is_no_span() -> None:
    assert len(plain(100)) == 100
    with pytest.raises(InputError) as caught:
        Session(FakeEngine(LOOPING).info, PROMPT, GREEDY, repeat_limit=LEAST_SPAN - 1)
    assert caught.value.param == "repeat_limit"
