"""Drafts with alternatives: the text is the target's whatever they are, and a good one is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.mtp import MultiToken
from edge_runtime.drafters.protocol import DraftContext, DraftProposal
from edge_runtime.engines.protocol import StepInput
from edge_runtime.errors import EngineError
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, FakeMultiToken, decode
from edge_runtime.tree import Tree, attends, chain_length, depths, row_parents

GREEDY = SamplingParams(temperature=0.0)
TARGET = FakeModel(vocab_size=32, seed=3)


def trees(most: int = 7) -> st.SearchStrategy[list[int]]:
    """Parents of up to ``most`` tokens."""
    return st.integers(0, most).flatmap(lambda n: st.tuples(*(st.integers(-1, i - 1) for i in range(n)))).map(list)


class RandomTrees:
    """Proposes any tree, whose tokens are the target's next ones with some luck."""

    name = "random_trees"
    max_k = 8

    def __init__(self, model: FakeModel, seed: int, luck: float) -> None:
        self._model, self._rng, self._luck = model, np.random.default_rng(seed), luck

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        rng, ids = self._rng, np.arange(self._model.vocab_size)
        count = int(rng.integers(0, k + 1))
        parents = np.array([int(rng.integers(-1, i)) for i in range(count)], np.int64)
        tokens, digests = np.zeros(count, np.int64), []
        root = self._model.digest(context.tokens)
        for node, parent in enumerate(parents.tolist()):
            before = root if parent < 0 else digests[parent]
            best = int(self._model.logits(before, ids).argmax())
            tokens[node] = best if rng.random() < self._luck else int(rng.integers(self._model.vocab_size))
            digests.append(self._model.extend(before, int(tokens[node])))
        return DraftProposal(tokens, None, self.name, parents=parents)

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass


def text_of(decoder: Decoder, params: SamplingParams, seed: int | None = None, **options: object) -> list[int]:
    session = Session(decoder.target.info, [1, 2, 3], params, max_tokens=40, seed=seed, **options)  # type: ignore[arg-type]
    decode(decoder, session)
    return session.generated.tolist()


@given(parents=trees())
def test_a_row_sees_itself_and_its_ancestors(parents: list[int]) -> None:
    sees = attends(parents)
    for row, parent in enumerate(parents):
        wanted = {row} | ({i for i in range(len(parents)) if sees[parent, i]} if parent >= 0 else set())
        assert {i for i in range(len(parents)) if sees[row, i]} == wanted
        assert depths(parents)[row] == len(wanted) - 1


def test_a_chain_is_a_tree() -> None:
    parents = np.array([-1, 0, 1])
    tree = Tree.of(np.array([7, 8, 9]), parents)
    assert [tree.next(node) for node in (-1, 0, 1, 2)] == [0, 1, 2, None]
    assert chain_length(parents) == 3 and chain_length(np.array([-1, 0, 0, 2])) == 2
    assert row_parents(1, np.array([-1, 0, -1])).tolist() == [-1, 0, 1, 2, 1]
    with pytest.raises(ValueError, match="follows token"):
        Tree.of(np.array([1, 2]), np.array([-1, 1]))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), luck=st.sampled_from([0.0, 0.6, 1.0]), noise=st.sampled_from([None, 5]))
def test_any_tree_leaves_the_text_as_it_is(seed: int, luck: float, noise: int | None) -> None:
    params = GREEDY if noise is None else SamplingParams(temperature=1.0)
    plain = text_of(Decoder(FakeEngine(TARGET)), params, noise)
    target = FakeEngine(TARGET, trees=True)
    decoder = Decoder(target, RandomTrees(TARGET, seed, luck), FixedLength(8), max_head_rows=4)
    assert text_of(decoder, params, noise) == plain


def test_an_alternative_that_is_right_is_kept_and_costs_no_step() -> None:
    """The second best of a draft is what the target wants at every other place."""
    plain = text_of(Decoder(FakeEngine(TARGET)), GREEDY)

    class SecondBest(RandomTrees):
        def propose(self, context: DraftContext, k: int) -> DraftProposal:
            done = len(context.tokens) - 3
            right = plain[done : done + 2]
            if len(right) < 2 or k < 3:
                return DraftProposal(np.zeros(0, np.int64), None, self.name)
            tokens = np.array([right[0] ^ 1, right[0], right[1]])
            return DraftProposal(tokens, None, self.name, parents=np.array([-1, -1, 1]))

    target = FakeEngine(TARGET, trees=True, keeps_hidden=True)
    decoder = Decoder(target, SecondBest(TARGET, 0, 0.0), FixedLength(4))
    session = Session(target.info, [1, 2, 3], GREEDY, max_tokens=40)
    steps = decode(decoder, session)
    assert session.generated.tolist() == plain
    trees = [step for step in steps if step.rows == 4]
    assert len(trees) >= 11 and {len(step.tokens) for step in trees} == {3}
    assert all(step.accepted == step.drafted == step.tried == 2 for step in trees)
    assert target.rows_of("keep")
    # What is kept is a text again, its hidden rows too.
    again = FakeEngine(TARGET, keeps_hidden=True, max_rows=64)
    again.forward(StepInput(0, session.tokens[: session.kv_len], 0, None))
    assert target.digests[0][: session.kv_len] == again.digests[0][: session.kv_len]
    assert np.array_equal(target.hidden_rows(0)[: session.kv_len], again.hidden_rows(0)[: session.kv_len])


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("kind", ["model", "mtp"])
def test_alternatives_of_a_drafter_raise_acceptance(kind: str, seed: int | None) -> None:
    params = SamplingParams(temperature=1.0)
    near = FakeModel(vocab_size=32, seed=3, agreement=0.6)
    lengths = []
    for branches in (0, 6):
        target = FakeEngine(TARGET, capacity=512, trees=True, keeps_hidden=True)
        drafter = (
            DraftModel(FakeEngine(near, capacity=512), target.info)
            if kind == "model"
            else MultiToken(FakeMultiToken(near, capacity=512), target.info)
        )
        decoder = Decoder(target, drafter, FixedLength(3, branches=branches))
        session = Session(target.info, [1, 2, 3], params, max_tokens=200, seed=seed, rng=np.random.default_rng(1))
        decode(decoder, session)
        lengths.append(session.totals.committed / session.totals.steps)
    assert lengths[1] > lengths[0] + 0.2


def test_the_joint_law_of_two_tokens_with_alternatives() -> None:
    """Chains are drawn, alternatives are not; together they must leave the law of the text alone."""
    model = FakeModel(vocab_size=8, seed=1, scale=1.0)
    near = FakeModel(vocab_size=8, seed=1, scale=1.0, agreement=0.3)
    params = SamplingParams(temperature=1.0)
    ids = np.arange(8)

    def law(digest: int) -> np.ndarray:
        logits = model.logits(digest, ids).astype(np.float64)
        made = np.exp(logits - logits.max())
        return made / made.sum()

    root = model.digest(np.array([1, 2]))
    first = law(root)
    wanted = np.stack([first[a] * law(model.extend(root, a)) for a in range(8)])
    rng, counts, runs = np.random.default_rng(0), np.zeros((8, 8)), 2500
    target, engine = FakeEngine(model, trees=True), FakeEngine(near)
    decoder = Decoder(target, DraftModel(engine, target.info), FixedLength(2, branches=3))
    for _ in range(runs):
        session = Session(target.info, [1], params, max_tokens=4, rng=rng)
        session.commit([2], [0.0], 0)
        session.prompt_len = 2
        decode(decoder, session)
        counts[session.generated[0], session.generated[1]] += 1
    chi_square = ((counts - runs * wanted) ** 2 / (runs * wanted)).sum()
    assert chi_square < 63 + 4 * np.sqrt(2 * 63)


def test_a_failed_forward_of_a_tree_is_tried_again() -> None:
    plain = text_of(Decoder(FakeEngine(TARGET)), GREEDY)
    for fail_after in range(1, 12):
        target = FakeEngine(TARGET, trees=True)
        decoder = Decoder(target, RandomTrees(TARGET, 4, 0.7), FixedLength(6))
        session = Session(target.info, [1, 2, 3], GREEDY, max_tokens=40)
        target.fail_after = fail_after
        while session.finish_reason is None:
            try:
                decoder.step(session)
            except EngineError:
                assert target.fail_after is None
        assert session.generated.tolist() == plain
