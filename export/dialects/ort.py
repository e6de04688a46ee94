"""The graph description spelt for ONNX Runtime, with its contrib operators. Knows no checkpoint and no precision name.

MatMulNBits for block weights; embedding and head read the same bytes of the weight file. Attention is spelt in
``ort_attention``, what follows the head in ``ort_readout``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ..graph import (
    AddNorm,
    Attention,
    BorrowedAttention,
    Copy,
    Embed,
    GatedGelu,
    Gelu,
    GeluProduct,
    Graph,
    GroupNorm,
    Join,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Rows,
    Scale,
    Softcap,
    Split,
    Sum,
)
from ..weights import Blocks, Dense, Region, Stored
from .ort_attention import AttentionSpeller
from .ort_nodes import MS, Nodes, block_table, value_info


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the dialect must know beside the description."""

    weights: Mapping[tuple[str, ...], tuple[Stored, ...]]
    """By the names of a ``Linear`` (or of the embedding's table)."""
    norms: Mapping[str, NDArray[np.float32]]
    ropes: Mapping[tuple[Rope, int], tuple[Region, Region]]
    """(rope, head_dim) -> cos and sin, [positions, head_dim / 2]."""
    accuracy_level: int
    half: bool
    """Activations and cache in float16; the residual stream and the norms stay in float32 (Gemma 3 passes 65504)."""
    trees: bool = False
    """Rows say themselves where they stand and what they see."""


def spell_body(graph: Graph, spelling: Spelling) -> onnx.ModelProto:
    """Inputs input_ids [1,T] i64, seqlens_k [1] i32 (= n+T-1), total_sequence_length [1] i32 (= n+T), past_*; outputs
    hidden [1,T,hidden] f32 and present_*, of which ``present_key_3.1`` is the buffer of ``present_key_3`` again.

    With trees, position_ids [1,T] i64 and, for each window, attention_bias [1,1,T,n+T] f32 (``bundle.tree_bias``).
    Where the graph has them: the input hidden_in [1,T,hidden_input] f32 and the output feed of the same shape; what it
    takes from another graph or hands to one, [1,T,hidden] f32.
    """
    speller = _Speller(graph, spelling)
    for op in graph.body:
        speller.spell(op)
    inputs = [
        value_info("input_ids", TensorProto.INT64, (1, "rows")),
        value_info("seqlens_k", TensorProto.INT32, (1,)),
        value_info("total_sequence_length", TensorProto.INT32, (1,)),
    ]
    if not any(isinstance(op, Attention) for op in graph.body):
        del inputs[1]  # the queries alone need only one of the lengths
        if not any(isinstance(op, BorrowedAttention) for op in graph.body):
            del inputs[1]
    if speller.attention.biases:
        inputs.append(value_info("position_ids", TensorProto.INT64, (1, "rows")))
        inputs += [value_info(name, TensorProto.FLOAT, (1, 1, "rows", "total")) for name in speller.attention.biases]
    rows = "rows" if graph.fan_out == 1 else "hidden_rows"
    if graph.lookup:
        inputs.append(value_info(Graph.PER_LAYER, TensorProto.FLOAT, (1, "rows", graph.lookup_width)))
    outputs = [value_info(Graph.BODY_OUT, TensorProto.FLOAT, (1, rows, graph.hidden_size))]
    if graph.hidden_input is not None:
        inputs.append(value_info(Graph.HIDDEN_IN, TensorProto.FLOAT, (1, "rows", graph.hidden_input)))
        if any(getattr(op, "out", None) == Graph.FEED for op in graph.body):
            outputs.append(value_info(Graph.FEED, TensorProto.FLOAT, (1, "rows", graph.hidden_input)))
    if not any(isinstance(op, Embed) for op in graph.body):
        del inputs[0]
    across = (1, "rows", graph.hidden_size)
    inputs += [value_info(name, TensorProto.FLOAT, across) for name in graph.takes]
    outputs += [value_info(name, TensorProto.FLOAT, across) for name in graph.hands]
    cache_type = TensorProto.FLOAT16 if spelling.half else TensorProto.FLOAT
    for i, kv in enumerate(graph.kv_layers, graph.first_layer):
        shape = (1, kv.kv_heads, "capacity", kv.head_dim)
        for part in ("key", "value"):
            inputs.append(value_info(f"past_{part}_{i}", cache_type, shape))
            outputs += [value_info(name, cache_type, shape) for name in speller.attention.presents(part, i)]
    return speller.nodes.model("body", inputs, outputs)


def spell_lookup(graph: Graph, spelling: Spelling) -> onnx.ModelProto:
    """input_ids [1,T] i64 -> per_layer [1,T,lookup_width] f32."""
    speller = _Speller(graph, spelling)
    for op in graph.lookup:
        speller.spell(op)
    return speller.nodes.model(
        "lookup",
        [value_info("input_ids", TensorProto.INT64, (1, "rows"))],
        [value_info(Graph.PER_LAYER, TensorProto.FLOAT, (1, "rows", graph.lookup_width))],
    )


def spell_head(graph: Graph, spelling: Spelling, vocab_size: int) -> onnx.ModelProto:
    """hidden [R, hidden] f32 -> logits [R, vocab] f32."""
    speller = _Speller(graph, spelling)
    for op in graph.head:
        speller.spell(op)
    return speller.nodes.model(
        "head",
        [value_info(Graph.HEAD_IN, TensorProto.FLOAT, ("rows", graph.hidden_size))],
        [value_info(Graph.HEAD_OUT, TensorProto.FLOAT, ("rows", vocab_size))],
    )


class _Speller:
    """Operation by operation into the nodes of one graph."""

    def __init__(self, graph: Graph, spelling: Spelling) -> None:
        self._graph, self._eps = graph, graph.rms_eps
        self._spelling = spelling
        self.nodes = Nodes(spelling.half)
        self.attention = AttentionSpeller(self.nodes, spelling.norms, spelling.ropes, graph.rms_eps, spelling.trees)

    def spell(self, op: Op) -> None:
        nodes = self.nodes
        match op:
            case Embed():
                self._embed(op)
            case RmsNorm():
                nodes.rms_norm(op.out, op.x, self._vector(op.weight), self._eps)
            case AddNorm():
                self._add_norm(op)
            case GroupNorm():
                width = self._spelling.norms[op.weight].size
                nodes.group_norm(op.out, op.x, self._vector(op.weight), op.groups, width, op.eps * self._eps)
            case Linear():
                self._linear(op)
            case Attention():
                self.attention.own(op)
            case BorrowedAttention():
                self.attention.borrowed(op)
            case GatedGelu():
                gate, up = f"{op.out}.gate", f"{op.out}.up"
                nodes.several("Split", [op.gate_up], [gate, up], axis=-1, num_outputs=2)
                self._gelu_product(op.out, gate, up)
            case GeluProduct():
                self._gelu_product(op.out, op.gate, op.by)
            case Split():
                nodes.several("Split", [op.x], list(op.outs), axis=-1, num_outputs=len(op.outs))
            case Join():
                nodes.node("Concat", [op.a, op.b], op.out, axis=-1)
            case Sum():
                self._sum(op)
            case Gelu():
                nodes.node("Gelu", [op.x], op.out, approximate="tanh")
            case Scale():
                nodes.node("Mul", [op.x, self._vector(op.weight)], op.out)
            case Copy():
                nodes.node("Identity", [op.x], op.out)
            case Rows():
                width = self._graph.hidden_size
                beside = nodes.node("Concat", list(op.parts), f"{op.out}.beside", axis=-1)
                nodes.node("Reshape", [beside, nodes.ints(0, -1, width)], op.out)
            case Softcap():
                cap = nodes.constant(f"{op.out}.cap", np.array(op.cap, np.float32))
                scaled = nodes.node("Div", [op.x, cap], f"{op.out}.scaled")
                nodes.node("Mul", [nodes.node("Tanh", [scaled], f"{op.out}.tanh"), cap], op.out)

    def _vector(self, name: str) -> str:
        return self.nodes.constant(name, self._spelling.norms[name])

    def _embed(self, op: Embed) -> None:
        nodes = self.nodes
        (table,) = self._spelling.weights[(op.table,)]
        rows = f"{op.out}.rows"
        if isinstance(table, Dense):
            nodes.node("Gather", [nodes.external(op.table, table.data), "input_ids"], rows)
            if table.data.dtype == "float16":
                rows = nodes.node("Cast", [rows], f"{rows}.f32", to=TensorProto.FLOAT)
        else:
            assert isinstance(table, Blocks), "columns are for TensorRT"
            quants, *rest = block_table(nodes.add, op.table, table)
            inputs = [quants, "input_ids", *rest]
            nodes.node(
                "GatherBlockQuantized", inputs, rows, MS,
                bits=table.bits, block_size=table.block_size, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
        scale = nodes.constant(f"{op.out}.scale", np.array(op.scale, np.float32))
        nodes.node("Mul", [rows, scale], op.out)

    def _add_norm(self, op: AddNorm) -> None:
        inputs = [op.x, op.delta, self._vector(op.weight)]
        outs = [op.out, "", "", op.total]
        self.nodes.several("SkipSimplifiedLayerNormalization", inputs, outs, MS, epsilon=self._eps)

    def _sum(self, op: Sum) -> None:
        nodes = self.nodes
        if op.scale == 1.0:
            nodes.node("Add", [op.a, op.b], op.out)
            return
        total = nodes.node("Add", [op.a, op.b], f"{op.out}.total")
        if isinstance(op.scale, str):
            scale = self._vector(op.scale)
        else:
            scale = nodes.constant(f"{op.out}.scale", np.array(op.scale, np.float32))
        nodes.node("Mul", [total, scale], op.out)

    def _gelu_product(self, out: str, gate: str, by: str) -> None:
        activated = self.nodes.node("Gelu", [gate], f"{out}.gelu", approximate="tanh")
        self.nodes.node("Mul", [activated, by], out)

    def _linear(self, op: Linear) -> None:
        nodes = self.nodes
        parts = self._spelling.weights[op.weights]
        # What attention returns is float16 already.
        x = nodes.as_half(op.x) if nodes.half and not op.x.startswith("att") else op.x
        # In half precision the cache takes q, k and v as they come; everything else goes back to the float32 stream.
        widen = nodes.half and not op.weights[0].endswith(".q")
        result = f"{op.out}.f16" if widen else op.out
        outs = [result] if len(parts) == 1 else [f"{result}.{i}" for i in range(len(parts))]
        name = "+".join(op.weights)
        for i, (part, out) in enumerate(zip(parts, outs, strict=True)):
            self._product(part, x, out, name if len(parts) == 1 else f"{name}.{i}")
        if len(parts) > 1:
            nodes.node("Concat", outs, result, axis=-1)
        if widen:
            nodes.node("Cast", [result], op.out, to=TensorProto.FLOAT)

    def _product(self, part: Stored, x: str, out: str, name: str) -> None:
        nodes = self.nodes
        if isinstance(part, Dense):
            weight = nodes.external(name, part.data)
            if part.transposed:
                nodes.node("MatMul", [x, weight], out)
            else:
                nodes.node("Gemm", [x, weight], out, transB=1)
            return
        assert isinstance(part, Blocks), "columns are for TensorRT"
        inputs = [x, nodes.external(name, part.quants), self._scales(name, part)]
        if part.zero_points is not None:
            inputs.append(nodes.external(f"{name}.zero_points", part.zero_points))
        nodes.node(
            "MatMulNBits", inputs, out, MS,
            K=part.columns, N=part.rows, bits=part.bits, block_size=part.block_size,
            accuracy_level=self._spelling.accuracy_level,
        )  # fmt: skip

    def _scales(self, name: str, part: Blocks) -> str:
        scales = self.nodes.external(f"{name}.scales", part.scales)
        if not self.nodes.half:
            return scales
        return self.nodes.node("Cast", [scales], f"{name}.scales.f16", to=TensorProto.FLOAT16)
