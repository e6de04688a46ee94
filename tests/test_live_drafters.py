"""Drafters that live on their target: what they propose is exactly what a perfect one would, whatever came before.

Losslessness cannot see a drafter that reads the wrong row or writes to the wrong place; its proposals can. The engines
here know exactly what they are told, so that a drafter which tells them the right things is never off.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_decoder_sampling import chi_square_excess

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.heads import ParallelHeads
from edge_runtime.drafters.length import FixedLength, LengthPlan
from edge_runtime.drafters.mtp import Assistant, MultiToken
from edge_runtime.drafters.protocol import DraftContext, Drafter, DraftProposal
from edge_runtime.drafters.self_draft import SelfDraft
from edge_runtime.errors import ConfigError, EngineError, VocabularyMismatch
from edge_runtime.ledger import TextState
from edge_runtime.sampling import SamplingParams, law_from_logits, law_over_candidates
from edge_runtime.session import Session
from edge_runtime.testing import (
    FakeAssistant,
    FakeEngine,
    FakeHeads,
    FakeModel,
    FakeMultiToken,
    FakeSelfDraft,
    decode,
)
from edge_runtime.tree import chain_length

GREEDY = SamplingParams(temperature=0.0)
TOP5 = SamplingParams(temperature=0.9, top_k=5)
MODEL = FakeModel()
HALF = FakeModel(agreement=0.75)
"""Is right about half the time, so that drafts are accepted in part."""
PROMPT = [5, 9, 2, 40, 5, 9]
_CAPACITY = 96


def multi_token(target: FakeEngine, model: FakeModel, **settings: Any) -> MultiToken:
    settings = {"slots": target.info.slots, "capacity": target.info.capacity, "max_rows": 5, **settings}
    return MultiToken(FakeMultiToken(model, **settings), target.info)


def heads(target: FakeEngine, model: FakeModel, **settings: Any) -> ParallelHeads:
    return ParallelHeads(FakeHeads(model, fan_out=5, **settings), target.info)


def self_draft(target: FakeEngine, model: FakeModel, **settings: Any) -> SelfDraft:
    return SelfDraft(FakeSelfDraft(target, model, **settings), target.info)


def assistant(target: FakeEngine, model: FakeModel, **settings: Any) -> Assistant:
    return Assistant(FakeAssistant(target, model, **settings), target.info)


Make = Callable[..., Drafter]
CHAINS: dict[str, Make] = {"mtp": multi_token, "self": self_draft, "assistant": assistant}
ALL: dict[str, Make] = CHAINS | {"heads": heads}
READERS: dict[str, Make] = {name: make for name, make in ALL.items() if name != "self"}


def engine(**settings: Any) -> FakeEngine:
    return FakeEngine(MODEL, **{"keeps_hidden": True, "capacity": _CAPACITY, **settings})


def greedy_text(model: FakeModel, prompt: list[int], count: int) -> list[int]:
    tokens: list[int] = []
    digest, ids = model.digest(np.array(prompt)), np.arange(model.vocab_size)
    for _ in range(count):
        tokens.append(int(model.logits(digest, ids).argmax()))
        digest = model.extend(digest, tokens[-1])
    return tokens


class Watched:
    """Every proposal is what the drafter's model says behind this very text, by itself."""

    def __init__(self, inner: Drafter, model: FakeModel) -> None:
        self.inner, self.model = inner, model
        self.name, self.max_k = inner.name, inner.max_k
        self.proposals = 0

    def warm(self, context: DraftContext) -> int:
        return self.inner.warm(context)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        proposal = self.inner.propose(context, k)
        tokens = proposal.tokens.tolist()
        if proposal.parents is not None:  # alternatives stand behind the chain
            tokens = tokens[: chain_length(proposal.parents)]
        assert tokens == greedy_text(self.model, context.tokens.tolist(), len(tokens)), proposal.note
        assert len(tokens) == min(k, self.max_k) or proposal.note
        self.proposals += len(tokens) > 0
        return proposal

    def observe(self, slot: int, accepted: int) -> None:
        self.inner.observe(slot, accepted)

    def reset(self, slot: int) -> None:
        self.inner.reset(slot)


class Lengths(FixedLength):
    """Another K at every step, parked for a while now and then."""

    def __init__(self, seed: int, most: int = 6, parked: int = 0) -> None:
        super().__init__(most)
        self._random, self._most, self._parked = random.Random(seed), most, parked
        self._left = 0

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        plan = super().plan(k_max, prompt_tokens, kv_len, text)
        if self._parked and self._left == 0 and self._random.random() < 0.2:
            self._left = self._random.randint(1, self._parked)
        self._left = max(0, self._left - 1)
        return replace(plan, k=0 if self._left else min(k_max, self._random.randint(1, self._most)))


@cache
def plain(params: SamplingParams = GREEDY, seed: int | None = None, max_tokens: int | None = None) -> list[int]:
    target = engine()
    session = Session(target.info, PROMPT, params, seed=seed, max_tokens=max_tokens)
    decode(Decoder(target), session)
    return session.tokens.tolist()


# --- what is proposed


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("min_rows", [1, 2])
def test_proposals_are_perfect_whatever_was_accepted_before(name: str, min_rows: int) -> None:
    target = engine(min_rows=min_rows)
    drafter = Watched(ALL[name](target, HALF), HALF)
    session = Session(target.info, PROMPT, GREEDY)
    steps = decode(Decoder(target, drafter, Lengths(1)), session)
    assert session.tokens.tolist() == plain()
    outcomes = {(step.drafted, step.accepted) for step in steps if step.drafted}
    assert {0, 1, 2} <= {accepted for _, accepted in outcomes}
    assert any(drafted == accepted > 1 for drafted, accepted in outcomes) and drafter.proposals > 25


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_perfect_one_is_fully_accepted(name: str, k: int) -> None:
    target = engine()
    session = Session(target.info, PROMPT, GREEDY)
    steps = decode(Decoder(target, ALL[name](target, MODEL), FixedLength(k)), session)
    assert session.tokens.tolist() == plain()
    assert session.totals.accepted == session.totals.drafted > 0
    assert all(step.drafted == k for step in steps[1:-1])


@pytest.mark.parametrize("name", ALL)
def test_proposals_are_perfect_behind_an_alternative_that_was_kept(name: str) -> None:
    """Its entries and its row were moved to where the text has them."""
    steps_of = {}
    for branches in (0, 3):
        target = engine(trees=True)
        drafter = Watched(ALL[name](target, HALF), HALF)
        session = Session(target.info, PROMPT, GREEDY)
        steps_of[branches] = decode(Decoder(target, drafter, FixedLength(3, branches=branches)), session)
        assert session.tokens.tolist() == plain() and drafter.proposals > 10
        kept = [call for call in target.calls if call.kind == "keep"]
        assert len(kept) > 5 if branches else not kept
    assert len(steps_of[3]) < len(steps_of[0])


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("seed", [None, 7])
def test_a_perfect_chain_is_fully_accepted_when_sampled(name: str, seed: int | None) -> None:
    target = engine()
    session = Session(target.info, PROMPT, TOP5, seed=seed, rng=np.random.default_rng(5))
    decode(Decoder(target, CHAINS[name](target, MODEL), Lengths(2)), session)
    assert session.totals.accepted == session.totals.drafted > 50


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("agreement", [1.0, 0.75, -1.0])
def test_a_seed_gives_one_text_with_any_of_them(name: str, agreement: float) -> None:
    target = engine()
    session = Session(target.info, PROMPT, TOP5, seed=7, max_tokens=40)
    decode(Decoder(target, ALL[name](target, FakeModel(agreement=agreement)), Lengths(3)), session)
    assert session.tokens.tolist() == plain(TOP5, 7, max_tokens=40)


def test_the_first_head_is_as_good_as_a_chain_when_sampled() -> None:
    """Those behind it know nothing of what was drawn, and their laws say so."""
    target = engine()
    session = Session(target.info, PROMPT, TOP5, rng=np.random.default_rng(5))
    decode(Decoder(target, heads(target, MODEL), FixedLength(4)), session)
    first, *later = zip(session.totals.accepted_by_position, session.totals.tried_by_position, strict=True)
    assert first[0] == first[1] > 20 and all(0 < accepted < tried for accepted, tried in later[:1])


@pytest.mark.parametrize("name", CHAINS)
def test_laws_are_those_of_the_drafters_model(name: str) -> None:
    target = engine()
    session = Session(target.info, PROMPT, TOP5)
    decoder = Decoder(target, CHAINS[name](target, HALF), FixedLength(0))
    decoder.prefill(session)
    tokens = session.tokens.copy()
    context = DraftContext(
        tokens, 0, TOP5, None, np.random.default_rng(0).random,
        hidden=target.hidden_rows(0)[: session.kv_len], kv_len=session.kv_len,
    )  # fmt: skip
    proposal = decoder.drafter.propose(context, 4)
    assert proposal.laws is not None and len(proposal.laws) == len(proposal.tokens) == 4
    text = tokens.tolist()
    for token, law, confidence in zip(proposal.tokens.tolist(), proposal.laws, proposal.confidences, strict=True):
        logits = HALF.logits(HALF.digest(np.array(text)), np.arange(64))
        ids = np.argsort(-logits, kind="stable")[:8]
        wanted = law_over_candidates(ids, logits[ids], TOP5)
        assert law.ids.tolist() == wanted.ids.tolist() and np.allclose(law.probs, wanted.probs)
        assert confidence == law.prob(token) > 0.0
        text.append(token)


@pytest.mark.parametrize("name", ALL)
def test_a_reduced_head_proposes_token_ids(name: str) -> None:
    ids = np.arange(0, 64, 2)
    target = engine()
    drafter = ALL[name](target, MODEL, token_ids=ids)
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, drafter, FixedLength(3)), session)
    assert session.tokens.tolist() == plain()
    even = sum(token % 2 == 0 for token in session.generated.tolist())
    assert 0 < session.totals.accepted <= even


@pytest.mark.parametrize("name", ALL)
def test_a_draft_ends_behind_a_token_that_looks_unlikely(name: str) -> None:
    def drafted(stop_below: float) -> list[int]:
        target = engine()
        session = Session(target.info, PROMPT, GREEDY, max_tokens=40)
        length = FixedLength(5, stop_below=stop_below)
        return [step.drafted for step in decode(Decoder(target, ALL[name](target, MODEL), length), session)[1:-1]]

    assert set(drafted(1.0)) == {1} and set(drafted(0.0)) == {5}
    assert len(set(drafted(0.2))) > 2


# --- what may happen to a text


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("parked", [2, 30])
def test_parked_and_resumed(name: str, parked: int) -> None:
    target = engine(capacity=160)
    drafter = Watched(ALL[name](target, HALF), HALF)
    session = Session(target.info, PROMPT, GREEDY)
    steps = decode(Decoder(target, drafter, Lengths(4, parked=parked)), session)
    assert session.tokens.tolist()[:_CAPACITY] == plain()
    assert drafter.proposals > 20 and sum(step.drafted == 0 for step in steps) > 5
    if name != "mtp":
        assert all(step.caught_up == 0 for step in steps), "it has nothing to catch up"


@pytest.mark.parametrize("rows", [3, 16])
@pytest.mark.parametrize("seed", range(4))
def test_a_text_that_is_entered_in_its_middle(seed: int, rows: int) -> None:
    """Entered at its end, anew after long pauses, now and then from its beginning: drafts are what the model says."""

    class Windows(Lengths):
        def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
            window = None if kv_len % 7 == 0 else 5
            return replace(super().plan(k_max, prompt_tokens, kv_len, text), window=window)

    target = engine(capacity=400)
    drafting = FakeMultiToken(HALF, max_rows=rows, capacity=400)
    drafter = Watched(MultiToken(drafting, target.info), HALF)
    prompt = [*range(40), *PROMPT]
    session = Session(target.info, prompt, GREEDY, max_tokens=200)
    steps = decode(Decoder(target, drafter, Windows(seed, parked=12)), session)
    assert session.generated.tolist() == greedy_text(MODEL, prompt, 200)
    fed = [step.caught_up for step in steps if step.caught_up]
    # All but the last of its entries, which the draft makes.
    assert drafter.proposals > 20 and fed.count(4) > 1 and max(fed) > 60
    # The same tokens once more, and other ones in front: what it has of them does not count.
    other = Session(target.info, [*range(39, -1, -1), *PROMPT], GREEDY, max_tokens=100)
    decode(Decoder(target, drafter, Windows(seed, parked=12)), other)


def test_a_multi_token_drafter_catches_up_in_chunks() -> None:
    class Parking(FixedLength):
        steps = 0

        def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
            self.steps += 1
            plan = super().plan(k_max, prompt_tokens, kv_len, text)
            return plan if self.steps <= 3 or self.steps > 23 else replace(plan, k=0)

    target = engine()
    drafting = FakeMultiToken(MODEL, max_rows=4, capacity=_CAPACITY)
    drafter = MultiToken(drafting, target.info, max_k=3)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=80)
    steps = decode(Decoder(target, drafter, Parking(3)), session)
    assert all(step.accepted == step.drafted for step in steps)
    # The last entry is not caught up with but made by the draft itself; entries are one fewer than tokens.
    assert [step.caught_up for step in steps if step.caught_up] == [len(PROMPT) - 1, 23]
    assert max(drafting.rows_of("forward")) <= 4
    # Each of its true entries was made once, and every draft behind the first is one row.
    entries = drafter.kv_len(0)
    fed_itself = sum(step.drafted - 1 for step in steps if step.drafted)
    assert sum(drafting.rows_of("forward")) == entries + fed_itself


@pytest.mark.parametrize("name", ALL)
def test_a_prefix_that_was_copied(name: str) -> None:
    """The rows of the prefix come with it, though no forward of this session made them."""
    target = engine(slots=3)
    drafter = Watched(ALL[name](target, HALF), HALF)
    decoder = Decoder(target, drafter, Lengths(5))
    first = Session(target.info, PROMPT, GREEDY, max_tokens=40, slot=1)
    decode(decoder, first)
    other = Session(target.info, [7] * 20, GREEDY, max_tokens=30, slot=2)
    decode(decoder, other)
    shared = 30
    prompt = [*first.tokens[:shared].tolist(), 3, 4]
    target.copy_prefix(1, 2, shared)
    drafter.proposals = 0
    second = Session(target.info, prompt, GREEDY, slot=2, kv_len=shared, max_tokens=40)
    decode(decoder, second)
    assert second.generated.tolist() == greedy_text(MODEL, prompt, 40) and drafter.proposals > 8


def test_rows_that_were_not_copied_would_be_noticed() -> None:
    """Companion: the check above can fail, for the drafter that reads all of them."""
    target = engine(slots=2)
    decoder = Decoder(target, Watched(multi_token(target, MODEL), MODEL), FixedLength(3))
    decode(decoder, Session(target.info, PROMPT, GREEDY, max_tokens=40))
    target.copy_prefix(0, 1, 30)
    target.hidden_rows(1)[:30] = 0.0
    prompt = [int(token) for token in target.cache[0][:30]]
    with pytest.raises(AssertionError):
        decode(decoder, Session(target.info, prompt, GREEDY, slot=1, kv_len=29, max_tokens=20))


@pytest.mark.parametrize("name", ALL)
def test_a_text_that_is_cut_and_another_in_its_place(name: str) -> None:
    target = engine()
    drafter = Watched(ALL[name](target, HALF), HALF)
    decoder = Decoder(target, drafter, Lengths(6))
    session = Session(target.info, PROMPT, GREEDY, max_tokens=60)
    decode(decoder, session)
    wanted = session.tokens.tolist()
    for length in (50, 49, 20, len(PROMPT) + 1):
        session.cut(length)
        session.finish_reason = None
        decode(decoder, session)
        assert session.tokens.tolist() == wanted
    other = Session(target.info, [1, 2], GREEDY, max_tokens=60)
    decode(decoder, other)
    assert other.generated.tolist() == greedy_text(MODEL, [1, 2], 60)
    one = Session(target.info, [1], GREEDY, max_tokens=20)
    decode(decoder, one)
    assert one.generated.tolist() == greedy_text(MODEL, [1], 20)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("place", range(8))
def test_an_end_of_text_inside_a_draft(name: str, place: int) -> None:
    answer = greedy_text(MODEL, PROMPT, 12)
    eos = [answer[place]]
    target = engine()
    session = Session(target.info, PROMPT, GREEDY, eos_ids=eos, max_tokens=12)
    decode(Decoder(target, ALL[name](target, MODEL), FixedLength(4)), session)
    assert session.generated.tolist() == answer[: answer.index(eos[0]) + 1]
    assert session.finish_reason == "stop" and session.totals.accepted == session.totals.drafted


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("capacity", [8, 9, 10, 13, 16])
def test_the_end_of_the_context(name: str, capacity: int) -> None:
    target = engine(capacity=capacity)
    drafter = Watched(ALL[name](target, MODEL), MODEL)
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, drafter, FixedLength(5)), session)
    assert session.generated.tolist() == greedy_text(MODEL, PROMPT, capacity - len(PROMPT))


def test_a_multi_token_drafter_with_a_smaller_context_falls_back() -> None:
    target = engine(capacity=40)
    drafter = Watched(multi_token(target, MODEL, capacity=16), MODEL)
    session = Session(target.info, PROMPT, GREEDY)
    steps = decode(Decoder(target, drafter, FixedLength(4)), session)
    assert session.generated.tolist() == greedy_text(MODEL, PROMPT, 34)
    assert any("nearly full" in step.reason for step in steps)
    assert "past the draft's context of 16" in steps[-2].reason
    # One entry fewer than tokens, and the last draft is never fed: it reaches two tokens past its cache.
    reached = max(sum(len(step.tokens) for step in steps[: i + 1]) for i, step in enumerate(steps) if step.drafted)
    assert len(PROMPT) + reached >= 16 + 2


@pytest.mark.parametrize("name", ALL)
def test_a_first_step_without_prefill_has_no_rows_to_draft_from(name: str) -> None:
    target = engine()
    drafter = Watched(ALL[name](target, MODEL), MODEL)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=20)
    decoder = Decoder(target, drafter, FixedLength(3))
    first = decoder.step(session)
    assert first.drafted == 0 and "has not run the text yet" in first.reason
    while session.finish_reason is None:
        decoder.step(session)
    assert session.totals.accepted == session.totals.drafted > 0


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("of", ["target", "draft"])
def test_an_engine_that_fails_leaves_text_and_drafts_as_they_were(name: str, of: str) -> None:
    wanted = greedy_text(MODEL, PROMPT, 24)
    for calls in range(0, 24, 3):
        target = engine()
        inner = ALL[name](target, MODEL)
        drafter = Watched(inner, MODEL)
        failing: FakeEngine = target if of == "target" else inner._engine  # type: ignore[attr-defined]
        failing.fail_after = calls
        session = Session(target.info, PROMPT, GREEDY, max_tokens=24)
        decoder = Decoder(target, drafter, FixedLength(3))
        failed = 0
        while session.finish_reason is None:
            try:
                decoder.advance(session)
            except EngineError:
                failed += 1
        assert failed == (failing.fail_after is None) and session.generated.tolist() == wanted
        assert session.totals.accepted == session.totals.drafted


@pytest.mark.parametrize("name", ALL)
def test_two_texts_in_turn(name: str) -> None:
    target = engine(slots=2)
    drafter = Watched(ALL[name](target, HALF), HALF)
    decoder = Decoder(target, drafter, Lengths(8))
    prompts = (PROMPT, PROMPT[::-1])
    sessions = [Session(target.info, p, GREEDY, slot=i, max_tokens=30) for i, p in enumerate(prompts)]
    while any(session.finish_reason is None for session in sessions):
        for session in sessions:
            if session.finish_reason is None:
                decoder.advance(session)
    for session, prompt in zip(sessions, prompts, strict=True):
        assert session.generated.tolist() == greedy_text(MODEL, prompt, 30)


def test_a_slot_that_the_draft_lacks() -> None:
    target = engine(slots=2)
    drafter = MultiToken(FakeMultiToken(MODEL), target.info)
    session = Session(target.info, PROMPT, GREEDY, slot=1, max_tokens=10)
    steps = decode(Decoder(target, drafter, FixedLength(3)), session)
    assert session.totals.drafted == 0 and "no slot 1" in steps[-2].reason
    drafter.reset(1)


# --- mistakes that the tests above would see


class Misled:
    """Hands its drafter another context than the true one."""

    def __init__(self, inner: Drafter, change: Callable[[DraftContext], DraftContext]) -> None:
        self.inner, self.change = inner, change
        self.name, self.max_k = inner.name, inner.max_k

    def warm(self, context: DraftContext) -> int:
        return self.inner.warm(self.change(context))

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        return self.inner.propose(self.change(context), k)

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass


def shifted(by: int) -> Callable[[DraftContext], DraftContext]:
    def change(context: DraftContext) -> DraftContext:
        return context if context.hidden is None else replace(context, hidden=np.roll(context.hidden, by, axis=0))

    return change


def share(drafter: Drafter, target: FakeEngine, k: int = 3) -> float:
    """Of drafts that were accepted; the text is right whatever the drafter does."""
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, drafter, FixedLength(k)), session)
    assert session.tokens.tolist() == plain()
    return session.totals.accepted / session.totals.drafted


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("by", [1, -1])
def test_a_row_off_by_one_costs_acceptance(name: str, by: int) -> None:
    target = engine()
    assert share(Misled(READERS[name](target, MODEL), shifted(by)), target) < 0.1


def test_a_self_draft_off_by_one_or_with_a_cache_of_its_own_costs_acceptance() -> None:
    class OffByOne(FakeSelfDraft):
        def forward(self, step: Any) -> Any:
            return super().forward(replace(step, position=step.position - 1))

    target = engine(keeps_hidden=False)
    assert share(SelfDraft(FakeSelfDraft(target), target.info), target) == 1.0
    # Written into what the text stands on: a mistake that must not be made at all.
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, SelfDraft(OffByOne(target), target.info), FixedLength(3)), session)
    assert session.tokens.tolist() != plain()
    target = engine(keeps_hidden=False)
    session = Session(target.info, PROMPT, GREEDY)
    decode(Decoder(target, DraftModel(FakeSelfDraft(target), target.info), FixedLength(3)), session)
    assert session.totals.accepted < 0.2 * session.totals.drafted


def test_rows_fed_back_at_the_wrong_place_cost_acceptance() -> None:
    class Moving(FakeAssistant):
        """Its drafts move on, as those of a model with a cache do."""

        moved = 0

        def forward(self, step: Any) -> Any:
            starts = np.array_equal(step.hidden[0], target.hidden_rows(0)[step.position])
            self.moved = 0 if starts else self.moved + 1
            return super().forward(replace(step, position=min(step.position + self.moved, _CAPACITY - 1)))

    target = engine()
    assert share(Assistant(Moving(target), target.info), target) < 0.5

    class Trusting(MultiToken):
        """Keeps the entries that it fed itself."""

        def propose(self, context: DraftContext, k: int) -> DraftProposal:
            proposal = super().propose(context, k)
            made, slot = len(proposal.tokens), context.slot
            if made > 1:
                self._cache._seen[slot, len(context.tokens) :][:made] = proposal.tokens
                self._cache._kv_len[slot] += made - 1
            return proposal

    drafter = Watched(Trusting(FakeMultiToken(HALF), target.info), HALF)
    with pytest.raises(AssertionError):
        decode(Decoder(target, drafter, FixedLength(4)), Session(target.info, PROMPT, GREEDY))


# --- what does not fit


@pytest.mark.parametrize("make", [multi_token, heads, assistant])
def test_a_target_that_keeps_no_rows_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="reads hidden rows of 3, and the target keeps none"):
        make(engine(keeps_hidden=False), MODEL)


@pytest.mark.parametrize("name", ALL)
def test_a_vocabulary_that_does_not_match_is_refused(name: str) -> None:
    with pytest.raises(VocabularyMismatch, match="the draft has 32 tokens"):
        ALL[name](engine(), FakeModel(vocab_size=32))


# --- the law


LAW_MODEL = FakeModel(vocab_size=32, seed=1, scale=1.2)


@pytest.mark.parametrize("name", ALL)
def test_two_tokens_follow_the_targets_joint_law(name: str) -> None:
    """32 x 32 texts: both drafts, what replaces either, and the bonus behind one of them all count."""
    target = FakeEngine(LAW_MODEL, keeps_hidden=True)
    drafter = ALL[name](target, replace(LAW_MODEL, agreement=0.7))
    decoder, rng = Decoder(target, drafter, FixedLength(2, 1)), np.random.default_rng(11)
    prompt, params = [1, 2, 3, 1], SamplingParams()
    decoder.prefill(Session(target.info, prompt, GREEDY))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[int] = Counter()
    for _ in range(500):
        # Room for two drafts and the bonus behind them.
        session = Session(target.info, prompt, params, rng=rng, max_tokens=3, kv_len=len(prompt) - 1)
        accepted[decoder.step(session).accepted] += 1
        if len(session.generated) < 2:
            decoder.step(session)
        counts[tuple(session.generated[:2].tolist())] += 1
    law: dict[tuple[int, ...], float] = {}
    for one, chance in next_law(prompt, params):
        law |= {(one, two): chance * then for two, then in next_law([*prompt, one], params)}
    assert chi_square_excess(counts, law) < 4.0
    assert min(accepted[count] for count in (0, 1, 2)) > 25


def next_law(text: list[int], params: SamplingParams) -> list[tuple[int, float]]:
    law = law_from_logits(LAW_MODEL.logits(LAW_MODEL.digest(np.array(text)), np.arange(32)), params)
    return list(zip(law.ids.tolist(), law.probs.tolist(), strict=True))
