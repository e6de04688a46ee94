"""Log-probabilities for the API: the model's own, whatever was asked of the law, and plain decoding's at any K."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.errors import InputError
from edge_runtime.generation import Generation, Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, FakeModel
from edge_runtime.text.stream import TextStream

PROMPT = [5, 9, 2, 10]
MODEL = FakeModel()
LAWS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.4, top_k=3),
]
SHAPE = ShapingParams(frequency_penalty=1.0, logit_bias={4: 3.0})


def spell(token: int) -> bytes:
    return chr(0x100 + token).encode()


def run(
    params: SamplingParams, k: int, top: int | None, stops: tuple[str, ...] = (), shape: ShapingParams | None = None
) -> tuple[Generation, list[Piece]]:
    engine = FakeEngine(MODEL)
    draft = DraftModel(FakeEngine(FakeModel(agreement=0.9)), engine.info)
    session = Session(
        engine.info, PROMPT, params, seed=3, max_tokens=25, top_logprobs=top, shaping=shape or ShapingParams()
    )
    made = Generation(Decoder(engine, draft, FixedLength(k)), session, TextStream(spell, stops))
    return made, list(made)


def flat(pieces: list[Piece]) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    out = []
    for piece in pieces:
        assert piece.top is not None
        out += list(zip(piece.tokens, piece.logprobs, piece.top, strict=True))
    return out


@pytest.mark.parametrize("params", LAWS, ids=str)
@pytest.mark.parametrize("top", [0, 1, 5, 8])
def test_they_are_the_models_own(params: SamplingParams, top: int) -> None:
    made, pieces = run(params, 0, top, shape=SHAPE)
    ids = np.arange(MODEL.vocab_size)
    text = made.session.tokens
    for place, (token, logprob, best) in enumerate(flat(pieces), start=len(PROMPT)):
        logits = MODEL.logits(MODEL.digest(text[:place]), ids).astype(np.float64)
        law = logits - np.log(np.exp(logits).sum())
        assert logprob == pytest.approx(law[token], abs=1e-5)
        order = np.argsort(-law, kind="stable")[:top].tolist()
        assert [one for one, _ in best] == order
        assert [value for _, value in best] == pytest.approx(law[order].tolist(), abs=1e-5)
    assert made.session.logprobs.tolist() == [logprob for _, logprob, _ in flat(pieces)]


@pytest.mark.parametrize("params", LAWS, ids=str)
@pytest.mark.parametrize("shape", [ShapingParams(), SHAPE], ids=str)
def test_they_are_plain_decodings_at_any_k(params: SamplingParams, shape: ShapingParams) -> None:
    wanted = flat(run(params, 0, 5, shape=shape)[1])
    for k in range(1, 8):
        made, pieces = run(params, k, 5, shape=shape)
        assert flat(pieces) == wanted
        assert made.session.totals.accepted > 0


@pytest.mark.parametrize("first", range(1, 12))
def test_a_stop_string_inside_accepted_tokens_cuts_all_together(first: int) -> None:
    answer = run(LAWS[0], 0, 2)[0].session.generated.tolist()
    stop = b"".join(map(spell, answer[first : first + 2])).decode()
    wanted = flat(run(LAWS[0], 0, 2, (stop,))[1])
    assert len(wanted) == first + 2
    for k in range(1, 8):
        made, pieces = run(LAWS[0], k, 2, (stop,))
        assert flat(pieces) == wanted
        assert made.session.generated.tolist() == answer[: first + 2]
        assert len(made.session.logprobs) == first + 2


def test_who_does_not_ask_gets_those_of_the_request() -> None:
    for params in LAWS:
        made, pieces = run(params, 3, None)
        assert all(piece.top is None for piece in pieces)
        asked, _ = run(params, 3, 0)
        same = params.inverse_temperature == 1.0
        assert (made.session.logprobs.tolist() == asked.session.logprobs.tolist()) == same


@pytest.mark.parametrize("top", [-1, 9, 21])
def test_more_than_the_candidates_is_refused(top: int) -> None:
    with pytest.raises(InputError) as caught:
        Session(FakeEngine(MODEL).info, PROMPT, LAWS[0], top_logprobs=top)
    assert caught.value.param == "top_logprobs"
    with pytest.raises(InputError):
        Session(FakeEngine(MODEL, candidates=40).info, PROMPT, LAWS[0], top_logprobs=21)
