"""The graph description spelt for ONNX Runtime, with its contrib operators. Knows no checkpoint and no precision name.

GroupQueryAttention with one fixed buffer bound as past and present; the lengths as
two integers, no mask; MatMulNBits for block weights; embedding and head read the same bytes of the weight file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..graph import AddNorm, Attention, Embed, GatedGelu, Graph, Linear, Op, RmsNorm, Softcap
from ..weights import Blocks, Dense, Region, Stored

MS = "com.microsoft"
OPSET = 21
IR_VERSION = 10
"""Of ONNX 1.16. The operators need more than that: onnxruntime 1.23 or later (README)."""

_ONNX_DTYPE = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the dialect must know beside the description."""

    weights: Mapping[tuple[str, ...], tuple[Stored, ...]]
    """By the names of a ``Linear`` (or of the embedding's table)."""
    norms: Mapping[str, NDArray[np.float32]]
    ropes: Mapping[tuple[float, float], tuple[Region, Region]]
    """(theta, scale) -> cos and sin, [positions, head_dim / 2]."""
    accuracy_level: int
    half: bool
    """Activations and cache in float16; the residual stream and the norms stay in float32 (Gemma 3 passes 65504)."""


def spell_body(graph: Graph, spelling: Spelling) -> onnx.ModelProto:
    """Inputs input_ids [1,T] i64, seqlens_k [1] i32 (= n+T-1), total_sequence_length [1] i32 (= n+T), past_*; outputs
    hidden [1,T,hidden] f32 and present_*."""
    speller = _Speller(graph, spelling)
    inputs = [
        _value("input_ids", TensorProto.INT64, (1, "rows")),
        _value("seqlens_k", TensorProto.INT32, (1,)),
        _value("total_sequence_length", TensorProto.INT32, (1,)),
    ]
    outputs = [_value(Graph.BODY_OUT, TensorProto.FLOAT, (1, "rows", graph.hidden_size))]
    cache_type = TensorProto.FLOAT16 if spelling.half else TensorProto.FLOAT
    for i, kv in enumerate(graph.kv_layers):
        shape = (1, kv.kv_heads, "capacity", kv.head_dim)
        for part in ("key", "value"):
            inputs.append(_value(f"past_{part}_{i}", cache_type, shape))
            outputs.append(_value(f"present_{part}_{i}", cache_type, shape))
    for op in graph.body:
        speller.spell(op)
    return speller.model("body", inputs, outputs)


def spell_head(graph: Graph, spelling: Spelling, vocab_size: int) -> onnx.ModelProto:
    """hidden [R, hidden] f32 -> logits [R, vocab] f32."""
    speller = _Speller(graph, spelling)
    for op in graph.head:
        speller.spell(op)
    return speller.model(
        "head",
        [_value(Graph.HEAD_IN, TensorProto.FLOAT, ("rows", graph.hidden_size))],
        [_value(Graph.HEAD_OUT, TensorProto.FLOAT, ("rows", vocab_size))],
    )


def _value(name: str, dtype: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def external_tensor(name: str, region: Region) -> onnx.TensorProto:
    """A tensor whose bytes lie in a weight file."""
    tensor = TensorProto(name=name, data_type=_ONNX_DTYPE[region.dtype], dims=region.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", region.file), ("offset", region.offset), ("length", region.length)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def table_regions(name: str, table: Blocks) -> list[tuple[str, Region]]:
    """Initializers of a table whose rows are gathered: the bytes that the head's product reads."""
    regions = [(name, replace(table.quants, shape=(table.rows, table.columns * table.bits // 8)))]
    regions.append((f"{name}.scales", table.scales))
    if table.zero_points is not None:
        regions.append((f"{name}.zero_points", table.zero_points))
    return regions


def block_table(add: Callable[[onnx.TensorProto], str], name: str, table: Blocks) -> list[str]:
    """The inputs of a GatherBlockQuantized over ``table``, indices left out."""
    return [add(external_tensor(part, region)) for part, region in table_regions(name, table)]


class _Speller:
    """Collects the nodes and initializers of one graph."""

    def __init__(self, graph: Graph, spelling: Spelling) -> None:
        self._graph = graph
        self._spelling = spelling
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, name, inputs, outputs, list(self._initializers.values()))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-export")

    def spell(self, op: Op) -> None:
        match op:
            case Embed():
                self._embed(op)
            case RmsNorm():
                self._rms_norm(op.out, op.x, op.weight)
            case AddNorm():
                self._add_norm(op)
            case Linear():
                self._linear(op)
            case Attention():
                self._attention(op)
            case GatedGelu():
                self._gated_gelu(op)
            case Softcap():
                cap = self._constant(f"{op.out}.cap", np.array(op.cap, np.float32))
                scaled = self._node("Div", [op.x, cap], f"{op.out}.scaled")
                self._node("Mul", [self._node("Tanh", [scaled], f"{op.out}.tanh"), cap], op.out)

    def _node(self, kind: str, inputs: list[str], out: str, domain: str = "", **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [out], name=out, domain=domain, **attributes))
        return out

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        self._initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def _add(self, tensor: onnx.TensorProto) -> str:
        self._initializers.setdefault(tensor.name, tensor)
        return tensor.name

    def _external(self, name: str, region: Region) -> str:
        return self._add(external_tensor(name, region))

    def _embed(self, op: Embed) -> None:
        (table,) = self._spelling.weights[(op.table,)]
        rows = f"{op.out}.rows"
        if isinstance(table, Dense):
            self._node("Gather", [self._external(op.table, table.data), "input_ids"], rows)
            if table.data.dtype == "float16":
                rows = self._node("Cast", [rows], f"{rows}.f32", to=TensorProto.FLOAT)
        else:
            quants, *rest = block_table(self._add, op.table, table)
            inputs = [quants, "input_ids", *rest]
            self._node(
                "GatherBlockQuantized", inputs, rows, MS,
                bits=table.bits, block_size=table.block_size, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
        scale = self._constant(f"{op.out}.scale", np.array(op.scale, np.float32))
        self._node("Mul", [rows, scale], op.out)

    def _norm_weight(self, name: str) -> str:
        return self._constant(name, self._spelling.norms[name])

    def _rms_norm(self, out: str, x: str, weight: str) -> None:
        # The standard operator set has no RMS norm before opset 23; this one lives in the default domain of ORT.
        self._node(
            "SimplifiedLayerNormalization", [x, self._norm_weight(weight)], out,
            axis=-1, epsilon=self._graph.rms_eps, stash_type=1,
        )  # fmt: skip

    def _add_norm(self, op: AddNorm) -> None:
        self._nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [op.x, op.delta, self._norm_weight(op.weight)],
                [op.out, "", "", op.total],
                name=op.out,
                domain=MS,
                epsilon=self._graph.rms_eps,
            )
        )

    def _linear(self, op: Linear) -> None:
        parts = self._spelling.weights[op.weights]
        x = self._as_half(op.x) if self._spelling.half else op.x
        # In half precision the cache takes q, k and v as they come; everything else goes back to the float32 stream.
        widen = self._spelling.half and not op.weights[0].endswith(".q")
        result = f"{op.out}.f16" if widen else op.out
        outs = [result] if len(parts) == 1 else [f"{result}.{i}" for i in range(len(parts))]
        name = "+".join(op.weights)
        for i, (part, out) in enumerate(zip(parts, outs, strict=True)):
            self._product(part, x, out, name if len(parts) == 1 else f"{name}.{i}")
        if len(parts) > 1:
            self._node("Concat", outs, result, axis=-1)
        if widen:
            self._node("Cast", [result], op.out, to=TensorProto.FLOAT)

    def _as_half(self, x: str) -> str:
        if x.startswith("att"):  # what attention returns is float16 already
            return x
        half = f"{x}.f16in"
        if not any(half in node.output for node in self._nodes):
            self._node("Cast", [x], half, to=TensorProto.FLOAT16)
        return half

    def _product(self, part: Stored, x: str, out: str, name: str) -> None:
        if isinstance(part, Dense):
            weight = self._external(name, part.data)
            if part.transposed:
                self._node("MatMul", [x, weight], out)
            else:
                self._node("Gemm", [x, weight], out, transB=1)
            return
        inputs = [x, self._external(name, part.quants), self._scales(name, part)]
        if part.zero_points is not None:
            inputs.append(self._external(f"{name}.zero_points", part.zero_points))
        self._node(
            "MatMulNBits", inputs, out, MS,
            K=part.columns, N=part.rows, bits=part.bits, block_size=part.block_size,
            accuracy_level=self._spelling.accuracy_level,
        )  # fmt: skip

    def _scales(self, name: str, part: Blocks) -> str:
        scales = self._external(f"{name}.scales", part.scales)
        if not self._spelling.half:
            return scales
        return self._node("Cast", [scales], f"{name}.scales.f16", to=TensorProto.FLOAT16)

    def _attention(self, op: Attention) -> None:
        i, kv = op.layer, op.kv
        sizes = np.array([op.heads * kv.head_dim, kv.kv_heads * kv.head_dim, kv.kv_heads * kv.head_dim], np.int64)
        q, k, v = f"{op.out}.q", f"{op.out}.k", f"{op.out}.v"
        self._nodes.append(
            helper.make_node("Split", [op.qkv, self._constant("qkv_sizes", sizes)], [q, k, v], name=q, axis=-1)
        )
        if op.q_norm is not None and op.k_norm is not None:
            q = self._head_norm(q, op.q_norm, op.heads, kv.head_dim)
            k = self._head_norm(k, op.k_norm, kv.kv_heads, kv.head_dim)
        cos, sin = self._spelling.ropes[(op.rope.theta, op.rope.scale)]
        tag = f"rope_{op.rope.theta:g}_{op.rope.scale:g}"
        inputs = [
            q, k, v, f"past_key_{i}", f"past_value_{i}", "seqlens_k", "total_sequence_length",
            self._external(f"{tag}.cos", cos), self._external(f"{tag}.sin", sin),
        ]  # fmt: skip
        if self._spelling.half:
            inputs[7:] = [self._as_half(name) for name in inputs[7:]]
        attributes: dict[str, Any] = {"num_heads": op.heads, "kv_num_heads": kv.kv_heads, "scale": op.scale}
        attributes |= {"do_rotary": 1, "rotary_interleaved": 0}
        if kv.window is not None:
            attributes["local_window_size"] = kv.window
        if op.softcap is not None:
            attributes["softcap"] = op.softcap
        outs = [op.out, f"present_key_{i}", f"present_value_{i}"]
        self._nodes.append(helper.make_node("GroupQueryAttention", inputs, outs, name=op.out, domain=MS, **attributes))

    def _head_norm(self, x: str, weight: str, heads: int, head_dim: int) -> str:
        """RMS norm of each head; a reshape only where there are several."""
        if self._spelling.half:
            x = self._node("Cast", [x], f"{x}.f32", to=TensorProto.FLOAT)
        if heads > 1:
            split = self._constant(f"heads_{heads}", np.array([0, 0, heads, head_dim], np.int64))
            x = self._node("Reshape", [x, split], f"{x}.heads")
        self._rms_norm(f"{x}.normed", x, weight)
        out = f"{x}.normed"
        if heads > 1:
            join = self._constant(f"join_{heads}", np.array([0, 0, heads * head_dim], np.int64))
            out = self._node("Reshape", [out, join], f"{out}.flat")
        if self._spelling.half:
            out = self._node("Cast", [out], f"{out}.f16", to=TensorProto.FLOAT16)
        return out

    def _gated_gelu(self, op: GatedGelu) -> None:
        gate, up = f"{op.out}.gate", f"{op.out}.up"
        self._nodes.append(helper.make_node("Split", [op.gate_up], [gate, up], name=gate, axis=-1, num_outputs=2))
        activated = self._node("Gelu", [gate], f"{op.out}.gelu", approximate="tanh")
        self._node("Mul", [activated, up], op.out)
