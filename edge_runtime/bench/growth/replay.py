"""Acceptance set to a rate: drafting can be timed where the weights say nothing. Knows no drafter and no figure.

The drafter drafts and the target runs, at their full cost. Only what the rows say of the drafts is replaced: a coin for
each position of the text in each round, the same for every K. The text that comes out is nobody's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...drafters.protocol import NO_TOKENS, Cacheless, DraftContext, DraftProposal
from ...engines.protocol import Engine, EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from ...noise import uniforms

_SEED = 20240607


class Replayed:
    """Implements ``engines.protocol.Engine`` over a target, for greedy requests: those are judged by the best token."""

    def __init__(self, engine: Engine) -> None:
        self.acceptance: float | None = None
        """Chance that a draft is kept, each by itself; ``None``: what the target says."""
        self.round = 0
        """Has coins of its own."""
        self._engine = engine
        self._position = self._rows = 0

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def forward(self, step: StepInput) -> StepOutput:
        self._position, self._rows = step.position, len(step.tokens)
        made = self._engine.forward(replace(step, head=None))
        return made if step.head is None else replace(made, head=self.head(step.head))

    def head(self, request: HeadRequest) -> HeadOutput:
        said = self._engine.head(request)
        if self.acceptance is None or request.gather_ids is None:
            return said
        best, ids = said.argmax.copy(), said.candidate_ids.copy()
        # Behind the last row nothing was drafted.
        for row in range(min(request.stop, self._rows - 1) - request.first):
            draft = int(request.gather_ids[row])
            kept = uniforms(_SEED + self.round, self._position + request.first + row + 1, 0) < self.acceptance
            other = int(best[row]) if best[row] != draft else int(ids[row, -1])
            # The first candidate too: a token that is none would cost a look at the whole row.
            best[row] = ids[row, 0] = draft if kept else other
        return replace(said, argmax=best, candidate_ids=ids)

    def logits(self, row: int) -> Floats:
        return self._engine.logits(row)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self._engine.copy_prefix(source, target, count)

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        self._engine.keep_path(slot, position, rows)

    def forget(self, slot: int) -> None:
        self._engine.forget(slot)

    def hidden_rows(self, slot: int) -> Floats:
        return self._engine.hidden_rows(slot)

    def close(self) -> None:
        self._engine.close()


class FreeDraft(Cacheless):
    """The last token again and again: what a draft costs that costs nothing, where a bundle has no drafter."""

    name = "none"

    def __init__(self, max_k: int) -> None:
        self.max_k = max_k

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        count = min(k, self.max_k)
        return DraftProposal(np.repeat(context.tokens[-1:], count) if count else NO_TOKENS, None, self.name)
