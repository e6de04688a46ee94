"""The tokens of one draft while they are chosen, one behind the other. Knows no engine and no cache."""

from __future__ import annotations

import numpy as np

from edge_runtime.engines.protocol import HeadOutput, HeadRequest, Ids
from edge_runtime.sampling import Distribution

from .protocol import DraftContext, DraftProposal
from .strategy import Strategy


class Chain:
    def __init__(self, strategy: Strategy, context: DraftContext, most: int) -> None:
        """``most`` >= 1 tokens."""
        self._strategy, self._context, self._most = strategy, context, most
        self._tokens: Ids = np.zeros(most, np.int64)
        self._laws: list[Distribution] = []
        self._confidences: list[float] = []
        self._chance = 1.0

    @property
    def last(self) -> Ids:
        """[1] the token chosen last."""
        count = len(self._confidences)
        return self._tokens[count - 1 : count]

    def request(self, row: int) -> HeadRequest:
        """Of the row that the next token is chosen by."""
        return HeadRequest(row, row + 1, self._context.params.inverse_temperature)

    def choose(self, head: HeadOutput | None, row: int = 0) -> bool:
        """Choose a token by a row of ``head``; whether the draft goes on behind it.

        A token that looks unlikely ends the draft and is part of it: leaving out what was drawn would bend the law.
        """
        assert head is not None  # it was asked for
        place = len(self._confidences)
        chosen = self._strategy.choose(head, row, self._context, len(self._context.tokens) + place)
        if chosen.law is not None:
            self._laws.append(chosen.law)
        self._tokens[place] = chosen.token
        self._confidences.append(chosen.probability)
        self._chance *= self._context.chance(chosen.probability)
        return place + 1 < self._most and self._chance >= self._context.stop_below

    def proposal(self, source: str, note: str = "") -> DraftProposal:
        laws = tuple(self._laws) if self._laws else None
        return DraftProposal(self._tokens[: len(self._confidences)], laws, source, note, tuple(self._confidences))
