"""Every drafter and every policy of K, over fakes, by name. Knows no test."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from choosing import told_costs
from test_cost import BOARD, CPU

from edge_runtime.drafters.chooser import Chooser
from edge_runtime.drafters.costs import StepCosts
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.heads import ParallelHeads
from edge_runtime.drafters.length import ConfidenceLength, FixedLength, LengthPlan, LengthPolicy, PromptLength
from edge_runtime.drafters.mtp import Assistant, MultiToken
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Cacheless, DraftContext, Drafter, DraftProposal, NoDraft
from edge_runtime.drafters.self_draft import SelfDraft
from edge_runtime.drafters.several import Several
from edge_runtime.drafters.strategy import Beam, strategy_named
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.ledger import TextState
from edge_runtime.testing import FakeAssistant, FakeEngine, FakeHeads, FakeModel, FakeMultiToken, FakeSelfDraft


class RandomTrees(Cacheless):
    """Any tree (or chain) of tokens, each the target's next one with some luck."""

    name = "random_trees"
    max_k = 8

    def __init__(self, model: FakeModel, seed: int, luck: float, chains: bool = False) -> None:
        self._model, self._chance, self._luck, self._chains = model, random.Random(seed), luck, chains

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        chance, ids = self._chance, np.arange(self._model.vocab_size)
        count = chance.randint(0, k)
        parents = [chance.randint(-1, i - 1) if not self._chains else i - 1 for i in range(count)]
        tokens: list[int] = []
        digests: list[int] = []
        root = self._model.digest(context.tokens)
        for parent in parents:
            before = root if parent < 0 else digests[parent]
            best = int(self._model.logits(before, ids).argmax())
            tokens.append(best if chance.random() < self._luck else chance.randrange(self._model.vocab_size))
            digests.append(self._model.extend(before, tokens[-1]))
        tree = None if self._chains else np.array(parents, np.int64)
        return DraftProposal(np.array(tokens, np.int64), None, self.name, parents=tree)


class RandomLength(FixedLength):
    """Another K at every step, also none, and another way to read the head."""

    def __init__(self, seed: int, most: int) -> None:
        super().__init__(most)
        self._chance, self._most = random.Random(seed), most

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        chance = self._chance
        k = min(k_max, chance.choice([0, chance.randint(0, self._most), self._most]))
        stop_below = chance.choice([0.0, 0.0, 0.5])
        return LengthPlan(k, chance.choice(["batched", 1, 2, 3]), f"K={k}", stop_below, branches=chance.choice([0, 2]))


Make = Callable[[FakeEngine, FakeModel, int], Drafter]
"""Of a target, the drafter's model and a seed."""


def _draft(strategy: str) -> Make:
    def make(target: FakeEngine, model: FakeModel, seed: int) -> Drafter:
        engine = FakeEngine(model, slots=2, capacity=target.info.capacity, max_rows=5)
        return DraftModel(engine, target.info, strategy=strategy_named(strategy))

    return make


def _beam(target: FakeEngine, model: FakeModel, seed: int) -> Drafter:
    return DraftModel(FakeEngine(model, slots=2, max_rows=8), target.info, strategy=Beam(3))


def _small_draft(target: FakeEngine, model: FakeModel, seed: int) -> Drafter:
    """Of a smaller context, a part of the vocabulary, fewer slots."""
    ids = np.arange(1, model.vocab_size, 2)
    engine = FakeEngine(model, slots=1, capacity=max(4, target.info.capacity - 9), max_rows=3, token_ids=ids)
    return DraftModel(engine, target.info)


def _mtp(target: FakeEngine, model: FakeModel, seed: int) -> Drafter:
    made = FakeMultiToken(model, slots=2, capacity=target.info.capacity, max_rows=5, min_rows=1 + seed % 2)
    return MultiToken(made, target.info)


MAKERS: dict[str, Make] = {
    "none": lambda target, model, seed: NoDraft(),
    "lookup": lambda target, model, seed: PromptLookup(2, 1),
    "suffix": lambda target, model, seed: SuffixCache(1024, secret=b"\x00"),
    "draft": _draft("as-requested"),
    "draft, top-k": _draft("top-k:3"),
    "draft, a beam": _beam,
    "draft, a small one": _small_draft,
    "mtp": _mtp,
    "assistant": lambda target, model, seed: Assistant(FakeAssistant(target, model), target.info),
    "heads": lambda target, model, seed: ParallelHeads(FakeHeads(model, fan_out=5), target.info),
    "self": lambda target, model, seed: SelfDraft(FakeSelfDraft(target, model), target.info),
    "chains": lambda target, model, seed: RandomTrees(target.model, seed, 0.7, chains=True),
    "trees": lambda target, model, seed: RandomTrees(target.model, seed, 0.7),
}
OWN_CACHE = ("draft", "mtp", "assistant", "heads", "self")
"""Drafters of which a chooser may have several."""


def policy_of(name: str, k: int, seed: int) -> LengthPolicy:
    if name == "random":
        return RandomLength(seed, k)
    if name == "confidence":
        return ConfidenceLength()
    return PromptLength() if name == "prompt-length" else FixedLength(k, branches=seed % 3)


def chosen(target: FakeEngine, model: FakeModel, seed: int) -> tuple[Several, Chooser]:
    """What ``auto`` is: free drafters and some that run an engine, one policy for all."""
    chance = random.Random(seed)
    models = [MAKERS[name](target, model, seed) for name in chance.sample(OWN_CACHE, chance.randint(0, 3))]
    free = [PromptLookup(2, 1), SuffixCache(1024, secret=b"\x00")][: chance.randint(0 if models else 1, 2)]
    costs = told_costs(chance.choice([BOARD, CPU]), {one.name: (0.0, 0.0) for one in models}, target.info.min_rows)
    # Also one that was told nothing, and finds out.
    costs = costs if chance.random() < 0.7 else StepCosts(target.info.min_rows)
    branches = chance.choice([0, 2])
    chooser = Chooser(costs, [(one.name, min(5, one.max_k)) for one in models], 5, 15, branches=branches)
    return Several("auto", free, models), chooser
