"""Manifests of models that nobody exported: what a published shape would need, by the same rules as a real bundle."""

from __future__ import annotations

from edge_runtime.bundle import (
    DRAFT,
    TARGET,
    FileEntry,
    GraphNeeds,
    Manifest,
    MappedTensor,
    MemoryNeeds,
    Model,
    Product,
    Screen,
    TokenizerEntry,
)
from export.checkpoint import expected_shapes
from export.gemma import describe
from export.graph import Attention, Graph, Linear
from export.synthetic import config_of, shape_named

_FLOAT = 4
_BLOCK = 32


PAIRS = {
    "orin-nano-4": ("gemma-3-270m", None),
    "orin-nano-8": ("gemma-3-4b", "gemma-3-270m"),
    "orin-nx-8": ("gemma-3-4b", "gemma-3-270m"),
    "orin-nx-16": ("gemma-2-9b", "gemma-2-2b"),
    "agx-orin-32": ("gemma-3-12b", "gemma-3-1b"),
    "agx-orin-64": ("gemma-3-27b", "gemma-3-1b"),
}
"""By board: the target and the draft that its configuration is made for."""


def shaped(target: str, draft: str | None = None) -> Manifest:
    """In ``int4``, symmetric and half: as a board runs it."""
    models = {TARGET: _model(TARGET, target)}
    if draft is not None:
        models[DRAFT] = _model(DRAFT, draft)
    files = [FileEntry("tokenizer.model", 4_700_000, ""), FileEntry("NOTICE", 1, "")]
    files += [FileEntry(one.file, 300_000, "") for model in models.values() for one in model.graphs]
    files += [FileEntry(name, 1, "") for model in models.values() for name in model.weights]
    return Manifest(
        schema_version=1,
        name=target,
        family=shape_named(target).family,
        models=models,
        tokenizer=TokenizerEntry("tokenizer.model", shape_named(target).vocab, 2, (1,), ""),
        chat_template=None,
        memory=MemoryNeeds(0, 0, 0),
        sources=(),
        recipe={},
        notes=(),
        licence="Gemma",
        licence_file="NOTICE",
        exporter="test",
        files=tuple(files),
    )


def _model(role: str, name: str) -> Model:
    shape = shape_named(name)
    config = config_of(name, shape)
    graph, shapes = describe(config), expected_shapes(config)
    sizes = [sum(shapes[one][0] for one in op.weights) * shapes[op.weights[0]][1]
             for op in graph.body if isinstance(op, Linear)]  # fmt: skip
    table = shape.vocab * shape.hidden
    table_bytes = table + _FLOAT * table // _BLOCK
    body = Product(4, _BLOCK, sum(sizes), max(sizes))
    screen = Product(4, 64, table, table)
    of_body = sum(sizes) // 2 + _FLOAT * sum(sizes) // _BLOCK
    heads = max(op.heads for op in graph.body if isinstance(op, Attention))
    widest = max(2 * shape.ffn, shape.hidden)
    graphs = (
        GraphNeeds(f"{role}.body", of_body + table_bytes, table_bytes, (body,), widest, heads),
        GraphNeeds(f"{role}.head", table_bytes, 0, (Product(8, _BLOCK, table, table),), shape.vocab, 0),
        GraphNeeds(f"{role}.readout", 0, 0, (), 0, 0),
        GraphNeeds(f"{role}.screen", table // 2 + _FLOAT * table // 64, 0, (screen,), shape.vocab, 0),
        GraphNeeds(f"{role}.rescore", table_bytes, table_bytes, (), 0, 0),
    )
    mapped = (
        MappedTensor(Graph.EMBED, f"{role}.weights", 0, "uint8", (shape.vocab, shape.hidden)),
        MappedTensor(f"{Graph.EMBED}.scales", f"{role}.weights", 0, "float32", (shape.vocab, shape.hidden // _BLOCK)),
    )
    return Model(
        body=f"{role}.body", head=f"{role}.head", readout=f"{role}.readout",
        screen=Screen(f"{role}.screen", f"{role}.rescore", 256), weights=(f"{role}.weights",), table=mapped,
        precision="int4", accuracy_level=4, vocab_size=shape.vocab, token_ids=None, hidden_size=shape.hidden,
        candidates=64, max_context=8192, kv_dtype="float16", layers=graph.kv_layers, io=(), graphs=graphs,
    )  # fmt: skip
