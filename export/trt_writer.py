"""From a plan to the files of one model for TensorRT: weights, a body, a head. Knows no recipe file and no engine.

What of a model differs from ``model_writer``: 4-bit weights lie in columns, the head reads its logits out itself, and
the table that tokens are embedded from belongs to the host.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import EmbeddingTable, GraphNeeds, Model
from edge_runtime.errors import ConfigError

from .checkpoint import effective_norm
from .device_weights import shared_embedding, store_embedding
from .dialects.trt import TrtSpelling, spell_body, spell_head
from .dialects.trt_allowed import violations
from .gemma import describe
from .graph import Attention, Embed, Graph, Linear
from .model_writer import (
    SPARE_POSITIONS,
    ModelPlan,
    Progress,
    Weights,
    WrittenModel,
    io_table,
    model_notes,
    store_ropes,
    vector_names,
)
from .needs import needs_of
from .precision import store_for_device
from .recipe import ExportRecipe
from .weights import Dense, Stored, WeightFile

_TABLE, _HEAD = (Graph.EMBED,), ("head",)


def write_model(directory: Path, plan: ModelPlan, recipe: ExportRecipe, progress: Progress) -> WrittenModel:
    """Raises ``ConfigError`` for what this dialect does not spell."""
    graph = plan.graph or describe(plan.checkpoint.config, plan.num_layers)
    half = recipe.in_half
    with WeightFile(directory / f"{plan.role}.weights") as file:
        weights, embedding = _store(file, graph, plan, recipe, progress)
        ropes = store_ropes(file, graph, recipe.max_context + SPARE_POSITIONS, plan.ropes)
    if not file.path.stat().st_size:
        file.path.unlink()  # all of it is stored already
    head_key = _HEAD if plan.token_ids is not None else _TABLE
    norms = {name: effective_norm(plan.checkpoint, name) for name in vector_names(graph)}
    stored = {names: part for names, (part,) in weights.items()}
    spelling = TrtSpelling(stored, norms, ropes, half, embedding.columns)
    candidates = min(recipe.candidates, plan.vocab_size)
    of_head = replace(spelling, weights={_TABLE: stored[head_key]})
    graphs = {
        "body": spell_body(graph, spelling),
        "head": spell_head(graph, of_head, plan.vocab_size, candidates),
    }
    for name, proto in graphs.items():
        for problem in violations(proto):
            raise ConfigError(f"{plan.role}.{name}.onnx would not pass TensorRT 10.3: {problem}")
        onnx.save(proto, directory / f"{plan.role}.{name}.onnx")
    token_ids_file = None
    if plan.token_ids is not None:
        token_ids_file = f"{plan.role}.token_ids"
        plan.token_ids.astype("<i8").tofile(directory / token_ids_file)
    model = Model(
        body=f"{plan.role}.body.onnx",
        head=f"{plan.role}.head.onnx",
        readout="",
        screen=None,
        weights=_files(graphs, embedding),
        table=(),
        precision=plan.precision,
        accuracy_level=0,
        vocab_size=plan.vocab_size,
        token_ids=token_ids_file,
        hidden_size=graph.hidden_size,
        candidates=candidates,
        max_context=recipe.max_context,
        kv_dtype="float16" if half else "float32",
        layers=graph.kv_layers,
        io=tuple(line for name, proto in graphs.items() for line in io_table(name, proto)),
        shares=plan.shares,
        hidden_input=graph.hidden_input,
        graphs=_needs(plan.role, graph, graphs),
        dialect="tensorrt",
        embedding=embedding,
    )
    return WrittenModel(model, tuple(model_notes(plan, weights)), weights, ropes)


def _store(
    file: WeightFile, graph: Graph, plan: ModelPlan, recipe: ExportRecipe, progress: Progress
) -> tuple[Weights, EmbeddingTable]:
    checkpoint, stored = plan.checkpoint, dict(plan.reuse)
    linears = [op.weights for op in graph.body if isinstance(op, Linear)]
    products = [names for names in dict.fromkeys(linears) if names not in stored]
    sizes = {names: sum(4 * int(np.prod(checkpoint.tensor(name).shape)) for name in names) for names in products}
    total, done = sum(sizes.values()) + 4 * int(np.prod(checkpoint.tensor(Graph.EMBED).shape)), 0
    progress(plan.role, done, total)
    embedding = _store_tables(file, graph, plan, recipe, stored)
    done = total - sum(sizes.values())
    for names in products:
        progress(plan.role, done, total)
        sources = [checkpoint.tensor(name) for name in names]
        part = store_for_device(file, sources, plan.precision, recipe, rounding=plan.rounding(names))
        stored[names] = (part,)
        checkpoint.release()
        done += sizes[names]
    progress(plan.role, total, total)
    return stored, embedding


def _store_tables(
    file: WeightFile,
    graph: Graph,
    plan: ModelPlan,
    recipe: ExportRecipe,
    stored: dict[tuple[str, ...], tuple[Stored, ...]],
) -> EmbeddingTable:
    """The head goes into ``stored``; what the host embeds from comes back, which may be the same bytes."""
    scale = next(op.scale for op in graph.body if isinstance(op, Embed))
    table = plan.checkpoint.tensor(Graph.EMBED)
    # Rows of padding behind the tokenizer's ids are dropped: they could be drawn, and no text stands for them.
    kept: NDArray[np.int64] | None = None
    if plan.token_ids is None and table.shape[0] != plan.vocab_size:
        kept = np.arange(plan.vocab_size)
    key, source, ids = _TABLE, table, kept
    if plan.token_ids is not None:
        own = "head" in plan.checkpoint.names()
        key = _HEAD
        source, ids = (plan.checkpoint.tensor("head"), None) if own else (table, plan.token_ids)
    if key not in stored:
        rounding = plan.rounding(_TABLE)
        part = store_for_device(file, [source], plan.head_precision, recipe, table=True, row_ids=ids, rounding=rounding)
        stored[key] = (part,)
    if plan.embedding is not None:
        return replace(plan.embedding, scale=scale)
    (head,) = stored[key]
    if plan.head_precision == "int4":
        return store_embedding(file, table, recipe.scale_block, kept, scale)
    if plan.token_ids is not None:
        # The head keeps some rows, and any token may be fed.
        head = store_for_device(file, [table], plan.head_precision, recipe, table=True)
    assert isinstance(head, Dense), "floats"
    return shared_embedding(head, scale)


def _files(graphs: dict[str, onnx.ModelProto], embedding: EmbeddingTable) -> tuple[str, ...]:
    """Weight files that the graphs or the host read."""
    named = [
        entry.value
        for proto in graphs.values()
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    ]
    return tuple(dict.fromkeys([*named, embedding.file]))


def _needs(role: str, graph: Graph, graphs: dict[str, onnx.ModelProto]) -> tuple[GraphNeeds, ...]:
    """Attention is written out here, so its heads cannot be read off an operator."""
    heads = max((op.heads for op in graph.body if isinstance(op, Attention)), default=0)
    body, *rest = needs_of(role, graphs, ())
    return (replace(body, attention_heads=heads), *rest)
