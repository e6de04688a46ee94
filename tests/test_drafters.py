"""Drafters by themselves, and the policies that say how much to draft."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.acceptance import gumbel_pick
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import ConfidenceLength, FixedLength, PromptLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import DraftContext, NoDraft
from edge_runtime.errors import ConfigError, VocabularyMismatch
from edge_runtime.ledger import TextState
from edge_runtime.noise import gumbel
from edge_runtime.sampling import SamplingParams, law_over_candidates
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, decode

GREEDY = SamplingParams(temperature=0.0)
MODEL = FakeModel()
PROMPT = [5, 9, 2, 40, 5, 9]


def context(
    tokens: list[int], params: SamplingParams = GREEDY, seed: int | None = None, slot: int = 0, stop_below: float = 0.0
) -> DraftContext:
    uniform = np.random.default_rng(0).random
    return DraftContext(np.array(tokens, np.int64), slot, params, seed, uniform, stop_below)


def greedy_text(model: FakeModel, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model.logits(model.digest(np.array(tokens)), np.arange(model.vocab_size)).argmax()))
    return tokens[len(prompt) :]


# --- the draft model


def test_it_drafts_what_the_model_says_next() -> None:
    engine = FakeEngine(MODEL)
    proposal = DraftModel(engine, engine.info).propose(context(PROMPT), 4)
    assert proposal.tokens.tolist() == greedy_text(MODEL, PROMPT, 4)
    assert proposal.laws is None
    # The prompt in one forward whose last row drafts; then one row for each further token; the last is not fed.
    assert engine.rows_of("forward") == [len(PROMPT), 1, 1, 1]


def test_sampled_drafts_hand_out_the_law_they_were_drawn_from() -> None:
    params = SamplingParams(temperature=0.8, top_k=5)
    engine = FakeEngine(MODEL)
    proposal = DraftModel(engine, engine.info).propose(context(PROMPT, params), 3)
    assert proposal.laws is not None and len(proposal.laws) == 3
    text = list(PROMPT)
    for token, law in zip(proposal.tokens.tolist(), proposal.laws, strict=True):
        logits = MODEL.logits(MODEL.digest(np.array(text)), np.arange(64))
        ids = np.argsort(-logits, kind="stable")[:8]
        wanted = law_over_candidates(ids, logits[ids], params)
        assert law.ids.tolist() == wanted.ids.tolist() and np.allclose(law.probs, wanted.probs)
        assert law.prob(token) > 0.0
        text.append(token)


def test_seeded_drafts_use_the_noise_of_their_position() -> None:
    params = SamplingParams(temperature=0.8, top_k=5)
    engine = FakeEngine(MODEL)
    drafter = DraftModel(engine, engine.info)
    proposal = drafter.propose(context(PROMPT, params, seed=3), 3)
    assert proposal.laws is None
    text = list(PROMPT)
    for token in proposal.tokens.tolist():
        logits = MODEL.logits(MODEL.digest(np.array(text)), np.arange(64))
        ids = np.argsort(-logits, kind="stable")[:8]
        law = law_over_candidates(ids, logits[ids], params)
        assert token == gumbel_pick(law, gumbel(3, len(text), law.ids))
        text.append(token)


def test_after_full_acceptance_two_tokens_are_fed_and_after_a_rejection_one() -> None:
    engine = FakeEngine(MODEL)
    drafter = DraftModel(engine, engine.info)
    drafts = drafter.propose(context(PROMPT), 3).tokens.tolist()
    engine.calls.clear()
    text = [*PROMPT, *drafts, 7]
    assert drafter.warm(context(text)) == 0
    assert drafter.propose(context(text), 2).tokens.tolist() == greedy_text(MODEL, text, 2)
    assert engine.rows_of("forward") == [2, 1]
    engine.calls.clear()
    text = [*text, greedy_text(MODEL, text, 1)[0] ^ 1]  # the first draft was wrong
    assert drafter.propose(context(text), 1).tokens.tolist() == greedy_text(MODEL, text, 1)
    assert engine.rows_of("forward") == [1]


@pytest.mark.parametrize("warmed", [True, False])
@pytest.mark.parametrize("missed", [1, 2, 3, 4, 5, 8, 9, 23])
def test_a_parked_draft_catches_up_in_chunks(missed: int, warmed: bool) -> None:
    engine = FakeEngine(MODEL, max_rows=4)
    drafter = DraftModel(engine, engine.info)
    wrong = int(drafter.propose(context(PROMPT), 2).tokens[0]) ^ 1
    text = [*PROMPT, wrong, *random.Random(1).choices(range(64), k=missed - 1)]
    engine.calls.clear()
    fed = drafter.warm(context(text)) if warmed else 0
    assert fed in (0, len(text) - 1 - len(PROMPT))
    proposal = drafter.propose(context(text), 3)
    assert proposal.tokens.tolist() == greedy_text(MODEL, text, 3)
    assert max(engine.rows_of("forward")) <= 4
    # Whatever the two did, each missed token went through once.
    assert sum(engine.rows_of("forward")) in (missed + 2, missed + 1)


def test_acceptance_after_parking_is_full_for_a_self_draft() -> None:
    class Parking(FixedLength):
        """Drafts, sleeps for twenty steps, drafts again."""

        steps = 0

        def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState):  # type: ignore[no-untyped-def]
            self.steps += 1
            plan = super().plan(k_max, prompt_tokens, kv_len, text)
            return plan if self.steps <= 3 or self.steps > 23 else replace(plan, k=0)

    target = FakeEngine(MODEL)
    draft = DraftModel(FakeEngine(MODEL, max_rows=4), target.info)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=60)
    steps = decode(Decoder(target, draft, Parking(3)), session)
    drafting = [step for step in steps if step.drafted]
    assert len([step for step in steps[4:24] if step.drafted == 0]) == 20
    assert len(drafting) > 5 and all(step.accepted == step.drafted for step in drafting)
    assert [step.caught_up for step in steps if step.caught_up] == [len(PROMPT), 21]


def test_contexts_may_change_under_it() -> None:
    """Cut, replaced, back again: what its cache holds is compared, never assumed."""
    engine = FakeEngine(MODEL)
    drafter = DraftModel(engine, engine.info)
    texts = [PROMPT, [*PROMPT, 1, 2, 3, 4], PROMPT[:3], [7, 7], [*PROMPT, 1, 2, 9], [*PROMPT, 1, 2, 9]]
    for text in texts:
        assert drafter.propose(context(text), 3).tokens.tolist() == greedy_text(MODEL, text, 3)
    drafter.reset(0)
    assert drafter.kv_len(0) == 0
    assert drafter.propose(context(PROMPT), 3).tokens.tolist() == greedy_text(MODEL, PROMPT, 3)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5), st.integers(0, 2**16)), min_size=1, max_size=8))
def test_any_history_of_contexts_leaves_a_right_cache(history: list[tuple[int, int, int]]) -> None:
    engine = FakeEngine(FakeModel(vocab_size=16), max_rows=3, capacity=24)
    drafter = DraftModel(engine, engine.info)
    for length, k, seed in history:
        text = random.Random(seed % 3).choices(range(16), k=length)
        assert drafter.propose(context(text), k).tokens.tolist() == greedy_text(engine.model, text, k)


def test_a_smaller_context_falls_back() -> None:
    target = FakeEngine(MODEL, capacity=40)
    engine = FakeEngine(MODEL, capacity=16)
    session = Session(target.info, PROMPT, GREEDY)
    steps = decode(Decoder(target, DraftModel(engine, target.info), FixedLength(3)), session)
    assert session.tokens[len(PROMPT) :].tolist() == greedy_text(MODEL, PROMPT, 34)
    assert session.totals.accepted == session.totals.drafted > 0
    reasons = [step.reason for step in steps]
    assert any("nearly full" in reason for reason in reasons)
    assert "past the draft's context of 16" in reasons[-2]
    # The draft reaches as far as its cache goes: its last proposal is of one token behind 16.
    assert len(DraftModel(FakeEngine(MODEL, capacity=16), target.info).propose(context([1] * 16), 3).tokens) == 1
    assert len(DraftModel(FakeEngine(MODEL, capacity=16), target.info).propose(context([1] * 17), 3).tokens) == 0
    assert DraftModel(FakeEngine(MODEL, capacity=16), target.info).warm(context([1] * 17)) == 0


def test_a_prompt_longer_than_the_drafts_context() -> None:
    target = FakeEngine(MODEL, capacity=40)
    session = Session(target.info, PROMPT * 3, GREEDY)
    decode(Decoder(target, DraftModel(FakeEngine(MODEL, capacity=16), target.info), FixedLength(3)), session)
    assert session.totals.drafted == 0 and session.length == 40


def test_a_reduced_head_proposes_token_ids() -> None:
    ids = np.arange(0, 64, 2)
    target = FakeEngine(MODEL)
    engine = FakeEngine(MODEL, token_ids=ids)
    assert engine.info.vocab_size == 32
    drafter = DraftModel(engine, target.info)
    for params in (GREEDY, SamplingParams(top_k=4)):
        assert set(drafter.propose(context(PROMPT, params), 8).tokens.tolist()) <= set(ids.tolist())
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, drafter, FixedLength(2)), session)
    assert session.tokens[len(PROMPT) :].tolist() == greedy_text(MODEL, PROMPT, session.limit - len(PROMPT))
    kept = np.array([token % 2 == 0 for token in session.generated])
    # Accepted wherever the target's token is in the reduced vocabulary, and never elsewhere.
    assert 0 < session.totals.accepted <= kept.sum()


def test_vocabularies_that_do_not_match_are_refused() -> None:
    target = FakeEngine(MODEL).info
    with pytest.raises(VocabularyMismatch, match="the draft has 32 tokens and the target 64"):
        DraftModel(FakeEngine(FakeModel(vocab_size=32)), target)
    with pytest.raises(VocabularyMismatch, match="outside"):
        DraftModel(FakeEngine(FakeModel(vocab_size=65), token_ids=np.array([1, 64])), target)


def test_early_stop_by_confidence() -> None:
    engine = FakeEngine(MODEL)
    drafter = DraftModel(engine, engine.info)
    everything = drafter.propose(context(PROMPT), 8).tokens.tolist()
    assert drafter.propose(context(PROMPT, stop_below=1.0), 8).tokens.tolist() == everything[:1]
    some = drafter.propose(context(PROMPT, stop_below=0.2), 8).tokens.tolist()
    assert 1 <= len(some) < 8 and some == everything[: len(some)]
    assert drafter.propose(context(PROMPT, stop_below=1e-9), 8).tokens.tolist() == everything


# --- prompt lookup


def lookup(tokens: list[int], k: int = 4, longest: int = 3, shortest: int = 2) -> list[int]:
    return PromptLookup(longest, shortest).propose(context(tokens), k).tokens.tolist()


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2]),  # the most recent match
        ([7, 1, 2, 3, 9, 9, 8, 1, 2, 4, 9, 7, 1, 2], [3, 9, 9, 8]),  # a longer match before a more recent one
        ([1, 2, 3, 4], []),
        ([1], []),
        ([4, 4, 4], [4, 4, 4, 4]),  # a match that runs into the end copies itself
        ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
        ([1, 2, 3, 1, 2], [3, 1, 2, 3]),
    ],
)
def test_prompt_lookup_finds(tokens: list[int], wanted: list[int]) -> None:
    assert lookup(tokens) == wanted


@pytest.mark.parametrize(
    ("tokens", "agreed"),
    [([1, 2, 3, 9, 1, 2], 2), ([4, 1, 2, 3, 9, 5, 1, 2], 2), ([*range(50), 7, *range(50)], 32), ([4, 4, 4], 2)],
)
def test_prompt_lookup_says_how_much_agreed(tokens: list[int], agreed: int) -> None:
    assert PromptLookup(3, 2).propose(context(tokens), 4).evidence == agreed


def naive_lookup(tokens: list[int], k: int, sizes: Sequence[int]) -> list[int]:
    for size in sizes:
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:] and size <= len(tokens):
                found = tokens[end:]
                return [found[i % len(found)] for i in range(k)]
    return []


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=25), min_size=1, max_size=6), st.integers(1, 5))
def test_prompt_lookup_is_a_search(texts: list[list[int]], k: int) -> None:
    """One drafter through any history of texts of one slot answers like a search of the text it is given."""
    drafter = PromptLookup(3, 1)
    for text in texts:
        for end in range(1, len(text) + 1):
            proposal = drafter.propose(context(text[:end]), k)
            assert proposal.tokens.tolist() == naive_lookup(text[:end], k, range(3, 0, -1))


def test_prompt_lookup_copies_from_where_most_agrees() -> None:
    """Short grams stand everywhere in a text of one form; the latest of them is seldom the right one."""
    lines = [[line, 7, 1, 2, 3, line + 50] for line in range(10, 40)]
    text = [token for line in lines for token in line]
    asked = [*text, *lines[4], *lines[5][:5]]
    assert PromptLookup().propose(context(asked), 1).tokens.tolist() == [64]
    proposal = PromptLookup(also=(12, 6)).propose(context(asked), 7)
    assert proposal.tokens.tolist() == [65, *lines[6]] and proposal.evidence >= 11
    # Each token costs an entry a size, so there are few of them.
    drafter = PromptLookup(3, 1, also=(6,))
    for end in range(1, len(asked)):
        wanted = naive_lookup(asked[:end], 3, (6, 3, 2, 1))
        assert drafter.propose(context(asked[:end]), 3).tokens.tolist() == wanted


def test_prompt_lookup_keeps_slots_apart_and_forgets() -> None:
    drafter = PromptLookup()
    assert drafter.propose(context([1, 2, 3, 1, 2]), 1).tokens.tolist() == [3]
    assert drafter.propose(context([1, 2, 5, 1, 2], slot=1), 1).tokens.tolist() == [5]
    drafter.reset(0)
    assert drafter.propose(context([1, 2, 3, 1, 2]), 1).tokens.tolist() == [3]
    assert drafter.propose(context([1, 2]), 3).note == "no earlier match"


def test_prompt_lookup_pays_on_a_text_that_repeats() -> None:
    model = FakeModel(vocab_size=12, order=2, scale=4.0)
    target = FakeEngine(model)
    session = Session(target.info, [1, 2, 3], GREEDY)
    decode(Decoder(target, PromptLookup(), FixedLength(4)), session)
    assert session.totals.accepted / session.totals.drafted > 0.8


def test_prompt_lookup_refuses() -> None:
    for longest, shortest, also in ((1, 2, ()), (3, 0, ()), (3, 2, (3,)), (3, 2, (6, 12))):
        with pytest.raises(ConfigError):
            PromptLookup(longest, shortest, also=also)


def test_no_draft() -> None:
    drafter = NoDraft()
    assert drafter.max_k == 0 and len(drafter.propose(context(PROMPT), 3).tokens) == 0


# --- how much to draft


def test_named_lengths() -> None:
    assert [FixedLength(4).plan(k_max, 100, 0, TextState()).k for k_max in (0, 3, 9)] == [0, 3, 4]
    assert PromptLength().plan(100, 300, 0, TextState()).k == 70
    assert PromptLength("chat").plan(16, 300, 0, TextState()).k == 16
    with pytest.raises(ValueError, match="k must be"):
        FixedLength(-1)


def test_the_confidence_policy_grows_with_what_is_kept_and_stops_where_the_draft_doubts() -> None:
    target = FakeEngine(MODEL, capacity=256)
    by_agreement = {}
    for agreement in (1.0, 0.4):
        draft = DraftModel(FakeEngine(replace(MODEL, agreement=agreement), capacity=256), target.info)
        session = Session(target.info, PROMPT, GREEDY)
        steps = decode(Decoder(target, draft, ConfidenceLength(stop_below=0.05)), session)
        assert session.generated.tolist() == greedy_text(MODEL, PROMPT, len(session.generated))
        by_agreement[agreement] = sum(step.k for step in steps[-20:-5]) / 15
        assert any(step.drafted < step.k for step in steps[:-3])
    assert by_agreement[1.0] > 5 > 3 > by_agreement[0.4]
