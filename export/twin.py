"""The target of a bundle for TensorRT once more in the dialect of ONNX Runtime, with the same weights value by value.

What differs between the two is then the dialect alone: how attention is written, and what is float16. Nothing is
rounded again: 4-bit columns become 4-bit blocks with the same levels and scales, float16 becomes float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import TARGET, EmbeddingTable, Manifest
from edge_runtime.errors import ConfigError

from .checkpoint import Checkpoint
from .gemma import describe
from .gguf_blocks import pack_nibbles, unpack_nibbles
from .graph import Graph, Linear
from .model_writer import ModelPlan, write_model
from .recipe import ExportRecipe
from .weights import Blocks, Dense, Region, Stored, WeightFile

_SLAB = 4096
"""Rows that are converted at a time; even."""
_HEAD = ("head",)

Tensors = Mapping[str, onnx.TensorProto]


def write_twin(directory: Path, bundle: Path, manifest: Manifest, checkpoint: Checkpoint) -> Manifest:
    """Into ``directory``, which is there. Its embedding and head are apart, as they are in the bundle.

    Raises ``ConfigError`` where ``checkpoint`` is not what the bundle was made from.
    """
    model = manifest.model(TARGET)
    if model.embedding is None:
        raise ConfigError(f"{bundle} is not a bundle for TensorRT: it has no dialect to compare")
    graph = describe(checkpoint.config, len(model.layers))
    body, head = (_tensors(bundle / name) for name in (model.body, model.head))
    reuse: dict[tuple[str, ...], tuple[Stored, ...]] = {}
    with WeightFile(directory / "twin.weights") as file:
        for op in graph.body:
            if isinstance(op, Linear):
                reuse[op.weights] = (_product(file, bundle, body, "+".join(op.weights)),)
        reuse[(Graph.EMBED,)] = (_embedding(file, bundle, model.embedding),)
        reuse[_HEAD] = (_product(file, bundle, head, Graph.EMBED),)
    plan = ModelPlan(
        role=TARGET,
        checkpoint=checkpoint,
        num_layers=len(model.layers),
        vocab_size=model.vocab_size,
        token_ids=np.arange(model.vocab_size, dtype=np.int64),
        precision="int4",
        head_precision="int4",
        reuse=reuse,
    )
    recipe = ExportRecipe(
        source=str(checkpoint.path),
        output=str(directory),
        precision="int4",
        accuracy_level=1,
        max_context=model.max_context,
        candidates=model.candidates,
    )
    written = write_model(directory, plan, recipe, lambda what, done, total: None)
    return replace(manifest, models={TARGET: written.model})


def _tensors(path: Path) -> Tensors:
    return {tensor.name: tensor for tensor in onnx.load(path, load_external_data=False).graph.initializer}


def _product(file: WeightFile, bundle: Path, tensors: Tensors, name: str) -> Stored:
    if name not in tensors:
        raise ConfigError(f"{bundle}: no weights {name}: not made from this checkpoint")
    tensor = tensors[name]
    if tensor.data_type == onnx.TensorProto.INT4:
        return _blocks(file, bundle, tensor, tensors[f"{name}.scales"])
    source = _mapped(bundle, tensor)
    # A head is gathered by rows, everything else multiplied from the right.
    transposed = name != Graph.EMBED
    rows, columns = source.shape[::-1] if transposed else source.shape
    return Dense(rows, columns, _as_float32(file, source), transposed)


def _as_float32(file: WeightFile, source: NDArray[Any]) -> Region:
    region = file.reserve("float32", source.shape)
    for start in range(0, len(source), _SLAB):
        file.write(region, source[start : start + _SLAB].astype(np.float32), start)
    return region


def _blocks(file: WeightFile, bundle: Path, quants: onnx.TensorProto, scales: onnx.TensorProto) -> Blocks:
    """Columns back into rows: what differs is where a value lies, and that it counts from 8."""
    packed, halves = _mapped(bundle, quants), _mapped(bundle, scales)
    columns, rows = quants.dims
    size = columns // scales.dims[0]
    into = file.reserve("uint8", (rows, columns // size, size // 2))
    scaled = file.reserve("float32", (rows, columns // size))
    for start in range(0, rows, _SLAB):
        stop = min(start + _SLAB, rows)
        levels = unpack_nibbles(packed[:, start // 2 : stop // 2]) ^ np.uint8(8)
        by_row = np.ascontiguousarray(levels.T).reshape(stop - start, columns // size, size)
        file.write(into, pack_nibbles(by_row), start)
        file.write(scaled, halves[:, start:stop].T.astype(np.float32), start)
    return Blocks(rows, columns, 4, size, into, scaled, None, 0.0)


def _embedding(file: WeightFile, bundle: Path, table: EmbeddingTable) -> Stored:
    shape = (table.rows, table.columns)
    values = np.memmap(bundle / table.file, np.dtype(table.dtype), "r", table.offset, shape)
    if table.block_size is None:
        return Dense(table.rows, table.columns, _as_float32(file, values), False)
    blocks = table.columns // table.block_size
    scales = np.memmap(
        bundle / table.file, np.dtype(table.scales_dtype), "r", table.scales_offset or 0, (table.rows, blocks)
    )
    into = file.reserve("uint8", (table.rows, blocks, table.block_size))
    for start in range(0, table.rows, _SLAB):
        signed = np.ascontiguousarray(values[start : start + _SLAB])
        file.write(into, signed.view(np.uint8) ^ np.uint8(128), start)
    scaled = _as_float32(file, scales)
    return Blocks(table.rows, table.columns, 8, table.block_size, into, scaled, None, 0.0)


def _mapped(bundle: Path, tensor: onnx.TensorProto) -> NDArray[Any]:
    """What lies in the weight file; of 4-bit values the bytes, two values each."""
    given = {entry.key: entry.value for entry in tensor.external_data}
    shape, dtype = tuple(tensor.dims), "uint8"
    if tensor.data_type == onnx.TensorProto.INT4:
        shape = (*shape[:-1], shape[-1] // 2)
    else:
        dtype = "float32" if tensor.data_type == onnx.TensorProto.FLOAT else "float16"
    return np.memmap(bundle / given["location"], dtype, "r", int(given["offset"]), shape)
