"""A small model drafts. Knows no target engine and no clock."""

from __future__ import annotations

from edge_runtime.engines.protocol import Engine, EngineInfo
from edge_runtime.errors import VocabularyMismatch

from .chain import Chain
from .draft_cache import DraftCache
from .protocol import NO_TOKENS, DraftContext, DraftProposal
from .strategy import AsRequested, Strategy

_JOINED = 2
"""Tokens that the first forward of a draft takes along: what a step of full acceptance leaves behind."""


class DraftModel:
    """A chain of tokens, each chosen by the strategy."""

    name = "draft_model"

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
        chain = Chain(self._strategy, context, most)
        output = cache.catch_up(context, context.params.inverse_temperature)
        while chain.choose(output.head):
            output = cache.extend(context.slot, chain.last, chain.request(0))
        return chain.proposal(self.name, nearly_full(self._engine.info) if room < k else "")

    def observe(self, slot: int, accepted: int) -> None:
        pass  # the next context tells

    def reset(self, slot: int) -> None:
        self._cache.reset(slot)


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
