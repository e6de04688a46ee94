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
        self._others: list[tuple[float, int, int]] = []
        """(chance of the way to it and of itself, place in the chain, token) of what might stand beside it."""

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
        if self._context.branches:
            self._note_others(head, row, place, chosen.token)
        self._confidences.append(chosen.probability)
        self._chance *= self._context.chance(chosen.probability)
        return place + 1 < self._most and self._chance >= self._context.stop_below

    def _note_others(self, head: HeadOutput, row: int, place: int, chosen: int) -> None:
        count = self._context.branches + 1
        logits = head.candidate_logits[row, :count].astype(np.float64)
        chances = np.exp(logits * self._context.params.inverse_temperature - float(head.logsumexp[row]))
        for token, chance in zip(head.candidate_ids[row, :count].tolist(), chances.tolist(), strict=True):
            if token != chosen:
                self._others.append((self._chance * chance, place, token))

    def proposal(self, source: str, note: str = "") -> DraftProposal:
        """The chain, and behind it the likeliest of what might stand beside it."""
        laws = tuple(self._laws) if self._laws else None
        count = len(self._confidences)
        tokens, parents = self._tokens[:count], None
        best = sorted(self._others, reverse=True)[: self._context.branches]
        if best:
            tokens = np.concatenate([tokens, np.array([token for _, _, token in best], np.int64)])
            parents = np.array([*range(-1, count - 1), *(place - 1 for _, place, _ in best)], np.int64)
        confidences = tuple(self._confidences)
        return DraftProposal(tokens, laws, source, note, confidences, parents=parents)
