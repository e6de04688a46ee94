"""A language model whose next logits are a hash of the tokens before them. Knows no engine and no cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engines.protocol import Floats, Ids
from ..noise import gumbel, uniforms

_LOGITS = 0x5EED
_OTHER = 0x0DD

ROW = 3
"""Floats of a hidden row, which holds a digest exactly: a float32 has 24 bits, a digest 52."""
_BITS = 18
_MASK = (1 << _BITS) - 1


def rows_of(digests: Sequence[int]) -> Floats:
    """[n, ROW] what the rows behind tokens say of them."""
    parts = [[digest >> 2 * _BITS & _MASK, digest >> _BITS & _MASK, digest & _MASK] for digest in digests]
    return np.array(parts, np.float32).reshape(len(digests), ROW)


def digest_of(row: Floats) -> int:
    high, middle, low = (int(part) for part in row)
    return (high << 2 * _BITS) | (middle << _BITS) | low


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What a ``FakeEngine`` computes. Two engines of one ``FakeModel`` are the same model."""

    vocab_size: int = 64
    seed: int = 0
    order: int | None = None
    """The last tokens that the logits depend on; ``None``: all of them, so that no stale entry goes unseen."""
    scale: float = 2.0
    """Of the logits: a larger one is a more certain model."""
    agreement: float = 1.0
    """Share of the model of this seed in the logits, the rest being another one's: 1 is the model itself, 0 has
    nothing to do with it, -1 wants the contrary."""

    def digest(self, tokens: Ids) -> int:
        """What a row behind ``tokens`` [n] knows of them. A chain, so that order and length count."""
        digest = 0
        for token in tokens.tolist() if self.order is None else tokens[-self.order :].tolist():
            digest = self.extend(digest, token)
        return digest

    def extend(self, digest: int, token: int) -> int:
        return int(uniforms(digest, token, 0) * 2.0**52)

    def logits(self, digest: int, ids: Ids) -> Floats:
        """[len(ids)]"""
        own = gumbel(self.seed ^ _LOGITS, digest, ids)
        if self.agreement != 1.0:
            other = gumbel(self.seed ^ _OTHER, digest, ids)
            own = self.agreement * own + (1.0 - abs(self.agreement)) * other
        scaled: Floats = (self.scale * own).astype(np.float32)
        return scaled
