"""Strategies of drafting: whatever a strategy does, the law that it hands out is the one that its token came from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_acceptance import dense, random_law, row_law, step_law
from test_decoder_sampling import chi_square_excess

from edge_runtime.acceptance import gumbel_pick
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.protocol import DraftContext
from edge_runtime.drafters.strategy import (
    STRATEGIES,
    AsRequested,
    Beam,
    Path,
    Strategy,
    TopK,
    TopP,
    beside,
    strategy_named,
)
from edge_runtime.engines.protocol import HeadOutput
from edge_runtime.errors import ConfigError
from edge_runtime.noise import gumbel
from edge_runtime.sampling import Distribution, SamplingParams, law_from_logits
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, decode

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.8, top_k=10)
VOCAB = 32
MODEL = FakeModel(vocab_size=VOCAB, scale=1.5)
PROMPT = [5, 9, 2, 10, 5, 9]
NAMES = ("as-requested", "greedy", "top-k:3", "top-p:0.6", "beam:3")


def head(seed: int, params: SamplingParams) -> HeadOutput:
    """One row with all of its vocabulary as candidates."""
    logits = np.random.default_rng(seed).normal(scale=2.0, size=VOCAB).astype(np.float32)
    ids = np.argsort(-logits, kind="stable")
    scaled = logits.astype(np.float64) * params.inverse_temperature
    logsumexp = np.array([np.log(np.exp(scaled).sum())], np.float32)
    return HeadOutput(ids[:1], ids[None], logits[ids][None], logsumexp, None)


def context(params: SamplingParams, uniform: float = 0.5, seed: int | None = None) -> DraftContext:
    return DraftContext(np.array(PROMPT, np.int64), 0, params, seed, lambda: uniform)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_the_sum_over_drafts_is_the_target_exactly(name: str, params: SamplingParams) -> None:
    """In closed form: each token that may be drafted, times what a row makes of it."""
    for seed in range(8):
        target = random_law(np.random.default_rng(seed), int(np.random.default_rng(seed).integers(1, 33)))
        row = head(seed + 100, params)
        # The draw runs through its whole range: what comes out is the law that is handed out.
        steps = 1000
        drawn: Counter[int] = Counter()
        laws: list[Distribution | None] = []
        for place in range(0, steps, 1 if seed == 0 else 100):
            chosen = strategy_named(name).choose(row, 0, context(params, (place + 0.5) / steps), 6)
            drawn[chosen.token] += 1
            laws.append(chosen.law)
        law = laws[0]
        if law is None:
            (token,) = drawn
            np.testing.assert_allclose(row_law(target, None, token), dense(target), atol=1e-12)
            continue
        np.testing.assert_allclose(step_law(target, law), dense(target), atol=1e-12)
        for other in laws:
            assert other is not None and other.ids.tolist() == law.ids.tolist()
        if seed == 0:
            for token in range(VOCAB):
                assert drawn[token] / steps == pytest.approx(law.prob(token), abs=1.0 / steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_probability_is_the_drafts_own(name: str) -> None:
    for params in (GREEDY, SAMPLED):
        chosen = strategy_named(name).choose(head(3, params), 0, context(params), 6)
        assert 0.0 < chosen.probability <= 1.0
        if chosen.law is not None:
            assert chosen.probability == chosen.law.prob(chosen.token)


def test_narrow_strategies_are_narrow() -> None:
    row = head(1, SAMPLED)
    best = row.candidate_ids[0].tolist()
    top_k = TopK(3).choose(row, 0, context(SAMPLED), 6).law
    assert top_k is not None and set(top_k.ids.tolist()) == set(best[:3])
    top_p = TopP(0.6).choose(row, 0, context(SAMPLED), 6).law
    assert top_p is not None and len(top_p.ids) < 10 and set(top_p.ids.tolist()) == set(best[: len(top_p.ids)])
    # Never wider than the request.
    narrow = replace(SAMPLED, top_k=2)
    law = TopK(8).choose(row, 0, context(narrow), 6).law
    assert law is not None and len(law.ids) == 2


@pytest.mark.parametrize("name", ["as-requested", "top-k:3", "top-p:0.6"])
def test_a_seeded_draft_uses_the_noise_of_its_position(name: str) -> None:
    strategy, row = strategy_named(name), head(2, SAMPLED)
    law = strategy.choose(row, 0, context(SAMPLED), 6).law
    assert law is not None
    for position in range(6, 20):
        chosen = strategy.choose(row, 0, context(SAMPLED, seed=4), position)
        assert chosen.law is None and chosen.token == gumbel_pick(law, gumbel(4, position, law.ids))


def drafter(target: FakeEngine, strategy: Strategy, agreement: float = 1.0) -> DraftModel:
    model = replace(MODEL, agreement=agreement)
    return DraftModel(FakeEngine(model, capacity=512, candidates=16), target.info, strategy=strategy)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_texts_are_the_targets_and_self_drafts_are_kept(name: str) -> None:
    target = FakeEngine(MODEL, capacity=512, candidates=16)
    plain = Session(target.info, PROMPT, GREEDY, max_tokens=60)
    decode(Decoder(target), plain)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=60)
    decode(Decoder(target, drafter(target, strategy_named(name)), FixedLength(3)), session)
    assert session.tokens.tolist() == plain.tokens.tolist()
    rate = session.totals.accepted / session.totals.drafted
    # A beam looks for the best whole, which need not begin with the best token; draws are often another's.
    assert rate == 1.0 if name in ("as-requested", "greedy") else 0.2 < rate <= 1.0


def enumerate_paths(model: FakeModel, prompt: list[int], count: int) -> dict[tuple[int, ...], float]:
    ids, paths = np.arange(VOCAB), {(): 0.0}
    for _ in range(count):
        longer = {}
        for path, score in paths.items():
            logits = model.logits(model.digest(np.array([*prompt, *path])), ids).astype(np.float64)
            logprobs = logits - np.log(np.exp(logits).sum())
            longer |= {(*path, token): score + float(logprobs[token]) for token in ids.tolist()}
        paths = longer
    return paths


def test_a_wide_beam_finds_the_most_probable_chain() -> None:
    target = FakeEngine(MODEL, capacity=512, candidates=32)
    wide = DraftModel(FakeEngine(MODEL, capacity=512, candidates=32), target.info, strategy=Beam(32))
    greedy = drafter(target, AsRequested())
    differs = 0
    for seed in range(6):
        prompt = [seed, *PROMPT]
        asked = DraftContext(np.array(prompt, np.int64), 0, GREEDY, None, lambda: 0.5)
        proposal = wide.propose(asked, 2)
        found, paths = tuple(proposal.tokens.tolist()), enumerate_paths(MODEL, prompt, 2)
        assert found == max(paths, key=paths.__getitem__)
        assert sum(np.log(proposal.confidences)) == pytest.approx(paths[found], abs=1e-5)
        differs += found != tuple(greedy.propose(asked, 2).tokens.tolist())
    assert differs > 0, "or it is no search"


def test_the_other_chains_of_a_beam_stand_beside_the_best() -> None:
    paths = [Path((1, 2, 3), (), 0.0), Path((1, 2, 4), (), -1.0), Path((1, 5, 6), (), -2.0), Path((7, 8, 9), (), -3.0)]
    assert beside(paths, 0) == ((1, 2, 3), (-1, 0, 1))
    assert beside(paths, 2) == ((1, 2, 3, 4, 5), (-1, 0, 1, 1, 0))
    assert beside(paths, 9) == ((1, 2, 3, 4, 5, 6, 7, 8, 9), (-1, 0, 1, 1, 0, 4, -1, 6, 7))
    assert beside(paths[:1], 4) == ((1, 2, 3), (-1, 0, 1))


def test_a_beam_verified_as_a_tree_keeps_the_text_and_more_of_the_draft() -> None:
    kept = {}
    for branches in (0, 4):
        target = FakeEngine(MODEL, capacity=512, candidates=16, trees=True)
        wanted = Session(target.info, PROMPT, GREEDY, max_tokens=80)
        decode(Decoder(target), wanted)
        session = Session(target.info, PROMPT, GREEDY, max_tokens=80)
        length = FixedLength(3, branches=branches)
        decode(Decoder(target, drafter(target, Beam(3), agreement=0.8), length), session)
        assert session.tokens.tolist() == wanted.tokens.tolist()
        kept[branches] = session.totals.committed / session.totals.steps
    assert kept[4] > 1.1 * kept[0]


def test_a_beam_leaves_its_cache_right() -> None:
    """What it looked at is behind the valid entries: the next draft is that of a fresh one."""
    target = FakeEngine(MODEL, capacity=512, candidates=16)
    used = drafter(target, Beam(3))
    text = list(PROMPT)
    for token in (3, 8, 1, 1, 30, 2):
        asked = DraftContext(np.array(text, np.int64), 0, GREEDY, None, lambda: 0.5)
        fresh = drafter(target, Beam(3)).propose(asked, 3)
        assert used.propose(asked, 3).tokens.tolist() == fresh.tokens.tolist()
        text.append(token)


@pytest.mark.parametrize("name", NAMES)
def test_sampled_texts_follow_the_targets_law(name: str) -> None:
    """Two tokens, of which the first is a draft and the second a draft, what replaces it, or a bonus."""
    params, small = SamplingParams(temperature=0.9, top_k=5), FakeModel(vocab_size=16, scale=1.0)
    engine = FakeEngine(small, candidates=8)
    draft = DraftModel(
        FakeEngine(replace(small, agreement=0.7), candidates=8), engine.info, strategy=strategy_named(name)
    )
    decoder, rng, ids = Decoder(engine, draft, FixedLength(2)), np.random.default_rng(5), np.arange(16)
    law = {}
    first_law = law_from_logits(small.logits(small.digest(np.array(PROMPT)), ids), params)
    for first, chance in zip(first_law.ids.tolist(), first_law.probs.tolist(), strict=True):
        second_law = law_from_logits(small.logits(small.digest(np.array([*PROMPT, first])), ids), params)
        for second, other in zip(second_law.ids.tolist(), second_law.probs.tolist(), strict=True):
            law[first, second] = chance * other
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for _ in range(400):
        session = Session(engine.info, PROMPT, params, rng=rng, max_tokens=2)
        while session.finish_reason is None:
            decoder.step(session)
        counts[tuple(session.generated.tolist())] += 1
        accepted += session.totals.accepted
    assert chi_square_excess(counts, law) < 4.0
    assert accepted > 60


def test_names() -> None:
    for name in STRATEGIES:
        assert strategy_named(name).name == name
    assert isinstance(strategy_named("beam:5"), Beam) and strategy_named("beam:5").width == 5  # type: ignore[attr-defined]
    for wrong in ("", "best", "greedy:2", "top-k:", "top-k:0", "top-k:x", "top-p:0", "top-p:2", "beam:0", "beam:1.5"):
        with pytest.raises(ConfigError, match="strategy"):
            strategy_named(wrong)
