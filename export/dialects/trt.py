"""The graph description spelt for TensorRT 10.3: a body over a past that it only reads, and a head that reads out.

Knows no checkpoint and no precision name. 4-bit weights are dequantised beside the product that fuses with them; norms,
softmax and the residual stream are float32 whatever the products are, since Gemma 3's stream passes float16. The
operators in use are those of ``trt_allowed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edge_runtime.errors import ConfigError

from ..cut import reads
from ..graph import (
    AddNorm,
    Attention,
    Copy,
    Embed,
    GatedGelu,
    Graph,
    Join,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Scale,
    Softcap,
)
from ..weights import Columns, Dense, Region, Stored
from .ort_nodes import value_info
from .trt_attention import POSITIONS, TrtAttention
from .trt_nodes import TrtNodes
from .trt_readout import spell_readout

EMBEDDINGS = "embeddings"
HEADROOM = 16.0
"""A power of two that the last product of a layer is divided by: it sums up thousands of gated values, and the norm
behind it does not care."""


@dataclass(frozen=True, slots=True)
class TrtSpelling:
    """What the dialect must know beside the description."""

    weights: Mapping[tuple[str, ...], Stored]
    """By the names of a ``Linear``."""
    norms: Mapping[str, NDArray[np.float32]]
    ropes: Mapping[tuple[Rope, int], tuple[Region, Region]]
    """(rope, head_dim) -> cos and sin, [positions, head_dim / 2]."""
    half: bool
    """Products and caches in float16."""
    embedded: int
    """Columns of the table that the host embeds from."""


def spell_body(graph: Graph, spelling: TrtSpelling) -> onnx.ModelProto:
    """Inputs embeddings [1,T,embedded] f32 (scaled), positions [T] i32 (rising by one; the first is the number of valid
    past entries), hidden_in [1,T,hidden_input] f32 where the graph takes one, past_key_i and past_value_i
    [1,kv_heads,capacity,head_dim]. Outputs hidden [1,T,hidden] f32, ``feed`` where there is one, and new_key_i and
    new_value_i [1,kv_heads,T,head_dim] of the type of the past.

    Entries of the past from the first position on do not matter as long as they are finite.
    """
    speller = _Speller(graph, spelling)
    for op in graph.body:
        speller.spell(op)
    cache = TensorProto.FLOAT16 if spelling.half else TensorProto.FLOAT
    inputs = [
        value_info(EMBEDDINGS, TensorProto.FLOAT, (1, "rows", spelling.embedded)),
        value_info(POSITIONS, TensorProto.INT32, ("rows",)),
    ]
    outputs = [value_info(Graph.BODY_OUT, TensorProto.FLOAT, (1, "rows", graph.hidden_size))]
    if graph.hidden_input is not None:
        inputs.append(value_info(Graph.HIDDEN_IN, TensorProto.FLOAT, (1, "rows", graph.hidden_input)))
        if any(getattr(op, "out", None) == Graph.FEED for op in graph.body):
            outputs.append(value_info(Graph.FEED, TensorProto.FLOAT, (1, "rows", graph.hidden_input)))
    for i, kv in enumerate(graph.kv_layers):
        for part in ("key", "value"):
            inputs.append(value_info(f"past_{part}_{i}", cache, (1, kv.kv_heads, "capacity", kv.head_dim)))
            outputs.append(value_info(f"new_{part}_{i}", cache, (1, kv.kv_heads, "rows", kv.head_dim)))
    return speller.nodes.model("body", inputs, outputs)


def spell_head(graph: Graph, spelling: TrtSpelling, vocab_size: int, candidates: int) -> onnx.ModelProto:
    """Inputs hidden [R,hidden] f32, inverse_temperature [1] f32, gather_ids [R] i32. Outputs argmax [R] i32,
    candidate_ids [R,C] i32 and candidate_logits [R,C] f32 by falling logit, logsumexp [R] f32, gathered [R] f32, logits
    [R,vocab] f32. All ids are rows of the head."""
    speller = _Speller(graph, spelling)
    for op in graph.head:
        speller.spell(op)
    spell_readout(speller.nodes, vocab_size, candidates)
    floats, ints = TensorProto.FLOAT, TensorProto.INT32
    inputs = [
        value_info(Graph.HEAD_IN, floats, ("rows", graph.hidden_size)),
        value_info("inverse_temperature", floats, (1,)),
        value_info("gather_ids", ints, ("rows",)),
    ]
    outputs = [
        value_info("argmax", ints, ("rows",)),
        value_info("candidate_ids", ints, ("rows", candidates)),
        value_info("candidate_logits", floats, ("rows", candidates)),
        value_info("logsumexp", floats, ("rows",)),
        value_info("gathered", floats, ("rows",)),
        value_info(Graph.HEAD_OUT, floats, ("rows", vocab_size)),
    ]
    return speller.nodes.model("head", inputs, outputs)


class _Speller:
    """Operation by operation into the nodes of one graph."""

    def __init__(self, graph: Graph, spelling: TrtSpelling) -> None:
        self._eps, self._spelling = graph.rms_eps, spelling
        self._lowered = _lowered(graph) if spelling.half else frozenset[str]()
        self._widths: dict[str, int] = {}
        """Columns of each product's result: parts are cut off by their sizes."""
        self.nodes = TrtNodes(spelling.half)
        self._attention = TrtAttention(self.nodes, spelling.norms, spelling.ropes, graph.rms_eps)

    def spell(self, op: Op) -> None:
        nodes = self.nodes
        match op:
            case Embed():
                nodes.node("Identity", [EMBEDDINGS], op.out)
            case RmsNorm():
                eps = self._eps * HEADROOM**-2 if op.x in self._lowered else self._eps
                nodes.rms_norm(op.out, op.x, self._vector(op.weight), eps)
            case AddNorm():
                nodes.node("Add", [op.x, op.delta], op.total)
                nodes.rms_norm(op.out, op.total, self._vector(op.weight), self._eps)
            case Linear():
                self._linear(op)
            case Attention():
                self._attention.own(op)
            case GatedGelu():
                width = self._widths[op.gate_up] // 2
                parts = [f"{op.out}.gate", f"{op.out}.up"]
                gate, up = nodes.several("Split", [op.gate_up, nodes.ints(width, width)], parts, axis=-1)
                nodes.node("Mul", [nodes.gelu(f"{op.out}.gelu", gate), up], op.out)
            case Join():
                nodes.node("Concat", [op.a, op.b], op.out, axis=-1)
            case Scale():
                nodes.node("Mul", [op.x, self._vector(op.weight)], op.out)
            case Copy():
                nodes.node("Identity", [op.x], op.out)
            case Softcap():
                nodes.softcap(op.out, op.x, op.cap)
            case _:
                name = type(op).__name__
                raise ConfigError(f"engine: tensorrt cannot spell {name} yet: this model is for onnxruntime")

    def _vector(self, name: str) -> str:
        return self.nodes.constant(name, self._spelling.norms[name])

    def _linear(self, op: Linear) -> None:
        nodes, part, name = self.nodes, self._spelling.weights[op.weights], "+".join(op.weights)
        self._widths[op.out] = part.rows
        x = op.x
        if op.out in self._lowered:
            x = nodes.node("Mul", [x, nodes.floats("headroom", 1 / HEADROOM)], f"{x}.lowered")
        x = nodes.narrow(x)
        result = f"{op.out}.narrow" if nodes.half else op.out
        if isinstance(part, Columns):
            nodes.node("MatMul", [x, self._dequantised(name, part)], result)
        elif isinstance(part, Dense) and part.transposed:
            nodes.node("MatMul", [x, nodes.external(name, part.data)], result)
        elif isinstance(part, Dense):
            # The rows of a table, which the host gathers from too: the same bytes.
            nodes.node("Gemm", [x, nodes.external(name, part.data)], result, transB=1)
        else:
            raise ConfigError(f"engine: tensorrt takes no weights in blocks of {part.bits} bits ({name})")
        if nodes.half:
            nodes.wide(result, op.out)

    def _dequantised(self, name: str, part: Columns) -> str:
        nodes = self.nodes
        inputs = [nodes.external(name, part.quants), nodes.external(f"{name}.scales", part.scales)]
        return nodes.node("DequantizeLinear", inputs, f"{name}.dequantised", axis=0, block_size=part.block_size)


def _lowered(graph: Graph) -> frozenset[str]:
    """Results of products of gated values that nothing reads but a norm: x / n normed with eps / n^2 is x normed."""
    gated = {op.out for op in graph.body if isinstance(op, GatedGelu)}
    readers: dict[str, list[Op]] = {}
    for op in graph.body:
        for name in reads(op):
            readers.setdefault(name, []).append(op)
    sums = [op for op in graph.body if isinstance(op, Linear) and op.x in gated]
    return frozenset(op.out for op in sums if all(isinstance(one, RmsNorm) for one in readers.get(op.out, ())))
