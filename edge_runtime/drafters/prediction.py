"""The client's guess at the whole answer drafts. Knows no model and no length.

It begins with its beginning, goes on where the answer agrees with it, and after an edit looks for the place where the
two meet again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from edge_runtime.engines.protocol import Ids
from edge_runtime.errors import InputError

from .protocol import NO_TOKENS

_ANCHOR = 2
"""Tokens that must agree for the two to meet anywhere."""
_NEAR = 16
"""Tokens behind the place where they parted, in which a single one that agrees is enough."""
_LONGEST = 32
"""Agreeing tokens beyond which one place is no better than another."""
_MOST_PLACES = 32
"""Looked at on either side of the place where they parted."""


class Prediction:
    """Of one answer. Reads the answer anew where it was cut."""

    def __init__(self, tokens: Sequence[int] | Ids, vocab_size: int) -> None:
        """Raises ``InputError`` for ids that the vocabulary lacks."""
        self._tokens: Ids = np.array(tokens, dtype=np.int64)
        if self._tokens.ndim != 1 or np.any((self._tokens < 0) | (self._tokens >= vocab_size)):
            raise InputError(f"the prediction holds a token id outside 0..{vocab_size - 1}", "prediction")
        self._ends: dict[tuple[int, ...], list[int]] = {}
        """Tokens that agree -> places of the prediction right behind them, rising."""
        listed = self._tokens.tolist()
        for end in range(_ANCHOR, len(listed)):
            self._ends.setdefault(tuple(listed[end - _ANCHOR : end]), []).append(end)
        self._read = self._place = 0
        self._met = True

    def following(self, answer: Ids, most: int) -> Ids:
        """[<= most] what comes next if the answer goes on as predicted; none where the two have parted. A view."""
        if len(answer) < self._read:
            self._read, self._place, self._met = 0, 0, True
        for end in range(self._read + 1, len(answer) + 1):
            self._follow(answer[:end])
        self._read = len(answer)
        return self._tokens[self._place : self._place + max(0, most)] if self._met else NO_TOKENS

    def _follow(self, answer: Ids) -> None:
        place, token = self._place, int(answer[-1])
        if self._met and place < len(self._tokens) and self._tokens[place] == token:
            self._place += 1
            return
        found = self._meeting(answer)
        self._met = found is not None
        if found is not None:
            self._place = found

    def _meeting(self, answer: Ids) -> int | None:
        """Where the longest agreement with the end of the answer ends; of equal ones the next ahead, else the last."""
        places = self._ends.get(tuple(answer[-_ANCHOR:].tolist()), [])
        if places:
            middle = bisect_left(places, self._place)
            ahead = places[middle : middle + _MOST_PLACES]
            # Nearest first: of equal ones max takes the first that it sees.
            near = ahead + places[max(0, middle - _MOST_PLACES) : middle][::-1]
            return max(near, key=lambda end: self._agreement(answer, end))
        hits = np.flatnonzero(self._tokens[self._place : self._place + _NEAR] == answer[-1])
        return self._place + int(hits[0]) + 1 if len(hits) else None

    def _agreement(self, answer: Ids, end: int) -> int:
        longest = min(_LONGEST, len(answer), end)
        differs = answer[len(answer) - longest :] != self._tokens[end - longest : end]
        return longest if not differs.any() else int(np.flatnonzero(differs[::-1])[0])
