"""How much of a prompt a cache holds already. Knows no peer."""

from __future__ import annotations

from collections.abc import Sequence


def common(held: Sequence[int], ids: Sequence[int]) -> int:
    """Tokens that both begin with, the last of ``ids`` left out: it has to be read again for what follows it."""
    most = min(len(held), len(ids) - 1)
    return next((place for place in range(most) if held[place] != ids[place]), most)
