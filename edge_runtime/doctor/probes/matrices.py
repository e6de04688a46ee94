"""Random matrices as engines store them, and what products with them must give. Knows no engine.

Values are drawn so that a row of random input comes out with values near 1. The reference is float64 over some of the
columns, the last ones among them, where a kernel's unfinished tile would show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_COLUMNS = 128
"""Of each end of a matrix that are checked."""
_STREAMED = 48 << 20
"""Bytes of weights that one run reads at least, in copies of a matrix: more than a cache holds."""
_MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Matrix:
    """[inner, outer], in one kind of storage."""

    inner: int
    outer: int
    stored: tuple[NDArray[np.generic], ...]
    """The arrays that an engine is given."""
    checked: Floats
    """[inner, columns] the same, unpacked, of the columns that are checked."""
    columns: NDArray[np.int64]

    @property
    def weight_bytes(self) -> int:
        return sum(one.nbytes for one in self.stored)

    @property
    def copies(self) -> int:
        """As many as are read in one run, one behind the other."""
        return min(_MOST_COPIES, -(-_STREAMED // self.weight_bytes))


def float_matrix(seed: int, inner: int, outer: int, dtype: str) -> Matrix:
    whole = np.frombuffer(np.random.default_rng(seed).bytes(inner * outer), np.int8).reshape(inner, outer)
    values = whole.astype(dtype)
    values *= np.asarray(1.0 / (74.0 * np.sqrt(inner)), dtype)  # 74: root mean square of a byte
    columns = columns_of(outer)
    return Matrix(inner, outer, (values,), values[:, columns].astype(np.float32), columns)


def block_matrix(seed: int, inner: int, outer: int, bits: int, block_size: int, scale_dtype: str) -> Matrix:
    """As onnxruntime's MatMulNBits has it: [outer, blocks, bytes of a block] and scales [outer, blocks].

    Values are unsigned, and their middle stands for 0. ``bits`` 4 or 8.
    """
    rng = np.random.default_rng(seed)
    blocks = inner // block_size
    stored = np.frombuffer(rng.bytes(outer * inner * bits // 8), np.uint8).reshape(outer, blocks, -1)
    scales = _scales(rng, (outer, blocks), inner, bits).astype(scale_dtype)
    columns = columns_of(outer)
    some = stored[columns]
    if bits == 4:
        some = np.stack([some & 15, some >> 4], axis=-1).reshape(len(columns), blocks, block_size)
    values = (some.astype(np.float32) - (1 << bits - 1)) * scales[columns, :, None].astype(np.float32)
    return Matrix(inner, outer, (stored, scales), values.reshape(len(columns), inner).T, columns)


def int4_matrix(seed: int, inner: int, outer: int, block_size: int) -> Matrix:
    """As TensorRT reads it: signed values [inner, outer], two to a byte, and scales float16 [blocks, outer]."""
    rng = np.random.default_rng(seed)
    stored = np.frombuffer(rng.bytes(inner * outer // 2), np.uint8).reshape(inner, outer // 2)
    scales = _scales(rng, (inner // block_size, outer), inner, 4).astype(np.float16)
    columns = columns_of(outer)
    both = np.stack([stored & 15, stored >> 4], axis=-1).reshape(inner, outer)[:, columns].astype(np.int8)
    signed = np.where(both > 7, both - 16, both).astype(np.float32)
    values = signed * np.repeat(scales[:, columns].astype(np.float32), block_size, axis=0)
    return Matrix(inner, outer, (stored, scales), values, columns)


def rows_of(seed: int, rows: int, inner: int) -> Floats:
    values: Floats = np.random.default_rng(seed).standard_normal((rows, inner)).astype(np.float32)
    return values


def difference(matrix: Matrix, rows: NDArray[np.floating], result: NDArray[np.floating]) -> float | None:
    """Largest |difference| of ``result`` [rows, outer] over the largest |value|; ``None``: it is not finite."""
    expected = rows.astype(np.float64) @ matrix.checked.astype(np.float64)
    return relative(result[:, matrix.columns], expected)


def relative(result: NDArray[np.floating], expected: NDArray[np.floating]) -> float | None:
    if not np.all(np.isfinite(result)):
        return None
    return float(np.max(np.abs(result.astype(np.float64) - expected)) / np.max(np.abs(expected)))


def _scales(rng: np.random.Generator, shape: tuple[int, int], inner: int, bits: int) -> Floats:
    spread = 2.0**bits / np.sqrt(12.0)  # of values that are all as likely
    scales: Floats = ((0.5 + rng.random(shape, np.float32)) / (spread * np.sqrt(inner))).astype(np.float32)
    return scales


def columns_of(outer: int) -> NDArray[np.int64]:
    """Those that are checked."""
    if outer <= 2 * _COLUMNS:
        return np.arange(outer)
    return np.concatenate([np.arange(_COLUMNS), np.arange(outer - _COLUMNS, outer)])
