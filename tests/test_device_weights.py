"""4-bit columns and the host's embedding: where each value lies, and what float16 scales do to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.bundle import EmbeddingTable
from edge_runtime.engines.delta_embedding import EmbeddingRows
from edge_runtime.errors import CheckpointError
from export.array_checkpoint import ArrayTensor
from export.checkpoint import TensorSource
from export.device_weights import in_float16, store_columns, store_embedding
from export.gguf_blocks import BlockWeights, unpack_nibbles
from export.quantize import int4, int8
from export.weights import Columns, WeightFile

BLOCK = 64


def matrix(rows: int, columns: int = 128, seed: int = 0) -> np.ndarray:
    values: np.ndarray = (np.random.default_rng(seed).standard_normal((rows, columns)) * 0.1).astype(np.float32)
    return values


def rounded(source: TensorSource, start: int, stop: int) -> BlockWeights:
    return int4(source.rows(start, stop), BLOCK, symmetric=True)


def read_back(place: Path, columns: Columns) -> np.ndarray:
    """[rows, columns] as the operator says: (value - 0) * scale, a scale for each run down a column."""
    packed = np.memmap(place, np.uint8, "r", columns.quants.offset, (columns.columns, columns.rows // 2))
    nibbles = unpack_nibbles(np.asarray(packed)).astype(np.int8)
    signed = np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.float32)
    scales = np.memmap(place, np.float16, "r", columns.scales.offset, columns.scales.shape)
    values: np.ndarray = (signed * np.repeat(scales.astype(np.float32), columns.block_size, axis=0)).T
    return values


@pytest.mark.parametrize("ids", [None, [0, 1, 2, 7, 8, 9, 20, 33], [5, 7, 8, 11, 13, 14, 15, 39]], ids=str)
def test_values_lie_where_the_operator_looks(ids: list[int] | None, tmp_path: Path) -> None:
    """Runs of an odd length too: two rows share a byte, and a slab may begin in the middle of one."""
    values, chosen = matrix(40), None if ids is None else np.array(ids, np.int64)
    place = tmp_path / "w"
    with WeightFile(place) as file:
        file.append(np.zeros(3, np.uint8))
        columns = store_columns(file, [ArrayTensor("m", values)], rounded, chosen)
    wanted = rounded(ArrayTensor("m", values), 0, 40).dequantise()
    wanted = wanted if ids is None else wanted[ids]
    found = read_back(place, columns)
    assert (columns.quants.dtype, columns.quants.shape) == ("int4", (128, len(wanted)))
    # Scales in float16 are off by half of 2^-10 at most, and a level is 8 of them.
    assert np.abs(found - wanted).max() <= np.abs(wanted).max() * 2**-11 + 1e-9
    assert np.abs(found - (values if ids is None else values[ids])).max() <= columns.max_error + 1e-7


def test_matrices_stand_side_by_side(tmp_path: Path) -> None:
    parts = [matrix(rows, seed=rows) for rows in (7, 4, 9)]
    with WeightFile(tmp_path / "w") as file:
        columns = store_columns(file, [ArrayTensor(f"m{i}", part) for i, part in enumerate(parts)], rounded)
    wanted = np.concatenate([rounded(ArrayTensor("m", part), 0, len(part)).dequantise() for part in parts])
    assert np.abs(read_back(tmp_path / "w", columns) - wanted).max() <= np.abs(wanted).max() * 2**-11 + 1e-9


def test_scales_that_float16_lacks() -> None:
    levels = np.random.default_rng(1).integers(0, 16, (2, 3, 64)).astype(np.uint8)
    scales = np.array([[0.01, 2e-5, 1e-9], [1.0, 3.0, 6e-5]], np.float32)
    halves, again, moved = in_float16("m", scales, levels)
    assert (halves > 0).all() and np.array_equal(again[0, 0], levels[0, 0])
    before = (levels.astype(np.float32) - 8) * scales[..., None]
    after = (again.astype(np.float32) - 8) * halves.astype(np.float32)[..., None]
    assert moved == pytest.approx(np.abs(after - before).max())
    small = scales < np.finfo(np.float16).tiny
    assert np.abs(after - before)[small].max() <= np.finfo(np.float16).tiny / 2 + 1e-9
    with pytest.raises(CheckpointError, match="70000 does not fit float16"):
        in_float16("m", np.array([[70000.0]], np.float32), levels[:1, :1])


def test_an_odd_number_of_rows_is_refused(tmp_path: Path) -> None:
    with WeightFile(tmp_path / "w") as file, pytest.raises(CheckpointError, match="m: 7 rows"):
        store_columns(file, [ArrayTensor("m", matrix(7))], rounded)


@pytest.mark.parametrize("ids", [None, [0, 3, 4, 11]], ids=str)
def test_an_embedding_is_read_as_it_was_written(ids: list[int] | None, tmp_path: Path) -> None:
    values, chosen = matrix(12), None if ids is None else np.array(ids, np.int64)
    with WeightFile(tmp_path / "w") as file:
        table = store_embedding(file, ArrayTensor("embed", values), BLOCK, chosen, 8.0)
    assert isinstance(table, EmbeddingTable) and table.bytes == table.rows * (128 + 2 * 4)
    rows = np.arange(table.rows)
    out = np.empty((table.rows, 128), np.float32)
    EmbeddingRows(tmp_path, table).read(rows, out)
    wanted = int8(values if ids is None else values[ids], BLOCK).dequantise() * 8.0
    assert np.abs(out - wanted).max() <= 1e-6
    with WeightFile(tmp_path / "v") as file, pytest.raises(CheckpointError, match="do not divide"):
        store_embedding(file, ArrayTensor("embed", matrix(4, 96)), BLOCK, None, 1.0)
