"""The text so far drafts: what followed the same few tokens last time. Knows no model.

Good where an answer repeats its prompt (summaries, edits, code, retrieval); costs next to nothing elsewhere.
After Saxena 2023 ("prompt lookup decoding"), with an index in place of a search.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_runtime.engines.protocol import Ids
from edge_runtime.errors import ConfigError

from ..session import common_prefix
from .protocol import NO_TOKENS, DraftContext, DraftProposal

_LONGEST = 32
"""Agreeing tokens beyond which one place is no better than another."""


class PromptLookup:
    """Proposes what followed the most recent earlier place of the longest matching n-gram."""

    name = "prompt_lookup"
    window: int | None = None

    def __init__(self, longest: int = 3, shortest: int = 2, max_k: int = 16, also: Sequence[int] = ()) -> None:
        """n-grams of ``shortest`` to ``longest`` tokens, and of those in ``also``, longer and falling: a text in which
        short ones stand everywhere is copied from where most agrees. Raises ``ConfigError``."""
        sizes = (*also, *range(longest, shortest - 1, -1))
        if not 1 <= shortest <= longest or sorted(set(sizes), reverse=True) != list(sizes):
            raise ConfigError(f"prompt lookup of n-grams from {longest} down to {shortest}, and of {list(also)}")
        self.max_k = max_k
        self._sizes = sizes
        self._indexes: dict[int, _Index] = {}

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        index = self._indexes.get(context.slot)
        if index is None:
            index = self._indexes[context.slot] = _Index(self._sizes)
        index.follow(context.tokens)
        start = index.place_after_match()
        if start is None:
            return DraftProposal(NO_TOKENS, None, self.name, "no earlier match")
        k = min(k, self.max_k)
        found = context.tokens[start : start + k]
        if len(found) < k:
            # The match runs into the end of the text: the copy goes on copying itself, as a loop would.
            found = np.resize(context.tokens[start:], k)
        return DraftProposal(found, None, self.name, evidence=_agreement(context.tokens, start))

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        self._indexes.pop(slot, None)


def _agreement(tokens: Ids, place: int) -> int:
    """Tokens before ``place`` that are those at the end."""
    longest = min(_LONGEST, place)
    differs = tokens[place - longest : place] != tokens[len(tokens) - longest :]
    return int(differs[::-1].argmax()) if differs.any() else longest


class _Index:
    """n-gram -> where its latest occurrence that has a token behind it ended.

    At most one entry per token and size, so the context bounds it.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._tokens: list[int] = []
        self._array: Ids = NO_TOKENS
        """[>= len(_tokens)] the same, to compare at once."""
        self._places: dict[tuple[int, ...], int] = {}

    def follow(self, tokens: Ids) -> None:
        """Index what is new; start again where the text is another, or was cut."""
        known = len(self._tokens)
        if common_prefix(self._array[:known], tokens) < known:
            self._tokens, self._places, known = [], {}, 0
        if len(tokens) > len(self._array):
            grown = np.zeros(2 * len(tokens), np.int64)
            grown[:known] = self._array[:known]
            self._array = grown
        self._array[known : len(tokens)] = tokens[known:]
        for token in tokens[known:].tolist():
            # Only now has the n-gram that ends before this token something behind it.
            end = len(self._tokens)
            for size in self._sizes:
                if size <= end:
                    self._places[tuple(self._tokens[end - size :])] = end
            self._tokens.append(token)

    def place_after_match(self) -> int | None:
        for size in self._sizes:
            if size <= len(self._tokens):
                place = self._places.get(tuple(self._tokens[-size:]))
                if place is not None:
                    return place
        return None
