"""What a peer of the benchmark does. Knows no peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Peer(Protocol):
    """One model in one program, greedy, batch of one. Times are seconds of wall clock."""

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
        """Mean negative log-likelihood of ids[1:], in nats, run in chunks of at most 8 rows."""
        ...
