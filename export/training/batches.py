"""Which texts a step learns from. Knows no model.

A step takes micro-batches of about as many tokens each; an epoch is a shuffle of all of them. Its order follows from
the seed and its number alone, so that a cursor says where an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ConfigError

from .features import Part


@dataclass(frozen=True, slots=True)
class Micro:
    """Texts of one part, which are of one length."""

    part: int
    rows: NDArray[np.int64]


@dataclass(slots=True)
class Cursor:
    """The next micro-batch."""

    epoch: int = 0
    index: int = 0


class Batches:
    """``share``: only the first of each part, as the data-scaling check wants it."""

    def __init__(self, parts: Sequence[Part], tokens: int, seed: int, share: float = 1.0) -> None:
        self.parts = parts
        self._counts = [max(1, int(part.done * share)) if part.done else 0 for part in parts]
        if not any(self._counts):
            raise ConfigError("there are no features to train on")
        self._seed, self._tokens = seed, tokens
        self._order: tuple[int, list[Micro]] = (-1, [])

    @property
    def tokens(self) -> int:
        """Of one epoch."""
        return sum(count * part.length for count, part in zip(self._counts, self.parts, strict=True))

    def next(self, cursor: Cursor) -> Micro:
        """And moves ``cursor`` on."""
        if self._order[0] != cursor.epoch:
            self._order = (cursor.epoch, self._epoch(cursor.epoch))
        # Beyond the end where a run goes on with fewer texts.
        micro = self._order[1][min(cursor.index, len(self._order[1]) - 1)]
        cursor.index += 1
        if cursor.index >= len(self._order[1]):
            cursor.epoch, cursor.index = cursor.epoch + 1, 0
        return micro

    def _epoch(self, number: int) -> list[Micro]:
        random = np.random.default_rng([self._seed, number])
        found: list[Micro] = []
        for i, (part, count) in enumerate(zip(self.parts, self._counts, strict=True)):
            if count:
                size = max(1, self._tokens // part.length)
                order = random.permutation(count)
                found += [Micro(i, np.sort(order[at : at + size])) for at in range(0, count, size)]
        return [found[i] for i in random.permutation(len(found))]
