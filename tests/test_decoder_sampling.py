"""Sampled requests: one text per seed whatever drafts, and without a seed exactly the target's law."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from edge_runtime.acceptance import recover
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import DraftContext, Drafter, DraftProposal
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.sampling import Distribution, SamplingParams, law_from_logits
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, decode
from edge_runtime.verification import Row

PROMPT = [5, 9, 2, 10, 5, 9, 2]
MODEL = FakeModel()
SMALL = FakeModel(vocab_size=6, scale=0.7)
LAWS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.3, top_k=5),
    SamplingParams(temperature=0.9, top_k=30),  # more than the candidates
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=2.0, top_p=0.99),  # mostly beyond the candidates
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.0, top_k=8, top_p=0.9, min_p=0.02),
]


def other(model: FakeModel, agreement: float) -> FakeModel:
    return FakeModel(model.vocab_size, model.seed, model.order, model.scale, agreement)


def seeded(params: SamplingParams, seed: int, drafter: Drafter | None, k: int, head_mode: int | None = None) -> Session:
    engine = FakeEngine(MODEL)
    session = Session(engine.info, PROMPT, params, seed=seed, max_tokens=30)
    decode(Decoder(engine, drafter, FixedLength(k, head_mode or "batched")), session)
    return session


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_what_takes_the_place_of_a_draft_is_the_residuals_token(temperature: float) -> None:
    """Made in the row's own buffers, against the law and its residual made as a whole."""
    engine, params = FakeEngine(MODEL), SamplingParams(temperature=temperature)
    head = engine.forward(StepInput(0, np.array(PROMPT), 0, HeadRequest(3, 7, params.inverse_temperature))).head
    assert head is not None
    scratch = np.full((2, MODEL.vocab_size), np.nan)
    for index in range(4):
        row = Row(engine, head, index, params.inverse_temperature, scratch)
        target = law_from_logits(engine.logits(index), params)
        broad = law_from_logits(engine.logits((index + 1) % 4), SamplingParams(temperature=5.0))
        for draft, law in ((int(row.argmax), None), (3, None), (3, broad), (3, Distribution.one_hot(3)), (3, target)):
            for uniform in (0.0, 0.01, 0.3, 0.5, 0.77, 0.999):
                assert row.residual(uniform, draft, law) == recover(target, law, draft, uniform)


@pytest.mark.parametrize("params", LAWS, ids=str)
def test_a_seed_gives_one_text_at_any_k_and_with_any_drafter(params: SamplingParams) -> None:
    wanted = seeded(params, 7, None, 0)
    info = FakeEngine(MODEL).info
    for agreement, k, head_mode in itertools.product((1.0, 0.6, -1.0), (1, 4), (None, 2)):
        session = seeded(params, 7, DraftModel(FakeEngine(other(MODEL, agreement)), info), k, head_mode)
        assert session.tokens.tolist() == wanted.tokens.tolist()
        assert session.logprobs == pytest.approx(wanted.logprobs, abs=1e-6)
    assert seeded(params, 7, PromptLookup(), 3).tokens.tolist() == wanted.tokens.tolist()
    assert seeded(params, 8, None, 0).tokens.tolist() != wanted.tokens.tolist()


@pytest.mark.parametrize("params", [params for params in LAWS if params.top_k in (5, 8)], ids=str)
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_model_that_drafts_for_itself_is_fully_accepted(params: SamplingParams, seed: int | None, k: int) -> None:
    """Where the candidates hold the whole law, so that both sides know it exactly."""
    engine = FakeEngine(MODEL)
    session = Session(engine.info, PROMPT, params, seed=seed, rng=np.random.default_rng(5))
    decode(Decoder(engine, DraftModel(FakeEngine(MODEL), engine.info), FixedLength(k)), session)
    assert session.totals.accepted == session.totals.drafted > 0
    # A full row was never needed.
    assert engine.rows_of("logits") == []


@pytest.mark.parametrize("seed", [None, 7])
def test_unfiltered_self_draft_loses_only_what_the_candidates_lack(seed: int | None) -> None:
    model = FakeModel(scale=4.0)
    engine = FakeEngine(model, capacity=512, candidates=16)
    draft = DraftModel(FakeEngine(model, capacity=512, candidates=16), engine.info)
    session = Session(engine.info, PROMPT, SamplingParams(), seed=seed, rng=np.random.default_rng(5))
    decode(Decoder(engine, draft, FixedLength(3)), session)
    assert session.totals.accepted / session.totals.drafted > 0.97


def test_shared_noise_agrees_more_than_chance() -> None:
    """Acceptance of a seeded draft: near the maximal coupling's, which is the best there is."""
    rates = {}
    for seed in (None, 7):
        engine = FakeEngine(MODEL, capacity=512)
        draft = DraftModel(FakeEngine(other(MODEL, 0.8), capacity=512), engine.info)
        params = SamplingParams(top_k=8)
        session = Session(engine.info, PROMPT, params, seed=seed, rng=np.random.default_rng(5))
        decode(Decoder(engine, draft, FixedLength(1)), session)
        rates[seed] = session.totals.accepted / session.totals.drafted
    assert rates[None] > 0.6 and rates[7] > 0.8 * rates[None]


@pytest.mark.parametrize("params", LAWS[:4], ids=str)
def test_logprobs_are_the_targets_at_the_requests_temperature(params: SamplingParams) -> None:
    engine = FakeEngine(MODEL)
    session = Session(engine.info, PROMPT, params, rng=np.random.default_rng(2), max_tokens=30)
    decode(Decoder(engine, DraftModel(FakeEngine(other(MODEL, 0.7)), engine.info), FixedLength(3, 2)), session)
    ids = np.arange(MODEL.vocab_size)
    for position in range(session.prompt_len, session.length):
        logits = MODEL.logits(MODEL.digest(session.tokens[:position]), ids).astype(np.float64) / params.temperature
        wanted = logits[session.tokens[position]] - np.log(np.exp(logits).sum())
        assert session.logprobs[position - session.prompt_len] == pytest.approx(wanted, abs=1e-5)


class LikelyButWrong:
    """Drafts from a law of its own that has nothing to do with the target's, and hands it out."""

    name = "likely but wrong"
    max_k = 4

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        law = Distribution.of(np.arange(4), np.array([0.7, 0.1, 0.1, 0.1]))
        tokens = [int(np.searchsorted(law.probs.cumsum(), context.uniform())) for _ in range(k)]
        return DraftProposal(np.minimum(np.array(tokens), 3), (law,) * k, self.name)

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass


def exact(params: SamplingParams, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of ``length`` tokens."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    ids = np.arange(SMALL.vocab_size)
    for _ in range(length):
        longer = {}
        for text, chance in chances.items():
            law = law_from_logits(SMALL.logits(SMALL.digest(np.array([*prompt, *text])), ids), params)
            for token, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
                longer[(*text, token)] = chance * prob
        chances = longer
    return chances


def chi_square_excess(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """Standard deviations above what a true law would show; rare texts are pooled."""
    total = sum(counts.values())
    assert set(counts) <= set(law), "a text of probability zero"
    cells, rare_seen, rare_wanted = [], 0.0, 0.0
    for text, chance in law.items():
        if chance * total < 8.0:
            rare_seen, rare_wanted = rare_seen + counts[text], rare_wanted + chance * total
        else:
            cells.append((counts[text], chance * total))
    if rare_wanted > 8.0:
        cells.append((rare_seen, rare_wanted))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    freedom = len(cells) - 1
    return (statistic - freedom) / math.sqrt(2.0 * freedom)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=4),
        SamplingParams(temperature=1.5, top_p=0.85),
        SamplingParams(temperature=1.0, min_p=0.2),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["half", "one-hot", "foreign", "none"])
def test_unseeded_texts_follow_the_targets_law(params: SamplingParams, kind: str) -> None:
    """Three tokens: the first draft, what replaces it, and the bonus behind it all count."""
    prompt = [1, 2, 3, 1]
    engine = FakeEngine(SMALL, candidates=3)
    draft = DraftModel(FakeEngine(other(SMALL, 0.6), candidates=3), engine.info)
    drafter = {"half": draft, "one-hot": PromptLookup(2, 1), "foreign": LikelyButWrong(), "none": None}[kind]
    decoder = Decoder(engine, drafter, FixedLength(2 if kind != "none" else 0, 1))
    rng = np.random.default_rng(11)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = drafted = 0
    # Prefill gives the first token as plain decoding does, so three behind it are what is at stake.
    first = int(np.argmax(SMALL.logits(SMALL.digest(np.array(prompt)), np.arange(6))))
    for _ in range(1500):
        session = Session(engine.info, [*prompt, first], params, rng=rng, max_tokens=3)
        while session.finish_reason is None:
            decoder.step(session)
        counts[tuple(session.generated.tolist())] += 1
        accepted += session.totals.accepted
        drafted += session.totals.drafted
    assert chi_square_excess(counts, exact(params, [*prompt, first], 3)) < 4.0
    if kind in ("half", "foreign"):
        assert 0 < accepted < drafted


def test_the_chi_square_can_fail() -> None:
    """Companion: the same number of texts from a warmer law are told apart."""
    rng = np.random.default_rng(11)
    warm, cold = exact(SamplingParams(temperature=1.25), [1], 3), exact(SamplingParams(), [1], 3)
    texts = list(warm)
    drawn = rng.choice(len(texts), size=1500, p=np.array(list(warm.values())))
    assert chi_square_excess(Counter(texts[i] for i in drawn), cold) > 4.0


def test_pure_temperature_seldom_needs_a_full_row() -> None:
    engine = FakeEngine(FakeModel(scale=4.0), capacity=512, candidates=16)
    draft = DraftModel(FakeEngine(FakeModel(scale=4.0, agreement=0.8), capacity=512, candidates=16), engine.info)
    session = Session(engine.info, PROMPT, SamplingParams(), rng=np.random.default_rng(1))
    decode(Decoder(engine, draft, FixedLength(3)), session)
    assert session.totals.accepted < session.totals.drafted
    assert len(engine.rows_of("logits")) < 0.1 * session.totals.steps


def test_early_stop_inside_a_draft_keeps_the_law() -> None:
    """A draft may end after an unlikely token, but may not swallow it: that would bend the law."""
    params = SamplingParams()
    prompt = [1, 2, 3, 1]
    engine = FakeEngine(SMALL, candidates=6)
    draft = DraftModel(FakeEngine(other(SMALL, 0.6), candidates=6), engine.info)
    decoder = Decoder(engine, draft, FixedLength(2, stop_below=0.3))
    rng = np.random.default_rng(3)
    counts: Counter[tuple[int, ...]] = Counter()
    lengths: Counter[int] = Counter()
    for _ in range(1500):
        session = Session(engine.info, prompt, params, rng=rng, max_tokens=3)
        while session.finish_reason is None:
            lengths[decoder.step(session).drafted] += 1
        counts[tuple(session.generated.tolist())] += 1
    assert lengths[1] > 100 and lengths[2] > 100
    assert chi_square_excess(counts, exact(params, prompt, 3)) < 4.0
