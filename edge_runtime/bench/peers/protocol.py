"""What a peer of the benchmark does. Knows no peer.

A program in this folder drives one kind of peer. All but ours run in the peer's own environment, as ``worker.py``
does: they import the standard library, numpy, what they drive, and each other. A program has ``open_peer(order)``,
``PACKAGES``, whose versions are told, and, where the checkpoint cannot be loaded as it is, ``prepare(order)``, which
makes ``order["place"]`` of it once and returns what is to be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict


class Told(TypedDict):
    """What ``generate`` gives."""

    tokens: list[int]
    seconds: float


class Answering(Protocol):
    """One model in one program, greedy, batch of one: whole answers. Times are seconds of wall clock."""

    weights: str
    """How they are stored, in words."""

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> Told:
        """``count`` tokens behind ``ids``, ends of text ignored; the prompt's time is in it. ``prefix``: so many tokens
        at the start are those of the prompt before, and what is cached of them may be used, in the way that the program
        offers; 0: nothing may be."""
        ...

    def nll(self, ids: Sequence[int]) -> float:
        """Mean negative log-likelihood of ids[1:], in nats, run in chunks of at most 8 rows where it can be."""
        ...


class Peer(Protocol):
    """One model in one program, forward by forward."""

    weights: str

    def prefill(self, ids: Sequence[int]) -> float:
        """Forget everything, then run the prompt; seconds."""
        ...

    def decode(self, count: int) -> list[float]:
        """Seconds of each of ``count`` further greedy tokens, the choice of the token included."""
        ...

    def verify(self, rows: int) -> float:
        """Seconds of one forward of ``rows`` tokens with the greedy choice of every row, then taken back."""
        ...

    def nll(self, ids: Sequence[int]) -> float:
        """As above."""
        ...
