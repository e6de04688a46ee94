"""Which tokens each slot of the KV arena holds, and where a prompt goes. Pure; knows no engine, no request, no clock.

An entry of a cache is a function of the tokens up to it, so that equal tokens at the start are an equal cache: a
prompt saves whatever prefix it shares with any slot, a busy one included, since what a text has committed stays. As far
as ``reuse`` lets its owner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..engines.protocol import Ids
from ..reuse import ONE, Owner
from ..session import common_prefix
from ..status import SlotStatus

WORTH = 16
"""Tokens from which on a copy between slots beats computing them again."""


@dataclass(frozen=True, slots=True)
class Placement:
    slot: int
    """Taken for the prompt."""
    source: int
    """Whose first ``shared`` entries it starts from; the slot itself when they are in place."""
    shared: int
    """Entries of the prompt that need not be computed; at most all but the last, whose row decides."""
    moved: bool = False
    """Whether the slot was another's: what else remembers its text has to forget it."""


class Slots:
    def __init__(self, count: int, capacity: int, worth: int = WORTH) -> None:
        self._worth = worth
        self._tokens: Ids = np.zeros((count, capacity), np.int64)
        """[slots, capacity] the tokens behind the entries; all the memory there is, whatever was asked so far."""
        self._held = [0] * count
        self._owner: list[Owner | None] = [None] * count
        """Whose text it holds, or held."""
        self._busy = [False] * count
        self._released = [0] * count
        """By order; 0: never used."""
        self._released_s = [0.0] * count
        self._releases = 0

    @property
    def free(self) -> int:
        return self._busy.count(False)

    def held(self, slot: int) -> Ids:
        """[n] a view."""
        return self._tokens[slot, : self._held[slot]]

    def place(self, prompt: Ids, owner: Owner = ONE) -> Placement | None:
        """Take a slot for a prompt [n >= 1]; ``None`` when all are busy.

        What it starts from counts as held at once: the caller copies it before anything else is placed.
        """
        if not self.free:
            return None
        usable = prompt[:-1]
        shared = [
            owner.usable(self._owner[slot], common_prefix(self.held(slot), usable)) for slot in range(len(self._busy))
        ]
        slot = self._choose(shared)
        source = max(range(len(shared)), key=shared.__getitem__)
        if shared[source] - shared[slot] < self._worth:
            source = slot
        before, self._owner[slot] = self._owner[slot], owner
        self._busy[slot] = True
        self._held[slot] = shared[slot]
        self.grow(slot, usable[: shared[source]])
        return Placement(slot, source, shared[source], before is not None and not owner.same(before))

    def _choose(self, shared: list[int]) -> int:
        free = [slot for slot, busy in enumerate(self._busy) if not busy]
        best = max(free, key=lambda slot: (shared[slot], -self._held[slot]))
        lost = self._held[best] - shared[best]
        # Continued in place, unless that would take from another text what its next turn could use.
        if shared[best] and lost <= min(self._worth, shared[best] // 4):
            return best
        return min(free, key=lambda slot: (self._held[slot] > 0, self._released[slot]))

    def grow(self, slot: int, tokens: Ids) -> None:
        """A busy slot's entries are those of ``tokens`` [n] now, which continue what it held."""
        held = self._held[slot]
        self._tokens[slot, held : len(tokens)] = tokens[held:]
        self._held[slot] = max(held, len(tokens))

    def release(self, slot: int, tokens: Ids, now_s: float) -> None:
        """Free again, with the entries of ``tokens`` [n] left in it; none of them when they were lost."""
        self._tokens[slot, : len(tokens)] = tokens
        self._held[slot] = len(tokens)
        self._busy[slot] = False
        self._releases += 1
        self._released[slot], self._released_s[slot] = self._releases, now_s

    def forget(self) -> list[int]:
        """Free slots hold nothing from now on: those that did."""
        held = [slot for slot, busy in enumerate(self._busy) if not busy and self._held[slot]]
        for slot in held:
            self._held[slot] = 0
        return held

    def status(self, now_s: float) -> tuple[SlotStatus, ...]:
        return tuple(
            SlotStatus(slot, busy, self._held[slot], self._idle_s(slot, now_s)) for slot, busy in enumerate(self._busy)
        )

    def _idle_s(self, slot: int, now_s: float) -> float | None:
        if self._busy[slot] or not self._released[slot]:
            return None
        return max(0.0, now_s - self._released_s[slot])
