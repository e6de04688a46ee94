"""How a drafter picks a token from what its head says: strategies by name. Knows no engine and no cache.

Whatever a strategy does to the draft's law, the law that it hands out is exactly the one its token was drawn from:
that, and nothing about its quality, is what keeps the text lossless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_runtime.acceptance import gumbel_pick, pick
from edge_runtime.engines.protocol import HeadOutput
from edge_runtime.noise import gumbel
from edge_runtime.sampling import Distribution, law_over_candidates

from .protocol import DraftContext


@dataclass(frozen=True, slots=True, eq=False)
class DraftToken:
    token: int
    law: Distribution | None
    """What it was drawn from; ``None``: it was not drawn (one-hot, or by the noise that the target uses too)."""
    probability: float
    """The draft's own, of this token: what predicts whether it will be kept."""


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        """A token for ``position`` by a row of a head that ran at the request's inverse temperature."""
        ...


class AsRequested:
    """Greedy where the request is, drawn by its law (or by its noise, where it is seeded) otherwise."""

    name = "as-requested"

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        if context.params.greedy:
            probability = float(np.exp(head.candidate_logits[row, 0] - head.logsumexp[row]))
            return DraftToken(int(head.argmax[row]), None, probability)
        law = law_over_candidates(head.candidate_ids[row], head.candidate_logits[row], context.params)
        if context.seed is not None:
            token = gumbel_pick(law, gumbel(context.seed, position, law.ids))
            return DraftToken(token, None, law.prob(token))
        token = pick(law, context.uniform())
        return DraftToken(token, law, law.prob(token))
