"""Proofs of losslessness in closed form, then the sampling path itself.

Losslessness cannot see a broken draft, so the acceptance is tested too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_runtime.acceptance import (
    RowDecision,
    Verification,
    accept_by_probability,
    acceptance_probability,
    bonus,
    greedy_row,
    gumbel_pick,
    pick,
    recover,
    rejection_row,
    residual,
    shared_noise_row,
    threshold_row,
    verify,
    verify_greedy,
    verify_rejection,
    verify_shared_noise,
)
from edge_runtime.noise import gumbel, uniforms
from edge_runtime.sampling import Distribution

VOCAB = 32


def random_law(rng: np.random.Generator, size: int = VOCAB, vocab: int = VOCAB) -> Distribution:
    ids = rng.permutation(vocab)[:size]
    return Distribution.of(ids, rng.dirichlet(np.full(size, 0.5)) + 1e-12)


def dense(law: Distribution, vocab: int = VOCAB) -> np.ndarray:
    row = np.zeros(vocab)
    row[law.ids] = law.probs
    return row


def row_law(target: Distribution, draft: Distribution | None, draft_token: int) -> np.ndarray:
    """Exact law of a row's token given its draft: the two branches, weighted by the rule's own threshold."""
    draft_prob = 1.0 if draft is None else draft.prob(draft_token)
    chance = min(1.0, target.prob(draft_token) / draft_prob)
    if 0.0 < chance < 1.0:  # the rule flips there and nowhere else
        assert accept_by_probability(target.prob(draft_token), draft_prob, chance * (1 - 1e-9))
        assert not accept_by_probability(target.prob(draft_token), draft_prob, chance * (1 + 1e-9))
    law = np.zeros(VOCAB)
    law[draft_token] = chance
    if chance < 1.0:
        left = residual(target, draft, draft_token)
        # Nothing is left where the laws differ by rounding alone: the target answers, as recover() does.
        assert left is not None or draft_prob * (1.0 - chance) < 1e-15
        law += (1.0 - chance) * dense(left or target)
    return law


def step_law(target: Distribution, draft: Distribution) -> np.ndarray:
    """Exact law of a row's token with the draft token summed out."""
    law = np.zeros(VOCAB)
    for token, prob in zip(draft.ids.tolist(), draft.probs.tolist(), strict=True):
        law += prob * row_law(target, draft, token)
    return law


@pytest.mark.parametrize("seed", range(20))
def test_a_row_follows_the_target_exactly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = (random_law(rng, int(rng.integers(1, VOCAB + 1))) for _ in range(2))
    np.testing.assert_allclose(step_law(target, draft), dense(target), atol=1e-12)


@pytest.mark.parametrize("token", range(VOCAB))
def test_a_one_hot_draft_follows_the_target_exactly(token: int) -> None:
    target = random_law(np.random.default_rng(token), 20)
    np.testing.assert_allclose(row_law(target, None, token), dense(target), atol=1e-12)
    explicit = row_law(target, Distribution.one_hot(token), token)
    np.testing.assert_allclose(explicit, row_law(target, None, token), atol=1e-15)


def test_the_joint_law_of_two_tokens_through_k_2_is_the_plain_one() -> None:
    rng = np.random.default_rng(5)
    first_target, first_draft = random_law(rng, 24), random_law(rng, 28)
    target = [random_law(rng, int(rng.integers(1, 33))) for _ in range(VOCAB)]
    draft = [random_law(rng, int(rng.integers(1, 33))) for _ in range(VOCAB)]
    joint = np.zeros((VOCAB, VOCAB))
    after = [step_law(target[x], draft[x]) for x in range(VOCAB)]
    for x, x_prob in zip(first_draft.ids.tolist(), first_draft.probs.tolist(), strict=True):
        decided = row_law(first_target, first_draft, x)
        chance = min(1.0, first_target.prob(x) / x_prob)
        # Kept: the second draft of the same step decides. Recovered: a new step starts behind the new token.
        kept = np.sum(
            [
                y_prob * row_law(target[x], draft[x], y)
                for y, y_prob in zip(draft[x].ids.tolist(), draft[x].probs.tolist(), strict=True)
            ],
            axis=0,
        )
        joint[x] += x_prob * chance * kept
        decided[x] -= chance
        joint += x_prob * decided[:, None] * np.array(after)
    plain = dense(first_target)[:, None] * np.array([dense(law) for law in target])
    np.testing.assert_allclose(joint, plain, atol=1e-12)


def test_equal_laws_accept_everything() -> None:
    law = random_law(np.random.default_rng(1))
    for token in law.ids.tolist():
        assert rejection_row(law, token, law, 1.0 - 2.0**-53, 0.5) == RowDecision(True, token)
    assert residual(law, law, 0) is None
    assert acceptance_probability(law, law, 0) == pytest.approx(1.0, abs=1e-12)


def test_disjoint_supports_accept_nothing() -> None:
    target = Distribution.of(np.array([0, 2, 4]), np.array([0.2, 0.3, 0.5]))
    draft = Distribution.of(np.array([1, 3]), np.array([0.6, 0.4]))
    for token in (1, 3):
        assert not accept_by_probability(target.prob(token), draft.prob(token), 0.0)
        decision = rejection_row(target, token, draft, 0.0, 0.45)
        assert decision == RowDecision(False, 2)
    assert acceptance_probability(target, draft, 1) == 0.0
    np.testing.assert_allclose(step_law(target, draft), dense(target), atol=1e-15)


@pytest.mark.parametrize("draft", [None, Distribution.of(np.arange(6), np.array([5.0, 1, 1, 1, 1, 1]))])
def test_acceptance_is_the_overlap_of_the_laws(draft: Distribution | None) -> None:
    target = Distribution.of(np.arange(4), np.array([0.5, 0.3, 0.15, 0.05]))
    drafted, count, kept = 0, 20_000, 0
    for i in range(count):
        if draft is not None:
            drafted = pick(draft, uniforms(1, i, 2))
        kept += rejection_row(target, drafted, draft, uniforms(1, i, 0), uniforms(1, i, 1)).accepted
    expected = acceptance_probability(target, draft, drafted)
    assert kept / count == pytest.approx(expected, abs=4 * math.sqrt(0.25 / count))


@pytest.mark.parametrize("kind", ["one-hot", "drawn", "noise"])
def test_the_sampling_path_follows_the_target(kind: str) -> None:
    """Chi-square over 20,000 rows; the one-hot case is the one transformers 5.24 gets wrong."""
    target = Distribution.of(np.array([0, 1, 2, 3]), np.array([0.5, 0.3, 0.15, 0.05]))
    draft = Distribution.of(np.array([0, 2, 3, 9]), np.array([0.7, 0.1, 0.1, 0.1]))
    counts, rows = np.zeros(4), 20_000
    for i in range(rows):
        if kind == "noise":
            decision = shared_noise_row(target, 0, gumbel(3, i, target.ids))
        elif kind == "drawn":
            drafted = pick(draft, uniforms(3, i, 2))
            decision = rejection_row(target, drafted, draft, uniforms(3, i, 0), uniforms(3, i, 1))
        else:
            decision = rejection_row(target, 0, None, uniforms(3, i, 0), uniforms(3, i, 1))
        counts[decision.token] += 1
    expected = rows * target.probs
    assert ((counts - expected) ** 2 / expected).sum() < 16.27  # 3 degrees of freedom, chance 0.001


def speculative_text(seed: int, k: int, draft_weight: float, length: int = 40) -> tuple[list[int], int]:
    """Tokens of a Markov target under shared noise, drafted by a mixture of it and another model."""
    rng = np.random.default_rng(0)
    target = [random_law(rng) for _ in range(VOCAB)]
    other = [random_law(rng) for _ in range(VOCAB)]
    draft = [
        Distribution.of(np.arange(VOCAB), draft_weight * dense(t) + (1 - draft_weight) * dense(o))
        for t, o in zip(target, other, strict=True)
    ]
    text, accepted = [0], 0
    while len(text) <= length:
        drafts: list[int] = []
        for i in range(k):
            law = draft[(text + drafts)[-1]]
            drafts.append(gumbel_pick(law, gumbel(seed, len(text) + i, law.ids)))
        laws = [target[token] for token in [text[-1], *drafts]]
        noises = [gumbel(seed, len(text) + i, law.ids) for i, law in enumerate(laws)]
        outcome = verify_shared_noise(laws, drafts, noises)
        accepted += len(outcome.accepted)
        text += outcome.tokens
    return text[: length + 1], accepted


@pytest.mark.parametrize("seed", range(5))
def test_shared_noise_gives_one_text_for_any_draft_and_any_k(seed: int) -> None:
    plain, _ = speculative_text(seed, 0, 1.0)
    for k in (1, 2, 5):
        for weight in (0.0, 0.5, 1.0):
            assert speculative_text(seed, k, weight)[0] == plain


def test_shared_noise_accepts_a_model_that_drafts_for_itself() -> None:
    _, accepted = speculative_text(2, 4, 1.0, length=40)
    assert accepted == 32  # eight steps of four drafts and a bonus
    assert speculative_text(2, 4, 0.5)[1] > speculative_text(2, 4, 0.0)[1]


laws = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=12).flatmap(
    lambda weights: st.lists(st.integers(0, 15), min_size=len(weights), max_size=len(weights), unique=True).map(
        lambda ids: Distribution.of(np.array(ids), np.array(weights))
    )
)
unit = st.floats(0.0, 1.0, exclude_max=True)


ULP_APART = [Distribution(np.array([0, 1]), np.array([tail, 1.0 - 1e-6])) for tail in (1e-6, np.nextafter(1e-6, 1))]


@settings(max_examples=300, deadline=None)
@example(*ULP_APART, 0.0, 0.0, 0.0)
@example(*ULP_APART[::-1], 0.0, 1.0 - 2.0**-53, 0.5)
@given(laws, laws, unit, unit, unit)
def test_properties_of_a_row(
    target: Distribution, draft: Distribution, u_draft: float, u_accept: float, u_pick: float
) -> None:
    token = pick(draft, u_draft)
    assert draft.prob(token) > 0.0
    decision = rejection_row(target, token, draft, u_accept, u_pick)
    assert target.prob(decision.token) > 0.0
    if decision.accepted:
        assert decision.token == token
    elif residual(target, draft, token) is not None:
        assert target.prob(decision.token) > draft.prob(decision.token)
    np.testing.assert_allclose(step_law(target, draft), dense(target), atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(laws, unit)
def test_pick_inverts_the_cumulative_law(law: Distribution, uniform: float) -> None:
    index = law.ids.tolist().index(pick(law, uniform))
    below = law.probs[:index].sum()
    assert below <= uniform + 1e-12 and uniform < below + law.probs[index] + 1e-12
    assert pick(law, 0.0) == law.ids[0]
    assert pick(law, 1.0 - 2.0**-53) == law.ids[-1] or law.probs[-1] < 1e-12


def test_a_token_that_cannot_have_been_drafted_is_refused() -> None:
    law = Distribution.of(np.array([1, 2]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="positive probability"):
        rejection_row(law, 3, law, 0.5, 0.5)
    with pytest.raises(ValueError, match="positive probability"):
        accept_by_probability(0.5, math.nan, 0.5)


def test_a_rejection_by_rounding_alone_still_draws_from_the_target() -> None:
    law = Distribution.one_hot(4)
    assert recover(law, None, 4, 0.3) == 4


def test_threshold_policy_cuts_at_the_first_failure() -> None:
    assert threshold_row(0.5, 7, 9) == RowDecision(True, 7)
    assert threshold_row(0.49, 7, 9) == RowDecision(False, 9)
    assert threshold_row(0.2, 7, 9, threshold=0.1) == RowDecision(True, 7)
    assert threshold_row(0.4, 7, 7) == RowDecision(False, 7)


def test_a_step_stops_at_the_first_rejection() -> None:
    judged: list[int] = []

    def judge(row: int, draft_token: int) -> RowDecision:
        judged.append(row)
        return greedy_row([5, 6, 9, 8][row], draft_token)

    def no_bonus() -> int:
        raise AssertionError("a bonus after a rejection")

    outcome = verify([5, 6, 7, 8], judge, no_bonus)
    assert outcome == Verification((5, 6), 9, "recovered") and outcome.tokens == (5, 6, 9)
    assert judged == [0, 1, 2]


def test_greedy_steps() -> None:
    assert verify_greedy([5, 6, 7], [5, 6]) == Verification((5, 6), 7, "bonus")
    assert verify_greedy([5, 6, 7], [4, 6]) == Verification((), 5, "recovered")
    assert verify_greedy(np.array([3]), []) == Verification((), 3, "bonus")  # type: ignore[arg-type]


def test_k_0_is_a_plain_draw() -> None:
    law = random_law(np.random.default_rng(8))
    for i in range(50):
        u = uniforms(1, i, 0)
        expected = Verification((), pick(law, u), "bonus")
        assert verify_rejection([law], [], [], [(0.0, u)]) == expected
        assert bonus(law, u) == expected.next_token


def test_a_whole_step_agrees_with_its_rows() -> None:
    rng = np.random.default_rng(4)
    for i in range(100):
        targets, drafts = [random_law(rng) for _ in range(4)], [random_law(rng) for _ in range(3)]
        tokens = [pick(law, uniforms(2, i, row)) for row, law in enumerate(drafts)]
        pairs = [(uniforms(3, i, row), uniforms(4, i, row)) for row in range(4)]
        outcome = verify_rejection(targets, tokens, drafts, pairs)
        kept = len(outcome.accepted)
        for row in range(min(kept + 1, 3)):
            alone = rejection_row(targets[row], tokens[row], drafts[row], *pairs[row])
            assert alone == RowDecision(row < kept, outcome.tokens[row])
        assert outcome.kind == ("bonus" if kept == 3 else "recovered")
