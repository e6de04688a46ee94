"""A drafter that knows the text beforehand, and sessions run to their end. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..decoder import Decoder
from ..drafters.protocol import DraftContext, DraftProposal
from ..engines.protocol import Ids
from ..session import Session, StepResult


class ScriptedDraft:
    """Implements ``drafters.protocol.Drafter``: drafts a text known beforehand, wrong where it is told to be."""

    name = "scripted"

    def __init__(self, text: Sequence[int], wrong_at: Sequence[int] = (), max_k: int = 8) -> None:
        """``text``: prompt and answer; ``wrong_at``: positions of the text, counted from its start."""
        self.max_k = max_k
        self.observed: list[int] = []
        self._text: Ids = np.asarray(text, np.int64).copy()
        self._text[list(wrong_at)] ^= 1

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        count = len(context.tokens)
        return DraftProposal(self._text[count : count + min(k, self.max_k)], None, self.name)

    def observe(self, slot: int, accepted: int) -> None:
        self.observed.append(accepted)

    def reset(self, slot: int) -> None:
        pass


def decode(decoder: Decoder, session: Session) -> list[StepResult]:
    """The steps of a session from where it is to its end."""
    results = []
    if session.length == session.prompt_len:
        results.append(decoder.prefill(session))
    while session.finish_reason is None:
        results.append(decoder.step(session))
    return results
