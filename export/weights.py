"""The weight file of a model: what is stored where. Knows rows and regions, not what a graph does with them.

One tensor at a time and a slab of rows at a time: memory stays far below the size of a tensor. Regions are aligned to
pages so that the runtime can map them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import TensorSource
from .gguf_blocks import BlockWeights

_ALIGNMENT = 4096
_SLAB_BYTES = 32 << 20
"""Of float32: the dequantised rows that exist at a time."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of a weight file, as a tensor."""

    file: str
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dense:
    """[rows, columns] as in the checkpoint, or [columns, rows] when ``transposed``."""

    rows: int
    columns: int
    data: Region
    transposed: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block weights in MatMulNBits layout, [rows, columns]."""

    rows: int
    columns: int
    bits: int
    block_size: int
    quants: Region
    scales: Region
    zero_points: Region | None
    max_error: float


@dataclass(frozen=True, slots=True)
class Columns:
    """Symmetric 4-bit weights [columns, rows], as TensorRT dequantises them: a scale for each run down a column."""

    rows: int
    columns: int
    block_size: int
    quants: Region
    """int4 [columns, rows], two values a byte, the lower nibble first"""
    scales: Region
    """float16 [columns / block_size, rows], all of them above zero"""
    max_error: float


Stored = Dense | Blocks | Columns


class WeightFile:
    """Writes regions; a context manager. Positional writes, so that regions can be filled in turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def reserve(self, dtype: str, shape: tuple[int, ...]) -> Region:
        length = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        region = Region(self.path.name, self._end, length, dtype, shape)
        self._end += -(-length // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(self._fd, self._end)
        return region

    def write(self, region: Region, array: NDArray[Any], first_row: int = 0) -> None:
        """``array`` at row ``first_row`` of the region's leading dimension."""
        row_bytes = region.length // region.shape[0]
        data = np.ascontiguousarray(array, dtype=region.dtype)
        view = data.reshape(-1).view(np.uint8).data
        offset = region.offset + first_row * row_bytes
        if offset + len(view) > region.offset + region.length:
            raise ValueError("write past the end of a region")
        while view:
            written = os.pwrite(self._fd, view, offset)
            offset, view = offset + written, view[written:]

    def mapped(self, region: Region) -> NDArray[Any]:
        """The region itself, to be written in any order: what is transposed comes column by column."""
        shape = region.shape
        return np.memmap(self.path, dtype=region.dtype, mode="r+", offset=region.offset, shape=shape)

    def append(self, array: NDArray[Any]) -> Region:
        region = self.reserve(str(array.dtype), array.shape)
        self.write(region, array)
        return region


Quantiser = Callable[[TensorSource, int, int], BlockWeights]
"""(tensor, first row, stop row) -> block weights of those rows."""


def store_blocks(
    file: WeightFile, sources: Sequence[TensorSource], quantise: Quantiser, row_ids: NDArray[np.int64] | None = None
) -> Blocks:
    """The rows of ``sources`` below each other. ``row_ids`` takes only those rows (of a single source)."""
    probe = quantise(sources[0], 0, 1)
    columns = sources[0].shape[1]
    rows = sum(source.shape[0] for source in sources) if row_ids is None else len(row_ids)
    quants = file.reserve("uint8", (rows, *probe.quants.shape[1:]))
    scales = file.reserve("float32", (rows, probe.scales.shape[1]))
    zero_points = None
    if probe.zero_points is not None:
        zero_points = file.reserve("uint8", (rows, probe.zero_points.shape[1]))
    at, max_error = 0, 0.0
    for source, start, stop in slabs(sources, row_ids):
        part = quantise(source, start, stop)
        file.write(quants, part.quants, at)
        file.write(scales, part.scales, at)
        if zero_points is not None and part.zero_points is not None:
            file.write(zero_points, part.zero_points, at)
        at += stop - start
        max_error = max(max_error, part.max_error)
    return Blocks(rows, columns, probe.bits, probe.block_size, quants, scales, zero_points, max_error)


def store_dense(
    file: WeightFile,
    sources: Sequence[TensorSource],
    convert: Callable[[NDArray[np.float32]], NDArray[Any]],
    dtype: str,
    *,
    transposed: bool,
    row_ids: NDArray[np.int64] | None = None,
) -> Dense:
    columns = sources[0].shape[1]
    rows = sum(source.shape[0] for source in sources) if row_ids is None else len(row_ids)
    if transposed:
        # [columns, rows]: what MatMul wants. Whole in memory: the largest body matrix is far below the table.
        whole = np.empty((columns, rows), dtype=dtype)
        at = 0
        for source, start, stop in slabs(sources, row_ids):
            whole[:, at : at + stop - start] = convert(source.rows(start, stop)).T
            at += stop - start
        return Dense(rows, columns, file.append(whole), True)
    region = file.reserve(dtype, (rows, columns))
    at = 0
    for source, start, stop in slabs(sources, row_ids):
        file.write(region, convert(source.rows(start, stop)), at)
        at += stop - start
    return Dense(rows, columns, region, False)


def slabs(
    sources: Sequence[TensorSource], row_ids: NDArray[np.int64] | None
) -> Iterator[tuple[TensorSource, int, int]]:
    """(tensor, first row, stop row), a slab at a time."""
    for source in sources:
        step = max(1, _SLAB_BYTES // (4 * source.shape[1]))
        if row_ids is not None:
            for start, stop in _runs(row_ids, step):
                yield source, start, stop
            continue
        for start in range(0, source.shape[0], step):
            yield source, start, min(start + step, source.shape[0])


def _runs(row_ids: NDArray[np.int64], longest: int) -> Iterator[tuple[int, int]]:
    """Consecutive ids as half-open runs; ``row_ids`` rises strictly."""
    breaks = np.flatnonzero(np.diff(row_ids) != 1) + 1
    for run in np.split(row_ids, breaks):
        for start in range(int(run[0]), int(run[-1]) + 1, longest):
            yield start, min(start + longest, int(run[-1]) + 1)
