"""Parallel heads draft: several next tokens out of one row of the target, at once. Knows no target engine.

After Cai et al. 2024 (Medusa), whose heads read the row alone; these read the token behind it too. A head does not see
what the heads before it chose, so each law stands by itself.
"""

from __future__ import annotations

from edge_runtime.engines.protocol import Engine, EngineInfo, HeadRequest, StepInput

from .chain import Chain
from .mtp import refuse_target, row_to_draft_from
from .protocol import NO_TOKENS, Cacheless, DraftContext, DraftProposal
from .strategy import AsRequested, Strategy


class ParallelHeads(Cacheless):
    """One forward, one head for all rows; nothing to catch up."""

    name = "heads"

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``ConfigError`` and ``VocabularyMismatch`` where the two do not fit."""
        refuse_target(engine.info, target)
        self.max_k = min(max_k, engine.info.fan_out)
        self._engine = engine
        self._strategy = strategy or AsRequested()

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        hidden, most = row_to_draft_from(context), min(k, self.max_k)
        if hidden is None:
            return DraftProposal(NO_TOKENS, None, self.name, "the target has not run the text yet")
        if most < 1:
            return DraftProposal(NO_TOKENS, None, self.name)
        chain = Chain(self._strategy, context, most)
        request = HeadRequest(0, most, context.params.inverse_temperature)
        # Without a cache a row is the same at any place.
        step = StepInput(0, context.tokens[-1:], 0, request, hidden)
        head, row = self._engine.forward(step).head, 0
        while chain.choose(head, row):
            row += 1
        return chain.proposal(self.name)
