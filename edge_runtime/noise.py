"""Noise without state: a hash of (seed, position, token id). Knows no law and no request.

The same key gives the same noise whenever and in whatever order it is asked for, which is what makes a
seeded text independent of K and of the draft. The generator is splitmix64 (Steele, Lea and Flood 2014, with
Stafford's mix 13), keyed by mixing in the seed and the position; integers are equal on every platform, the
two logarithms of a Gumbel value may differ in the last bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sampling import Ids, Probs

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_GUMBEL = 0x6A09E667F3BCC908  # leading bits of sqrt 2 and sqrt 3: keep the two uses apart
_UNIFORM = 0xBB67AE8584CAA73B
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_UNIT = 2.0**-52
_MARGIN = 1e-12
"""Relative; far above what rounding does to a share, far below what costs time."""


def gumbel(seed: int, position: int, ids: Ids) -> Probs:
    """[n] standard Gumbel noise, finite, at token ``ids`` [n]. Of ``seed`` the low 64 bits count."""
    noise = _gumbel_bits(seed, position, ids).astype(np.float64)
    noise += 0.5  # 52 bits and a half are exact in float64: never 0, never 1
    noise *= _UNIT
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def ids_above(level: float, seed: int, position: int, count: int) -> Ids:
    """Ids in 0..``count`` - 1 whose ``gumbel`` noise exceeds ``level``, and perhaps a few just below it; rising.

    Takes no logarithm but one: noise rises with the bits that it is made of.
    """
    share = math.exp(-math.exp(min(-level, 700.0)))  # of the bits, those that stay below
    least = max(0, int(share * (1.0 - _MARGIN) * 2.0**52) - 1)
    return np.flatnonzero(_gumbel_bits(seed, position, np.arange(count)) >= np.uint64(least))


def _gumbel_bits(seed: int, position: int, ids: Ids) -> NDArray[np.uint64]:
    """[n] 52 bits each."""
    bits = ids.astype(np.uint64)
    bits *= np.uint64(_GOLDEN)  # arrays wrap silently; only numpy scalars would warn
    bits += np.uint64(_key(seed, position, _GUMBEL))
    _mix_array(bits)
    bits >>= np.uint64(12)
    return bits


def uniforms(seed: int, position: int, stream: int) -> float:
    """One uniform in (0, 1) for a (seed, position); ``stream`` tells the draws of one position apart."""
    bits = _mix((_key(seed, position, _UNIFORM) + stream * _GOLDEN) & _MASK)
    return ((bits >> 12) + 0.5) * _UNIT


def _key(seed: int, position: int, use: int) -> int:
    return _mix(_mix((seed ^ use) & _MASK) ^ _mix((position + _GOLDEN) & _MASK))


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * _MULTIPLY_1) & _MASK
    bits = ((bits ^ (bits >> 27)) * _MULTIPLY_2) & _MASK
    return bits ^ (bits >> 31)


def _mix_array(bits: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> None:
    """``_mix`` in place."""
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_MULTIPLY_1)
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_MULTIPLY_2)
    bits ^= bits >> np.uint64(31)
