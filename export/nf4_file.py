"""Writes a model for the NF4 engine: one safetensors file, in the words of transformers. Knows no graph of an engine.

Products are quantised here, not at load: the file is a quarter as large, a board never holds the floats, and a plan of
memory is exact. The bytes are those that bitsandbytes would make (``nf4``).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import GraphNeeds, Model, Product
from edge_runtime.errors import CheckpointError

from .checkpoint import Checkpoint, effective_norm
from .gemma import describe
from .graph import Graph, Linear
from .hf_config import HF_TYPE, hf_name, hf_settings
from .model_writer import ModelPlan, Progress, WrittenModel, vector_names
from .nf4 import NF4_BLOCK, nf4
from .quantize import to_float16
from .recipe import ExportRecipe

FORMAT = "edge-runtime nf4 1"
_EMBED, _HEAD = "embed_tokens.weight", "head.weight"
_DTYPES = {"U8": "uint8", "F16": "<f2", "F32": "<f4"}
_SLAB_VALUES = 8 << 20
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: str
    """``"U8"``, ``"F16"`` or ``"F32"``"""
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(_DTYPES[self.kind]).itemsize


class TensorFile:
    """A safetensors file whose tensors are all known before the first is written; a context manager."""

    def __init__(self, path: Path, entries: Mapping[str, _Entry], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        self._entries = entries
        self._offsets: dict[str, int] = {}
        offset = 0
        for name, entry in entries.items():
            header[name] = {"dtype": entry.kind, "shape": entry.shape, "data_offsets": [offset, offset + entry.bytes]}
            self._offsets[name] = offset
            offset += entry.bytes
        text = json.dumps(header).encode("utf-8")
        text += b" " * (-(len(text) + 8) % _ALIGNMENT)
        self._start = len(text) + 8
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        os.pwrite(self._fd, struct.pack("<Q", len(text)) + text, 0)
        os.ftruncate(self._fd, self._start + offset)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._fd)

    def write(self, name: str, array: NDArray[Any], first_row: int = 0) -> None:
        """``array`` from row ``first_row`` of the tensor on."""
        entry = self._entries[name]
        row_bytes = entry.bytes // entry.shape[0]
        view = np.ascontiguousarray(array, _DTYPES[entry.kind]).reshape(-1).view(np.uint8).data
        offset = self._offsets[name] + first_row * row_bytes
        if offset + len(view) > self._offsets[name] + entry.bytes:
            raise ValueError(f"write past the end of {name}")
        offset += self._start
        while view:
            written = os.pwrite(self._fd, view, offset)
            offset, view = offset + written, view[written:]


def write_nf4_model(directory: Path, plan: ModelPlan, recipe: ExportRecipe, progress: Progress) -> WrittenModel:
    """``plan``: which checkpoint, layers and rows; its precisions do not matter. Raises ``InputError`` kinds."""
    checkpoint = plan.checkpoint
    # A reduced head is a table of its own; the embedding keeps all rows, since any token may be fed.
    tokens = plan.vocab_size if plan.token_ids is None else checkpoint.tensor(Graph.EMBED).shape[0]
    settings = hf_settings(checkpoint.config, plan.num_layers) | {"vocab_size": tokens}
    graph = describe(checkpoint.config, plan.num_layers)
    matrices = [name for op in graph.body if isinstance(op, Linear) for name in op.weights]
    vectors = list(vector_names(graph))
    name = f"{plan.role}.nf4.safetensors"
    entries = dict(_entries(plan, matrices, vectors, tokens))
    config = {"model_type": HF_TYPE[checkpoint.config.family], **settings}
    with TensorFile(directory / name, entries, {"format": FORMAT, "config": json.dumps(config)}) as file:
        for vector in vectors:
            file.write(f"{hf_name(vector)}.weight", effective_norm(checkpoint, vector) - np.float32(1))
        _write_tables(file, plan, tokens)
        for done, matrix in enumerate(matrices):
            progress(plan.role, done, len(matrices))
            for start, rows in _slabs(checkpoint, matrix, checkpoint.tensor(matrix).shape[0]):
                found = nf4(rows)
                file.write(f"{hf_name(matrix)}.packed", found.packed, start)
                file.write(f"{hf_name(matrix)}.scales", found.scales, start)
            checkpoint.release()
        progress(plan.role, len(matrices), len(matrices))
    ids_file = None
    if plan.token_ids is not None:
        ids_file = f"{plan.role}.token_ids"
        plan.token_ids.astype("<i8").tofile(directory / ids_file)
    needs = _needs(directory / name, checkpoint, matrices)
    return WrittenModel(_model(plan, recipe, graph, needs, ids_file), (), {})


def _model(plan: ModelPlan, recipe: ExportRecipe, graph: Graph, needs: GraphNeeds, ids_file: str | None) -> Model:
    return Model(
        body=needs.file,
        head=needs.file,
        readout="",
        screen=None,
        weights=(needs.file,),
        table=(),
        precision="nf4",
        accuracy_level=0,
        vocab_size=plan.vocab_size,
        token_ids=ids_file,
        hidden_size=graph.hidden_size,
        candidates=min(recipe.candidates, plan.vocab_size),
        max_context=recipe.max_context,
        kv_dtype="float16",
        layers=graph.kv_layers,
        io=(),
        graphs=(needs,),
        dialect="nf4",
    )


def _needs(path: Path, checkpoint: Checkpoint, matrices: list[str]) -> GraphNeeds:
    shapes = [checkpoint.tensor(matrix).shape for matrix in matrices]
    sizes = [rows * columns for rows, columns in shapes]
    return GraphNeeds(
        file=path.name,
        stored=path.stat().st_size,
        table=0,
        products=(Product(4, NF4_BLOCK, sum(sizes), max(sizes)),),
        widest=max(rows for rows, _ in shapes),
        attention_heads=checkpoint.config.num_heads,
    )


def _entries(plan: ModelPlan, matrices: list[str], vectors: list[str], tokens: int) -> Iterator[tuple[str, _Entry]]:
    checkpoint = plan.checkpoint
    yield _EMBED, _Entry("F16", (tokens, checkpoint.config.hidden_size))
    if plan.token_ids is not None:
        yield _HEAD, _Entry("F16", (plan.vocab_size, checkpoint.config.hidden_size))
    for vector in vectors:
        yield f"{hf_name(vector)}.weight", _Entry("F32", checkpoint.tensor(vector).shape)
    for matrix in matrices:
        rows, columns = checkpoint.tensor(matrix).shape
        if columns % NF4_BLOCK:
            raise CheckpointError(f"{matrix}: {columns} columns do not divide into blocks of {NF4_BLOCK}")
        yield f"{hf_name(matrix)}.packed", _Entry("U8", (rows, columns // 2))
        yield f"{hf_name(matrix)}.scales", _Entry("F32", (rows, columns // NF4_BLOCK))


def _write_tables(file: TensorFile, plan: ModelPlan, tokens: int) -> None:
    ids = plan.token_ids
    for start, rows in _slabs(plan.checkpoint, Graph.EMBED, tokens):
        half = to_float16(rows)
        file.write(_EMBED, half, start)
        if ids is not None:
            first, stop = np.searchsorted(ids, [start, start + len(rows)]).tolist()
            if first < stop:
                file.write(_HEAD, half[ids[first:stop] - start], first)


def _slabs(checkpoint: Checkpoint, name: str, rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    source = checkpoint.tensor(name)
    step = max(1, _SLAB_VALUES // source.shape[1])
    for start in range(0, rows, step):
        yield start, source.rows(start, min(start + step, rows))
