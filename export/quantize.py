"""From float32 rows to block weights and float16. Knows no files, names, graphs or engines.

Four bits are found by search: per block, a grid of clipping ranges and zero points, each scored by the
weighted squared error that is left once the scale is solved in closed form, then rounding and scale in turns.
With the second moment of a product's inputs at hand, :func:`gptq` also lets later columns make up for
earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError

from .gguf_blocks import BlockWeights, Bytes, Floats, pack_nibbles

_BLOCK_SIZES = (16, 32, 64, 128)
_TOP = 15
_CENTRE = 8
_CHUNK_VALUES = 1 << 17
"""Values searched at once: a handful of 512 KiB temporaries, which stay in the cache."""
_CLIPS = (0.75, 0.8, 0.85, 0.9, 0.94, 0.98, 1.02, 1.07)
"""Quantised range over the block's own range. A grid ten times as fine lowers the error by 0.3%."""
_ZERO_STEPS = (-1, 1)
_POLISH_ROUNDS = 2
_LEAST_SCALE = 1e-32
"""Blocks that would need less are stored as zeros: a subnormal scale cannot be inverted."""
_GPTQ_COLUMNS = 128
"""Columns between two updates of everything to their right."""
_LEAST_HALF = 64
"""Rows below which a triangular matrix is inverted at once."""
_DAMPING = 0.01
"""Added to the diagonal, relative to its mean (as in the GPTQ paper)."""


def to_float16(rows: Floats) -> NDArray[np.float16]:
    """The same shape in float16.

    Raises:
        CheckpointError: a value is not finite, or passes float16's 65504.
    """
    _require_finite(rows)
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    if not np.isfinite(half).all():
        raise CheckpointError(f"a weight of {float(np.abs(rows).max()):.6g} does not fit float16 (65504 at most)")
    return half


def int8(rows: Floats, block_size: int = 32) -> BlockWeights:
    """Symmetric, -127..127 around the centre 128, the largest value of a block on the outermost level.

    Args:
        rows: [N, K]

    Raises:
        CheckpointError: K does not divide into blocks, or a value is not finite.
    """
    blocks = _blocks(rows, block_size)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127)
    scales[scales < _LEAST_SCALE] = 1
    levels = np.rint(blocks / scales[..., None])
    quants = (levels + 128).astype(np.uint8)
    levels *= scales[..., None]
    error = float(np.abs(levels - blocks).max(initial=0.0))
    return BlockWeights(8, block_size, quants, scales, None, error)


def int4(
    rows: Floats, block_size: int = 32, *, symmetric: bool = False, importance: Floats | None = None
) -> BlockWeights:
    """Four bits by search; zero points in 0..15, or none when ``symmetric``. Scales are always positive.

    Args:
        rows: [N, K]
        symmetric: -8..7 around a fixed centre, for engines that take no zero points.
        importance: [K] weight of each input's squared error (its mean square in use); ``None`` for all alike.

    Raises:
        CheckpointError: K does not divide into blocks, or a value is not finite.
    """
    blocks = _blocks(rows, block_size)
    weight = _importance(importance, blocks.shape[1], block_size)
    scales = np.empty(blocks.shape[:2], np.float32)
    zeros = np.empty(blocks.shape[:2], np.float32)
    levels = np.empty(blocks.shape, np.uint8)
    error = 0.0
    step = max(1, _CHUNK_VALUES // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        chunk = np.ascontiguousarray(blocks[part].transpose(2, 0, 1))
        scales[part], zeros[part] = _search(chunk, weight, symmetric)
        moved = _round(chunk, scales[part], zeros[part])
        levels[part] = (moved + zeros[part]).astype(np.uint8).transpose(1, 2, 0)
        moved *= scales[part]
        error = max(error, float(np.abs(moved - chunk).max(initial=0.0)))
    return _packed(levels, scales, zeros, symmetric, error)


@dataclass(frozen=True, slots=True)
class InputFactor:
    """A product's inputs as GPTQ wants them; costly (K^3), so made once for all rows of a matrix."""

    upper: Floats
    """[K, K] upper Cholesky factor U of the damped inverse: H^-1 = U^T U"""
    importance: Floats
    """[K] mean square of each input"""


def input_factor(hessian: NDArray[np.floating]) -> InputFactor:
    """From H = X^T X [K, K] (any positive multiple of it).

    Raises:
        CheckpointError: not square, not finite, or not positive semidefinite.
    """
    if hessian.ndim != 2 or hessian.shape[0] != hessian.shape[1] or not np.isfinite(hessian).all():
        raise CheckpointError(f"calibration: a moment matrix of shape {hessian.shape} is not square and finite")
    damped = hessian.astype(np.float64)
    diagonal = np.diag(damped).copy()
    mean = float(diagonal.mean()) or 1.0
    damped[np.diag_indices_from(damped)] += _DAMPING * mean
    try:
        # Reversing rows and columns turns the lower factor of H into the upper factor of its inverse.
        lower = np.linalg.cholesky(damped[::-1, ::-1])
        upper = _inverse_of_lower(lower)[::-1, ::-1]
    except np.linalg.LinAlgError as problem:
        raise CheckpointError(f"calibration: the moment matrix is not positive definite ({problem})") from None
    return InputFactor(np.ascontiguousarray(upper, np.float32), diagonal.astype(np.float32))


def _inverse_of_lower(lower: NDArray[np.floating]) -> NDArray[np.floating]:
    """By halves: numpy has no triangular solve, and its general inverse takes several times as long."""
    half = len(lower) // 2
    if half < _LEAST_HALF:
        whole: NDArray[np.floating] = np.linalg.inv(lower)
        return whole
    inverse = np.zeros_like(lower)
    inverse[:half, :half] = _inverse_of_lower(lower[:half, :half])
    inverse[half:, half:] = _inverse_of_lower(lower[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ lower[half:, :half] @ inverse[:half, :half]
    return inverse


def gptq(
    rows: Floats,
    hessian: NDArray[np.floating] | InputFactor,
    block_size: int = 32,
    *,
    symmetric: bool = False,
) -> BlockWeights:
    """Four bits with error feedback: a column's rounding error is spread over the columns not yet rounded.

    Lowers ``||X (W - Wq)^T||`` rather than ``||W - Wq||`` (Frantar et al., GPTQ, 2022; without reordering of
    columns, which block layouts do not allow). Range and zero point of a block are searched when its first
    column comes up, on the weights as updated by then. ``max_error`` is measured against the given rows and
    so may be large.

    Args:
        rows: [N, K]
        hessian: X^T X [K, K] of the inputs, or the factor made from it once.

    Raises:
        CheckpointError: shapes that do not fit, or a value that is not finite.
    """
    factor = hessian if isinstance(hessian, InputFactor) else input_factor(hessian)
    blocks = _blocks(rows, block_size)
    count, width = rows.shape
    if factor.upper.shape != (width, width):
        raise CheckpointError(f"calibration: a moment matrix of {factor.upper.shape} for {width} inputs")
    weight = _importance(factor.importance, blocks.shape[1], block_size)
    # Columns are what is walked: as rows of the transpose they lie together.
    pending = np.ascontiguousarray(rows.T)
    levels = np.empty((width, count), np.uint8)
    scales = np.empty(blocks.shape[:2], np.float32)
    zeros = np.empty(blocks.shape[:2], np.float32)
    for start in range(0, width, _GPTQ_COLUMNS):
        stop = min(start + _GPTQ_COLUMNS, width)
        errors = np.empty((stop - start, count), np.float32)
        for column in range(start, stop):
            block = column // block_size
            if column % block_size == 0:
                ahead = pending[column : column + block_size, :, None]
                found = _search(ahead, None if weight is None else weight[..., block : block + 1], symmetric)
                scales[:, block], zeros[:, block] = found[0][:, 0], found[1][:, 0]
            scale, zero = scales[:, block], zeros[:, block]
            moved = np.clip(np.rint(pending[column] / scale), -zero, _TOP - zero)
            levels[column] = (moved + zero).astype(np.uint8)
            errors[column - start] = (pending[column] - moved * scale) / factor.upper[column, column]
            pending[column + 1 : stop] -= factor.upper[column, column + 1 : stop, None] * errors[column - start]
        pending[stop:] -= factor.upper[start:stop, stop:].T @ errors
    by_block = np.ascontiguousarray(levels.T).reshape(blocks.shape)
    error = np.abs((by_block - zeros[..., None]) * scales[..., None] - blocks).max(initial=0.0)
    return _packed(by_block, scales, zeros, symmetric, float(error))


def _packed(levels: Bytes, scales: Floats, zeros: Floats, symmetric: bool, error: float) -> BlockWeights:
    zero_points = None if symmetric else pack_nibbles(zeros.astype(np.uint8))
    return BlockWeights(4, levels.shape[-1], pack_nibbles(levels), scales, zero_points, error)


def _blocks(rows: Floats, block_size: int) -> Floats:
    """[N, K] -> [N, K / block_size, block_size]"""
    if block_size not in _BLOCK_SIZES:
        raise CheckpointError(f"block size {block_size} is not supported (16, 32, 64 and 128 are)")
    if rows.ndim != 2 or rows.shape[1] % block_size:
        raise CheckpointError(f"rows of shape {rows.shape} do not divide into blocks of {block_size}")
    _require_finite(rows)
    return rows.reshape(rows.shape[0], -1, block_size)


def _require_finite(rows: Floats) -> None:
    if not np.isfinite(rows).all():
        raise CheckpointError("a weight is not finite (NaN or infinity): the checkpoint is damaged")


def _importance(importance: Floats | None, blocks: int, block_size: int) -> Floats | None:
    """[block_size, 1, blocks], mean 1 in every block.

    An input that calibration never excited still counts a little: otherwise its weights would be arbitrary.
    """
    if importance is None:
        return None
    if importance.shape != (blocks * block_size,) or not np.isfinite(importance).all() or importance.min() < 0:
        raise CheckpointError(f"importance must be {blocks * block_size} finite numbers, none negative")
    weight = importance.reshape(blocks, block_size).astype(np.float32)
    mean = weight.mean(axis=1, keepdims=True)
    weight = np.where(mean > 0, weight / np.where(mean > 0, mean, 1) + np.float32(1e-3), np.float32(1))
    return np.ascontiguousarray(weight.T[:, None])


def _round(blocks: Floats, scales: Floats, zeros: Floats) -> Floats:
    """Signed levels ``q - zero`` [b, n, B]"""
    moved = blocks / scales
    np.rint(moved, out=moved)
    # Two passes: numpy's clip with arrays as bounds is not vectorised.
    np.maximum(moved, -zeros, out=moved)
    np.minimum(moved, _TOP - zeros, out=moved)
    return moved


def _search(blocks: Floats, weight: Floats | None, symmetric: bool) -> tuple[Floats, Floats]:
    """Scales (positive) and zero points [n, B] of blocks [b, n, B] under ``weight`` [b, 1, B].

    The values of a block lie apart, so that everything that is one a block runs along memory.
    """
    # Unit blocks: squares of very small or large weights would leave float32.
    unit = np.abs(blocks).max(0)
    unit[unit < _LEAST_SCALE * _TOP] = np.inf
    blocks = blocks / unit
    low, high = np.minimum(blocks.min(0), 0), np.maximum(blocks.max(0), 0)
    empty = np.isinf(unit)
    best = _Best(np.ones_like(low), np.full_like(low, _CENTRE), np.zeros_like(low))
    weighted = blocks if weight is None else blocks * weight
    if symmetric:
        reach, centre = np.maximum(-low / _CENTRE, high / (_TOP - _CENTRE)), best.zeros
    else:
        reach = (high - low) / np.float32(_TOP)
        # Clipping shares what it cuts between both ends in proportion to their reach.
        centre = np.rint(-low / np.where(empty, 1, reach))
    reach[empty] = 1
    for clip in _CLIPS:
        best.offer(blocks, weighted, weight, reach * np.float32(clip), centre)
    for step in () if symmetric else _ZERO_STEPS:
        best.offer(blocks, weighted, weight, best.scales, np.clip(centre + step, 0, _TOP))
    for _ in range(_POLISH_ROUNDS):
        best.offer(blocks, weighted, weight, best.scales, best.zeros)
    return best.scales * np.where(empty, 1, unit), best.zeros


@dataclass(slots=True)
class _Best:
    """The best (scale, zero point) so far of every block, [n, B] each."""

    scales: Floats
    zeros: Floats
    gain: Floats
    """Weighted squared error that it saves against all zeros."""

    def offer(self, blocks: Floats, weighted: Floats, weight: Floats | None, scales: Floats, zeros: Floats) -> None:
        """Round with a candidate, solve the scale for that rounding, and keep it where the error falls.

        For levels d the best scale is ``sum(h w d) / sum(h d d)``; it saves ``sum(h w d)^2 / sum(h d d)``.
        """
        moved = _round(blocks, scales, zeros)
        cross = np.einsum("knb,knb->nb", weighted, moved)
        other = moved if weight is None else moved * weight
        square = np.einsum("knb,knb->nb", moved, other)
        solved = cross / np.where(square > 0, square, 1)
        gain = solved * cross
        better = gain > self.gain
        self.scales = np.where(better, solved, self.scales)
        self.zeros = np.where(better, zeros, self.zeros)
        self.gain = np.where(better, gain, self.gain)
