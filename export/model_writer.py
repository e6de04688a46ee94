"""Writes one model of a bundle: its weight file and its three graphs. Knows no tokenizer and no manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import TARGET, EmbeddingTable, Lanes, Lookup, MappedTensor, Model, Screen, Tensor
from edge_runtime.errors import ConfigError

from .checkpoint import Checkpoint, effective_norm
from .cut import cut_graph
from .dialects.ort import Spelling, spell_body, spell_head, spell_lookup
from .dialects.ort_attention import narrower
from .dialects.ort_lanes import of_first_lane, with_lanes
from .dialects.ort_nodes import table_regions
from .dialects.ort_readout import Rescore, screened_rows, spell_readout, spell_screened_readout
from .gemma import describe
from .graph import AddNorm, Attention, BorrowedAttention, Embed, Graph, GroupNorm, Linear, RmsNorm, Rope, Scale, Sum
from .needs import needs_of
from .precision import Rounding, cuda_notes, precision_notes, refuse_mixed, rounding_of, store_product
from .recipe import ExportRecipe, Precision
from .weights import Blocks, Dense, Region, Stored, WeightFile

Progress = Callable[[str, int, int], None]
"""(what, bytes done, bytes in all), bytes of float32 weights read."""

SPARE_POSITIONS = 8
"""Rotary rows behind the context: the padded row of the deterministic mode stands there."""


_SCREEN = ("screen",)
_SCREEN_BLOCK: Literal[64] = 64

Weights = Mapping[tuple[str, ...], tuple[Stored, ...]]
"""By the names of a product; the key ("head",) is a reduced head."""
Ropes = Mapping[tuple[Rope, int], tuple[Region, Region]]
"""(rope, head_dim) -> cos and sin."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What becomes one model."""

    role: str
    checkpoint: Checkpoint
    num_layers: int
    vocab_size: int
    """Rows of the head."""
    token_ids: NDArray[np.int64] | None
    """[vocab_size] rising, for a reduced head."""
    precision: Precision
    head_precision: Precision
    rounding: Callable[[tuple[str, ...]], Rounding | None] = lambda names: None
    """The rounding of a product by the names of its weights; ``None`` for the recipe's own."""
    reuse: Weights = field(default_factory=dict)
    """Products that another model of the bundle has stored already: a pruned draft shares its target's bytes."""
    ropes: Ropes = field(default_factory=dict)
    """Likewise."""
    graph: Graph | None = None
    """``None``: that of the checkpoint's first layers."""
    shares: tuple[int, ...] | None = None
    """See ``bundle.Model``."""
    cut_after: int | None = None
    """Layers of the stem, where a self-draft runs them alone; not every graph can be cut."""
    stem_of: Model | None = None
    """The target, whose stem is the body."""
    embedding: EmbeddingTable | None = None
    """The target's, where the host embeds for both."""


@dataclass(frozen=True, slots=True)
class WrittenModel:
    model: Model
    notes: tuple[str, ...]
    weights: Weights
    ropes: Ropes = field(default_factory=dict)


def write_model(directory: Path, plan: ModelPlan, recipe: ExportRecipe, progress: Progress) -> WrittenModel:
    refuse_mixed(plan.role, plan.precision, plan.head_precision, recipe.half or plan.precision == "fp16")
    for precision in (plan.precision, plan.head_precision):
        if precision == "exact" and plan.checkpoint.kind != "gguf":
            raise ConfigError(f"{plan.role}: exact carries the blocks of a GGUF; choose fp32, fp16, int8 or int4 here")
    graph = plan.graph or describe(plan.checkpoint.config, plan.num_layers)
    with WeightFile(directory / f"{plan.role}.weights") as file:
        spelling = body_spelling(file, graph, plan, recipe, progress)
    if not file.path.stat().st_size:
        file.path.unlink()  # all of it is stored already
    weights, half = spelling.weights, spelling.half
    # A reduced head is a table of its own; the embedding keeps all rows, since any token may be fed.
    head_key = ("head",) if plan.token_ids is not None else (Graph.EMBED,)
    candidates = min(recipe.candidates, plan.vocab_size)
    graphs = _body_graphs(plan, graph, spelling, recipe.lanes) | {
        "head": spell_head(graph, replace(spelling, weights={(Graph.EMBED,): weights[head_key]}), plan.vocab_size),
        "readout": spell_readout(plan.vocab_size, candidates, plan.token_ids),
    }
    screen = lookup = None
    if _SCREEN in weights and plan.token_ids is None:
        files = f"{plan.role}.screen.onnx", f"{plan.role}.rescore.onnx"
        screen = Screen(*files, screened_rows(plan.vocab_size, candidates))
        graphs |= _screen_graphs(plan, graph, spelling, candidates)
    if graph.lookup:
        lookup = Lookup(f"{plan.role}.lookup.onnx", graph.lookup_width)
        graphs["lookup"] = spell_lookup(graph, spelling)
    narrow = {f"{name}.narrow": twin for name, proto in graphs.items() if (twin := narrower(proto)) is not None}
    for name, proto in (graphs | narrow).items():
        onnx.save(proto, directory / f"{plan.role}.{name}.onnx")
    token_ids_file = None
    if plan.token_ids is not None:
        token_ids_file = f"{plan.role}.token_ids"
        plan.token_ids.astype("<i8").tofile(directory / token_ids_file)
    model = Model(
        body=f"{plan.role}.body.onnx" if plan.stem_of is None else str(plan.stem_of.stem),
        head=f"{plan.role}.head.onnx",
        readout=f"{plan.role}.readout.onnx",
        screen=screen,
        weights=weight_files(spelling),
        table=(table := _mapped_table(weights[(Graph.EMBED,)])),
        precision=plan.precision,
        accuracy_level=0 if plan.precision in ("fp32", "fp16") else recipe.accuracy_level,
        vocab_size=plan.vocab_size,
        token_ids=token_ids_file,
        hidden_size=graph.hidden_size,
        candidates=candidates,
        max_context=recipe.max_context,
        kv_dtype="float16" if half else "float32",
        layers=graph.kv_layers,
        io=stem_io(plan.stem_of) + tuple(line for name, proto in graphs.items() for line in io_table(name, proto)),
        stem=f"{plan.role}.stem.onnx" if "stem" in graphs else None,
        shares=plan.shares,
        hidden_input=graph.hidden_input,
        fan_out=graph.fan_out,
        narrow=_narrow_files(plan, narrow),
        lookup=lookup,
        lanes=Lanes(f"{plan.role}.lanes.onnx", recipe.lanes) if "lanes" in graphs and recipe.lanes else None,
        graphs=needs_of(plan.role, graphs, table),
    )
    return WrittenModel(model, tuple(model_notes(plan, weights, half)), weights, spelling.ropes)


def _body_graphs(
    plan: ModelPlan, graph: Graph, spelling: Spelling, lanes: int | None
) -> dict[str, onnx.ModelProto]:
    if plan.stem_of is not None:
        return {}
    halves = None if plan.cut_after is None else cut_graph(graph, plan.cut_after)
    graphs = {} if halves is None else {"stem": spell_body(halves[0], spelling)}
    graphs["body"] = spell_body(graph if halves is None else halves[1], spelling)
    if lanes is not None and plan.role == TARGET:
        graphs["lanes"] = with_lanes(spell_body(graph, spelling), lanes)
    return graphs


def _narrow_files(plan: ModelPlan, graphs: Iterable[str]) -> dict[str, str]:
    files = {f"{plan.role}.{name.removesuffix('.narrow')}.onnx": f"{plan.role}.{name}.onnx" for name in graphs}
    return files if plan.stem_of is None else files | plan.stem_of.narrow


def stem_io(target: Model | None) -> tuple[Tensor, ...]:
    """Of a model whose body is the target's stem."""
    lines = () if target is None else target.io
    return tuple(replace(line, graph="body") for line in lines if line.graph == "stem")


def _screen_graphs(plan: ModelPlan, graph: Graph, spelling: Spelling, candidates: int) -> dict[str, onnx.ModelProto]:
    (table,) = spelling.weights[(Graph.EMBED,)]
    assert isinstance(table, Blocks)
    rescore = Rescore(table, plan.checkpoint.config.final_softcap)
    coarse = replace(spelling, weights={(Graph.EMBED,): spelling.weights[_SCREEN]})
    return {
        "screen": spell_head(graph, coarse, plan.vocab_size),
        "rescore": spell_screened_readout(plan.vocab_size, candidates, graph.hidden_size, rescore),
    }


def model_notes(plan: ModelPlan, weights: Weights, for_cuda: bool = False) -> Iterator[str]:
    """Of each part by its own precision; a screen only looks, and need not be exact. ``for_cuda``: of onnxruntime."""
    if for_cuda:
        yield from (f"{plan.role}: {note}" for note in cuda_notes(weights.values()))
    if not plan.checkpoint.metadata.keys().isdisjoint(("vision_config", "audio_config")):
        yield f"{plan.role}: the text part of a multimodal checkpoint; images and sound are not in this bundle"
    tables = {names: parts for names, parts in weights.items() if names in ((Graph.EMBED,), ("head",))}
    products = {names: parts for names, parts in weights.items() if names not in tables and names != _SCREEN}
    for precision, of in ((plan.head_precision, tables), (plan.precision, products)):
        for note in precision_notes(precision, {"+".join(names): parts for names, parts in of.items()}):
            yield f"{plan.role} {note}"


def body_spelling(
    file: WeightFile, graph: Graph, plan: ModelPlan, recipe: ExportRecipe, progress: Progress
) -> Spelling:
    """Store all weights of ``graph`` in ``file`` and say where they are."""
    return Spelling(
        weights=_store_products(file, graph, plan, recipe, progress),
        norms={name: effective_norm(plan.checkpoint, name) for name in vector_names(graph)},
        ropes=store_ropes(file, graph, recipe.max_context + SPARE_POSITIONS, plan.ropes),
        accuracy_level=recipe.accuracy_level,
        half=recipe.half or plan.precision == "fp16",
        trees=recipe.trees and plan.role == TARGET,
    )


def _store_products(
    file: WeightFile, graph: Graph, plan: ModelPlan, recipe: ExportRecipe, progress: Progress
) -> dict[tuple[str, ...], tuple[Stored, ...]]:
    checkpoint, stored = plan.checkpoint, dict(plan.reuse)
    products = [op.weights for op in graph.body if isinstance(op, Linear) and op.weights not in stored]
    # Gathered row by row and no head: read from the disk as it is needed, whatever its size.
    tables = [(op.table,) for op in graph.with_lookup_inside().body if isinstance(op, Embed)]
    tables = [names for names in tables if names != (Graph.EMBED,) and names not in stored]
    table = checkpoint.tensor(Graph.EMBED)
    sizes = {names: sum(4 * int(np.prod(checkpoint.tensor(n).shape)) for n in names) for names in [*tables, *products]}
    total = sum(sizes.values()) + 4 * int(np.prod(table.shape))
    progress(plan.role, 0, total)
    # Rows of padding behind the tokenizer's ids are dropped: they could be drawn, and no text stands for them.
    padded = plan.token_ids is None and table.shape[0] != plan.vocab_size
    kept = np.arange(plan.vocab_size) if padded else None
    if (Graph.EMBED,) not in stored:
        stored[(Graph.EMBED,)] = store_product(file, [table], plan.head_precision, recipe, table=True, row_ids=kept)
    if plan.token_ids is not None and ("head",) not in stored:
        own = "head" in checkpoint.names()
        source, ids = (checkpoint.tensor("head"), None) if own else (table, plan.token_ids)
        stored[("head",)] = store_product(file, [source], plan.head_precision, recipe, table=True, row_ids=ids)
    if _SCREEN not in stored and _wants_screen(plan, recipe):
        coarse = rounding_of("int4", replace(recipe, block_size=_SCREEN_BLOCK, symmetric=False))
        stored[_SCREEN] = store_product(
            file, [table], "int4", replace(recipe, block_size=_SCREEN_BLOCK), table=True, row_ids=kept, rounding=coarse
        )
    done = total - sum(sizes.values())
    for names in [*tables, *products]:
        progress(plan.role, done, total)
        sources = [checkpoint.tensor(name) for name in names]
        if names in tables:
            stored[names] = store_product(file, sources, plan.head_precision, recipe, table=True, row_ids=kept)
        else:
            stored[names] = store_product(file, sources, plan.precision, recipe, rounding=plan.rounding(names))
        checkpoint.release()
        done += sizes[names]
    progress(plan.role, total, total)
    return stored


def _mapped_table(parts: Sequence[Stored]) -> tuple[MappedTensor, ...]:
    (table,) = parts
    if not isinstance(table, Blocks):
        return ()
    return tuple(
        MappedTensor(name, region.file, region.offset, region.dtype, region.shape)
        for name, region in table_regions(Graph.EMBED, table)
    )


def _wants_screen(plan: ModelPlan, recipe: ExportRecipe) -> bool:
    """Where the table has more than 4 bits and is large; a reduced head is small already."""
    coded = plan.head_precision in ("int8", "exact") and plan.checkpoint.config.hidden_size % _SCREEN_BLOCK == 0
    blocks = plan.head_precision == "int8" or plan.checkpoint.tensor(Graph.EMBED).raw_blocks(0, 1) is not None
    return recipe.screen_head and plan.token_ids is None and coded and blocks


def weight_files(spelling: Spelling) -> tuple[str, ...]:
    parts = [part for stored in spelling.weights.values() for part in stored]
    regions = [part.data if isinstance(part, Dense) else part.quants for part in parts]
    regions += [region for pair in spelling.ropes.values() for region in pair]
    return tuple(dict.fromkeys(region.file for region in regions))


def vector_names(graph: Graph) -> Iterator[str]:
    """Norm weights and factors: what is small and stays in float32."""
    for op in graph.body:
        if isinstance(op, RmsNorm | AddNorm | GroupNorm | Scale):
            yield op.weight
        elif isinstance(op, Sum) and isinstance(op.scale, str):
            yield op.scale
        elif isinstance(op, Attention | BorrowedAttention):
            norms = (op.q_norm, op.k_norm) if isinstance(op, Attention) else (op.q_norm,)
            yield from (name for name in norms if name is not None)


def store_ropes(file: WeightFile, graph: Graph, positions: int, known: Ropes | None = None) -> Ropes:
    """cos and sin [positions, head_dim / 2] of every rotary base in use; ``known`` ones are stored elsewhere."""
    stored: dict[tuple[Rope, int], tuple[Region, Region]] = {}
    for op in graph.body:
        if not isinstance(op, Attention | BorrowedAttention) or (key := (op.rope, op.kv.head_dim)) in stored:
            continue
        if known is not None and key in known:
            stored[key] = known[key]
            continue
        dim = op.kv.head_dim
        frequency = op.rope.theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim) / op.rope.scale
        if op.rope.rotated is not None:
            frequency[op.rope.rotated :] = 0.0
        # In float32, as the reference multiplies them; the cosine of the product is then taken exactly.
        angle = np.arange(positions, dtype=np.float32)[:, None] * frequency.astype(np.float32)[None, :]
        stored[key] = (
            file.append(np.cos(angle.astype(np.float64)).astype(np.float32)),
            file.append(np.sin(angle.astype(np.float64)).astype(np.float32)),
        )
    return stored


def io_table(name: str, proto: onnx.ModelProto) -> Iterator[Tensor]:
    """Of lanes the first alone: the others are alike."""
    for direction, values in (("in", proto.graph.input), ("out", proto.graph.output)):
        for value in values:
            if not of_first_lane(value.name):
                continue
            tensor = value.type.tensor_type
            shape = tuple(d.dim_param or d.dim_value for d in tensor.shape.dim)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
            yield Tensor(name, direction, value.name, dtype, shape)  # type: ignore[arg-type]
