"""A small model drafts. Knows no target engine and no clock."""

from __future__ import annotations

import numpy as np

from edge_runtime.engines.protocol import Engine, EngineInfo, HeadOutput, HeadRequest, StepInput
from edge_runtime.errors import VocabularyMismatch

from .chain import Chain
from .draft_cache import DraftCache
from .protocol import NO_TOKENS, DraftContext, DraftProposal
from .strategy import AsRequested, Beam, Expand, Strategy, beside

_JOINED = 2
"""Tokens that the first forward of a draft takes along: what a step of full acceptance leaves behind."""


class DraftModel:
    """A chain of tokens, each chosen by the strategy."""

    name = "draft_model"
    window: int | None = None

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``VocabularyMismatch`` when the draft could name a token that the target lacks."""
        refuse_vocabulary(engine.info, target)
        self.max_k = max_k
        self._engine = engine
        self._strategy = strategy or AsRequested()
        self._cache = DraftCache(engine)

    def kv_len(self, slot: int) -> int:
        """Valid cache entries of a slot."""
        return self._cache.kv_len(slot)

    def warm(self, context: DraftContext) -> int:
        return self._cache.warm(context, _JOINED)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        cache = self._cache
        refusal, room = cache.refusal(context), cache.room(context)
        most = min(k, self.max_k, room)
        if refusal or most < 1:
            return DraftProposal(NO_TOKENS, None, self.name, refusal)
        note = nearly_full(self._engine.info) if room < k else ""
        if isinstance(self._strategy, Beam):
            paths = self._strategy.search(self._expanding(context), min(most, self._engine.info.max_rows))
            tokens, parents = beside(paths, context.branches)
            tree = np.array(parents, np.int64) if len(tokens) > len(paths[0].tokens) else None
            drafted = np.array(tokens, np.int64)
            return DraftProposal(drafted, None, self.name, note, paths[0].probabilities, parents=tree)
        chain = Chain(self._strategy, context, most)
        output = cache.catch_up(context, context.params.inverse_temperature)
        while chain.choose(output.head):
            output = cache.extend(context.slot, chain.last, chain.request(0))
        return chain.proposal(self.name, note)

    def _expanding(self, context: DraftContext) -> Expand:
        """Looks ahead behind what the cache holds, and leaves nothing there that it would take for the text's."""
        inverse_temperature = context.params.inverse_temperature
        first = self._cache.catch_up(context, inverse_temperature).head
        assert first is not None  # it was asked for
        begin = _falling(first, inverse_temperature)
        place = self._cache.place(context.slot)

        def expand(tokens: tuple[int, ...]) -> tuple[list[int], list[float]]:
            if not tokens:
                return begin
            request = HeadRequest(len(tokens) - 1, len(tokens), inverse_temperature)
            step = StepInput(context.slot, np.array(tokens, np.int64), place, request)
            head = self._engine.forward(step).head
            assert head is not None  # it was asked for
            return _falling(head, inverse_temperature)

        return expand

    def observe(self, slot: int, accepted: int) -> None:
        pass  # the next context tells

    def reset(self, slot: int) -> None:
        self._cache.reset(slot)


def _falling(head: HeadOutput, inverse_temperature: float) -> tuple[list[int], list[float]]:
    logprobs = head.candidate_logits[0].astype(np.float64) * inverse_temperature - float(head.logsumexp[0])
    return head.candidate_ids[0].tolist(), logprobs.tolist()


def nearly_full(draft: EngineInfo) -> str:
    return f"the draft's context of {draft.capacity} is nearly full"


def refuse_vocabulary(draft: EngineInfo, target: EngineInfo) -> None:
    """Raises ``VocabularyMismatch`` when the draft could name a token that the target lacks."""
    ids = draft.token_ids
    if ids is None and draft.vocab_size != target.vocab_size:
        raise VocabularyMismatch(
            f"the draft has {draft.vocab_size} tokens and the target {target.vocab_size}, and no map between them"
        )
    if ids is not None and not (len(ids) and int(ids.min()) >= 0 and int(ids.max()) < target.vocab_size):
        raise VocabularyMismatch(f"the draft's head names tokens outside 0..{target.vocab_size - 1}")
