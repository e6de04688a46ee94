"""What is counted of drafting, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge_runtime.calibration import Calibration, calibrated
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.errors import InputError
from edge_runtime.generation import Generation, SourceFigures
from edge_runtime.health import Drafted, notes
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.tally import Tally
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, ScriptedDraft, decode
from edge_runtime.text.stream import TextStream

GREEDY = SamplingParams(temperature=0.0)
MODEL = FakeModel()
PROMPT = [5, 9, 2, 40]
GOOD = Drafted(100, 200, 150, 160, -60.0, 1.0, 3.0, 0.2)


def plain(count: int) -> list[int]:
    engine = FakeEngine(MODEL)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=count)
    decode(Decoder(engine), session)
    return session.tokens.tolist()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ()),
        ({"accepted": 90}, ("acceptance 45%, below 50%",)),
        ({"log_likelihood": -160.0}, ("mean log-likelihood of drafts -1.00, below -0.8",)),
        ({"draft_s": 4.0}, ("56% of the time goes into drafting, above 50%",)),
        ({"accepted": 0, "log_likelihood": -999.0, "draft_s": 99.0}, ("acceptance 0%", "mean log", "97% of the time")),
        # Too little was seen to say so.
        ({"drafted": 20, "accepted": 0}, ()),
        ({"scored": 20, "log_likelihood": -99.0}, ()),
        ({"steps": 9, "draft_s": 99.0}, ()),
    ],
)
def test_notes_are_made_at_the_marks(change: dict[str, float], words: tuple[str, ...]) -> None:
    found = notes(replace(GOOD, **change))
    assert len(found) == len(words)
    for line, start in zip(found, words, strict=True):
        assert line.startswith(start)


def test_nothing_drafted_is_nothing_to_note() -> None:
    nothing = Drafted()
    assert (nothing.acceptance_rate, nothing.mean_log_likelihood, nothing.shares) == (None, None, None)
    assert notes(nothing) == ()


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(0.7), SamplingParams(0.7, top_k=5)], ids=str)
@pytest.mark.parametrize("head_mode", ["batched", 2])
def test_the_likelihood_of_drafts_is_the_targets(params: SamplingParams, head_mode: int) -> None:
    """Of those that were judged, the rejected one included, which may lie far behind the candidates."""
    engine = FakeEngine(MODEL)
    text = plain(40)
    drafter = ScriptedDraft(text, wrong_at=range(6, 40, 5))
    session = Session(engine.info, PROMPT, params, max_tokens=30, rng=np.random.default_rng(2))
    wanted, scored = 0.0, 0
    ids = np.arange(MODEL.vocab_size)
    steps = decode(Decoder(engine, drafter, FixedLength(3, head_mode)), session)  # type: ignore[arg-type]
    length = len(PROMPT)
    for step in steps:
        drafted = drafter._text[length : length + step.drafted].tolist()
        before = session.tokens[:length].tolist()
        for token in drafted[: step.accepted + 1]:
            logits = MODEL.logits(MODEL.digest(np.array(before)), ids).astype(np.float64) * params.inverse_temperature
            wanted += float(logits[token] - np.log(np.exp(logits).sum()))
            before.append(token)
            scored += 1
        length += len(step.tokens)
    assert session.totals.scored == scored > 10
    assert session.totals.draft_log_likelihood == pytest.approx(wanted, abs=1e-3)


def test_sources_are_counted_apart() -> None:
    engine = FakeEngine(MODEL)
    text = plain(60)[len(PROMPT) :]
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=50, prediction=[*text[:20], 1, 2, 3, 1])
    made = Generation(
        Decoder(engine, DraftModel(FakeEngine(MODEL), engine.info), FixedLength(3)), session, TextStream(lambda _: b"x")
    )
    tally = Tally()
    while made.finish_reason is None:
        before = made.last
        made.turn()
        if made.last is not before and made.last is not None and made.last.reason != "prefill":
            tally.step(made.last)
    result = made.result()
    assert {one.source for one in result.sources} == {"prediction", "draft_model"}
    assert sum(one.drafted for one in result.sources) == result.drafted
    assert sum(one.accepted for one in result.sources) == result.accepted
    assert result.sources[0].drafted >= result.sources[1].drafted
    shares = result.drafting.shares
    assert shares is not None and sum(shares) == pytest.approx(1.0)
    told = tally.speculation()
    assert [(one.source, one.draft_tokens, one.accepted_tokens) for one in told.sources] == [
        (one.source, one.drafted, one.accepted) for one in result.sources
    ]
    assert told.draft_mean_log_likelihood == result.drafting.mean_log_likelihood
    assert (told.notes, told.draft_share) == (result.notes, shares[0])
    assert isinstance(result.sources[0], SourceFigures)


# --- acceptance by name


def test_exact_takes_what_the_target_draws_and_sampled_accepts_more() -> None:
    params, rates, texts = SamplingParams(top_k=8), {}, {}
    for policy in ("lossless", "sampled", "exact"):
        engine = FakeEngine(MODEL, capacity=320)
        draft = DraftModel(FakeEngine(replace(MODEL, agreement=0.8), capacity=320), engine.info)
        session = Session(engine.info, PROMPT, params, rng=np.random.default_rng(5), policy=policy)  # type: ignore[arg-type]
        decode(Decoder(engine, draft, FixedLength(1)), session)
        rates[policy] = session.totals.accepted / session.totals.drafted
        texts[policy] = session.generated.tolist()
    assert texts["lossless"] == texts["sampled"]
    assert 0.1 < rates["exact"] < rates["sampled"] - 0.1


def test_greedy_requests_are_the_same_under_every_lossless_rule() -> None:
    engine = FakeEngine(MODEL)
    for policy in ("lossless", "exact", "sampled"):
        session = Session(engine.info, PROMPT, GREEDY, max_tokens=20, seed=1, policy=policy)  # type: ignore[arg-type]
        draft = DraftModel(FakeEngine(replace(MODEL, agreement=0.7)), engine.info)
        decode(Decoder(engine, draft, FixedLength(3)), session)
        assert session.tokens.tolist() == plain(20)


def test_a_seeded_text_is_not_sampled_from_its_drafts() -> None:
    with pytest.raises(InputError, match="policy sampled") as caught:
        Session(FakeEngine(MODEL).info, PROMPT, SamplingParams(), seed=3, policy="sampled")
    assert caught.value.param == "seed"


# --- how far a draft is trusted


def test_a_calibration_starts_by_believing_and_learns_monotonely() -> None:
    state = Calibration()
    for probability in np.linspace(0.02, 0.98, 25).tolist():
        assert state.chance(probability) == pytest.approx(probability, abs=0.02)
    rng = np.random.default_rng(1)
    for _ in range(3000):
        # Too sure of itself: kept half as often as it says.
        said = rng.random(3)
        kept = int(np.argmin([*(rng.random(3) < 0.5 * said), False]))
        state = calibrated(state, said.tolist(), kept)
    levels = [state.chance(one) for one in np.linspace(0.0, 1.0, 50).tolist()]
    assert levels == sorted(levels)
    for probability in (0.3, 0.5, 0.7, 0.9):
        assert state.chance(probability) == pytest.approx(0.5 * probability, abs=0.08)


def test_what_was_not_judged_teaches_nothing() -> None:
    state = calibrated(Calibration(), [0.9, 0.1, 0.99], 0)
    assert state == calibrated(Calibration(), [0.9], 0) and calibrated(state, [], 0) == state
