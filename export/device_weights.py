"""Weights in the layouts of the TensorRT dialect: 4-bit columns, and the table that the host embeds from.

Knows rows and regions, not what a graph does with them. As everywhere, a slab of rows exists at a time: what lies
transposed in the file is written through a mapping of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import EmbeddingTable
from edge_runtime.errors import CheckpointError

from .checkpoint import TensorSource
from .gguf_blocks import Bytes, Floats, unpack_nibbles
from .quantize import int8
from .weights import Columns, Dense, Quantiser, Region, WeightFile, slabs

_CENTRE = np.uint8(8)
_LEAST_SCALE = np.float32(np.finfo(np.float16).tiny)
"""Smaller scales would lose digits of their own in float16; such blocks are rounded again, by this one."""
_LARGEST_SCALE = np.float32(np.finfo(np.float16).max)


def store_columns(
    file: WeightFile, sources: Sequence[TensorSource], quantise: Quantiser, row_ids: NDArray[np.int64] | None = None
) -> Columns:
    """The rows of ``sources`` beside each other as columns. ``quantise`` gives symmetric 4-bit blocks.

    Raises:
        CheckpointError: an odd number of rows (two share a byte), or a scale that float16 does not hold.
    """
    columns = sources[0].shape[1]
    rows = sum(source.shape[0] for source in sources) if row_ids is None else len(row_ids)
    if rows % 2:
        raise CheckpointError(f"{sources[0].name}: {rows} rows; TensorRT's 4-bit weights come in pairs of them")
    block_size = quantise(sources[0], 0, 1).block_size
    packed = file.reserve("uint8", (columns, rows // 2))
    scales = file.reserve("float16", (columns // block_size, rows))
    packed_view, scales_view = file.mapped(packed), file.mapped(scales)
    at, error = 0, 0.0
    for source, start, stop in slabs(sources, row_ids):
        part = quantise(source, start, stop)
        assert part.bits == 4 and part.zero_points is None, "symmetric blocks of 4 bits"
        halves, levels, moved = in_float16(source.name, part.scales, unpack_nibbles(part.quants))
        count = stop - start
        nibbles = np.ascontiguousarray(levels.reshape(count, columns).T) ^ _CENTRE
        for parity in (0, 1):
            # The rows of even places in the file are lower nibbles, whatever their place in the slab.
            first = (at + parity) % 2
            chosen = nibbles[:, first::2]
            place = (at + first) // 2
            packed_view[:, place : place + chosen.shape[1]] |= chosen << np.uint8(4 * parity)
        scales_view[:, at : at + count] = halves.T
        error = max(error, part.max_error + moved)
        at += count
    del packed_view, scales_view
    quants = Region(packed.file, packed.offset, packed.length, "int4", (columns, rows))
    return Columns(rows, columns, block_size, quants, scales, error)


def in_float16(name: str, scales: Floats, levels: Bytes) -> tuple[NDArray[np.float16], Bytes, float]:
    """Scales [N, B] in float16, the levels [N, B, b] that go with them, and what that moved a weight by at most.

    Raises ``CheckpointError`` where a scale passes float16.
    """
    if scales.max(initial=0.0) > _LARGEST_SCALE:
        raise CheckpointError(f"{name}: a scale of {float(scales.max()):.6g} does not fit float16 (65504 at most)")
    halves = np.maximum(scales, _LEAST_SCALE).astype(np.float16)
    signed = levels.astype(np.float32) - np.float32(_CENTRE)
    small = scales < _LEAST_SCALE
    if small.any():
        again = np.rint(signed * (scales / halves.astype(np.float32))[..., None])
        signed = np.where(small[..., None], again, signed)
    before = (levels.astype(np.float32) - np.float32(_CENTRE)) * scales[..., None]
    moved = np.abs(signed * halves.astype(np.float32)[..., None] - before).max(initial=0.0)
    return halves, (signed + np.float32(_CENTRE)).astype(np.uint8), float(moved)


def shared_embedding(table: Dense, scale: float) -> EmbeddingTable:
    """The head's own matrix, where that is a dense one of all rows."""
    assert not table.transposed
    dtype: Literal["float32", "float16"] = "float32" if table.data.dtype == "float32" else "float16"
    return EmbeddingTable(table.data.file, table.data.offset, dtype, table.rows, table.columns, scale)


def store_embedding(
    file: WeightFile, source: TensorSource, block_size: int, row_ids: NDArray[np.int64] | None, scale: float
) -> EmbeddingTable:
    """In 8 bits: it lies beside a 4-bit head, whose columns nobody can gather rows of."""
    rows, columns = (source.shape[0] if row_ids is None else len(row_ids)), source.shape[1]
    if columns % block_size:
        raise CheckpointError(f"{source.name}: {columns} columns do not divide into blocks of {block_size}")
    quants = file.reserve("int8", (rows, columns))
    scales = file.reserve("float32", (rows, columns // block_size))
    at = 0
    for _, start, stop in slabs([source], row_ids):
        part = int8(source.rows(start, stop), block_size)
        signed = (part.quants.reshape(stop - start, columns) ^ np.uint8(128)).view(np.int8)
        file.write(quants, signed, at)
        file.write(scales, part.scales, at)
        at += stop - start
    return EmbeddingTable(
        quants.file, quants.offset, "int8", rows, columns, scale, block_size, scales.offset, "float32"
    )
