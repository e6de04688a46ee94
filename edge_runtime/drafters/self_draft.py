"""The target's own first layers draft. Knows no target engine but for the cache that the two share.

What the layers compute of a drafted token is what they compute of it again when it is verified, and the target's
cache has all that they need of the text: there is nothing to catch up.
"""

from __future__ import annotations

from edge_runtime.engines.protocol import Engine, EngineInfo, StepInput

from .chain import Chain
from .draft_model import nearly_full, refuse_vocabulary
from .protocol import NO_TOKENS, Cacheless, DraftContext, DraftProposal
from .strategy import AsRequested, Strategy


class SelfDraft(Cacheless):
    """Writes behind what the target's cache holds, where the verification writes anyway."""

    name = "self"

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``VocabularyMismatch`` when the draft could name a token that the target lacks."""
        refuse_vocabulary(engine.info, target)
        self.max_k = max_k
        self._engine = engine
        self._strategy = strategy or AsRequested()

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        place = len(context.tokens) - 1
        room = self._engine.info.capacity - place
        most = min(k, self.max_k, room)
        if context.kv_len < place:
            return DraftProposal(NO_TOKENS, None, self.name, "the target has not run the text yet")
        if most < 1:
            return DraftProposal(NO_TOKENS, None, self.name)
        chain = Chain(self._strategy, context, most)
        token = context.tokens[-1:]
        while True:
            output = self._engine.forward(StepInput(context.slot, token, place, chain.request(0)))
            if not chain.choose(output.head):
                return chain.proposal(self.name, nearly_full(self._engine.info) if room < k else "")
            token, place = chain.last, place + 1
