"""A draft with alternatives, as a tree of tokens. Pure; knows no engine, no law and no text.

Verifying alternatives in one forward, after Miao et al. 2023 (SpecInfer, arXiv 2305.09781). The walk through the tree
needs no law of its own: a chain is judged as ever, and where its token is rejected, the recovered token may be one of
the alternatives, whose row has then been computed already. What an alternative is never changes which token is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tree:
    """Of N tokens; node -1 is the text that they continue."""

    tokens: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]
    """[N + 1] nodes behind each node, node -1 last; the first of them is the one to be judged."""

    @staticmethod
    def of(tokens: Ids, parents: Ids) -> Tree:
        """``tokens`` [N]; ``parents`` [N], each an earlier token or -1. Raises ``ValueError``."""
        count = len(tokens)
        if parents.shape != (count,):
            raise ValueError(f"{parents.shape} parents of {count} tokens")
        behind: list[list[int]] = [[] for _ in range(count + 1)]
        for node, parent in enumerate(parents.tolist()):
            if not -1 <= parent < node:
                raise ValueError(f"token {node} of a draft follows token {parent}")
            behind[parent].append(node)
        return Tree(tuple(tokens.tolist()), tuple(map(tuple, behind)))

    def next(self, node: int) -> int | None:
        """The node to be judged behind one; ``None``: nothing is drafted there."""
        children = self.children[node]
        return children[0] if children else None

    def alternative(self, node: int, token: int) -> int | None:
        """Where a token stands that was recovered in place of the one judged."""
        return next((child for child in self.children[node][1:] if self.tokens[child] == token), None)


def chain_length(parents: Ids) -> int:
    """Tokens at the start of a tree that follow one another, each the first behind the one before."""
    differs = parents != np.arange(-1, len(parents) - 1)
    return int(differs.argmax()) if differs.any() else len(parents)


def row_parents(first: int, parents: Ids) -> Ids:
    """[first + 1 + N] of a forward: rows 0..``first`` are text, each behind the one before, then come N tokens."""
    chain = np.arange(-1, first)
    return np.concatenate([chain, parents + first + 1])


def depths(parents: Sequence[int]) -> list[int]:
    """[T] places behind the cache: 0 for a row that follows it."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def attends(parents: Sequence[int]) -> NDArray[np.bool_]:
    """[T, T] whether a row (first index) sees another one of the forward: itself and its ancestors."""
    count = len(parents)
    sees = np.eye(count, dtype=np.bool_)
    for row, parent in enumerate(parents):
        if parent >= 0:
            sees[row] |= sees[parent]
    return sees
