"""Tokens' rows of an embedding, read from the mapped file of a bundle. Knows no graph and no device.

The table is the largest tensor of a small model, and a step reads a few rows of it: it stays in the page cache,
whatever the device, and what nobody asks for is never in memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..bundle import EmbeddingTable
from ..errors import BundleError
from .bounds import refuse_tokens
from .protocol import Floats, Ids

_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "<i1"}


class EmbeddingRows:
    """Rows of a table, dequantised and scaled."""

    def __init__(self, directory: Path, table: EmbeddingTable) -> None:
        """Raises ``BundleError`` for a file that is not as the manifest says."""
        self._path, self._table = directory / table.file, table
        shape = (table.rows, table.columns)
        self._values = self._map(table.dtype, table.offset, shape)
        self._scales: Any = None
        if table.dtype == "int8":
            block = table.block_size
            if block is None or table.scales_offset is None or table.scales_dtype is None or table.columns % block:
                raise BundleError(f"{self._path}: an int8 embedding without blocks of scales")
            self._scales = self._map(table.scales_dtype, table.scales_offset, (table.rows, table.columns // block))

    @property
    def rows(self) -> int:
        return self._table.rows

    def read(self, tokens: Ids, out: Floats) -> None:
        """The rows of ``tokens`` [T] to ``out`` [T, columns]. Raises ``ValueError`` for an id that has none."""
        refuse_tokens(tokens, self._table.rows)
        if self._scales is None:
            np.multiply(self._values[tokens], np.float32(self._table.scale), out=out, dtype=np.float32)
            return
        scales = self._scales[tokens].astype(np.float32) * np.float32(self._table.scale)
        blocks = self._values[tokens].reshape(*scales.shape, -1)
        np.multiply(blocks, scales[:, :, None], out=out.reshape(blocks.shape), dtype=np.float32)

    def _map(self, dtype: str, offset: int, shape: tuple[int, int]) -> Any:
        try:
            return np.memmap(self._path, _TYPES[dtype], "r", offset, shape)
        except (OSError, ValueError, OverflowError) as problem:
            raise BundleError(f"{self._path}: the embedding cannot be mapped: {problem}") from None
