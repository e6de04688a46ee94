"""Whose turn it is. Pure; knows no engine and no clock: it is told what a turn took.

Fair by time, not by turns: each answer has a virtual time, its seconds of the engine over its weight, and the one
that has least runs next. A chunk of a prompt and a step of decoding are both turns, so that nobody waits for the end
of a long prompt or a long answer.

The level at which newcomers join rises with every turn (as in weighted fair queueing, Demers et al. 1989): were it
merely that of whoever has least, answers of one turn that follow one another would join ahead of the others for ever.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Share:
    weight: float
    virtual_s: float
    last_turn: int
    """Of equal virtual times, the one that waited longest runs."""


class Turns:
    """Of answers by number; as many as there are slots, so that looking at all of them costs nothing."""

    def __init__(self) -> None:
        self._shares: dict[int, _Share] = {}
        self._turn = 0
        self._level_s = 0.0
        """What an even share has had by now; never falls."""

    def join(self, number: int, priority: int) -> None:
        """A newcomer has an even share so far: it neither waits for the others nor makes them wait."""
        least_s = min((share.virtual_s for share in self._shares.values()), default=0.0)
        self._level_s = max(self._level_s, least_s)
        self._shares[number] = _Share(2.0**-priority, self._level_s, 0)

    def leave(self, number: int) -> None:
        del self._shares[number]

    def next(self) -> int | None:
        """Whose turn it is; ``None``: nobody is there."""
        return min(
            self._shares,
            key=lambda number: (self._shares[number].virtual_s, self._shares[number].last_turn, number),
            default=None,
        )

    def charge(self, number: int, seconds: float) -> None:
        """It had a turn of ``seconds``."""
        self._turn += 1
        share = self._shares[number]
        share.virtual_s += max(0.0, seconds) / share.weight
        self._level_s += max(0.0, seconds) / sum(one.weight for one in self._shares.values())
        share.last_turn = self._turn
