"""Attention spelt for ONNX Runtime: over a cache of its own, of another layer, of another model. Knows no weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edge_runtime.bundle import TREE_ROWS, tree_bias

from ..graph import Attention, BorrowedAttention, Rope
from ..weights import Region
from .ort_nodes import MS, Nodes


class AttentionSpeller:
    """Of one graph; remembers what each layer wrote."""

    def __init__(
        self,
        nodes: Nodes,
        norms: Mapping[str, NDArray[np.float32]],
        ropes: Mapping[tuple[Rope, int], tuple[Region, Region]],
        eps: float,
        trees: bool,
    ) -> None:
        self._nodes, self._norms, self._ropes, self._eps, self._trees = nodes, norms, ropes, eps, trees
        self.biases: list[str] = []
        """Inputs that say which entries a row sees, in a graph that runs trees."""
        self._written: dict[int, tuple[str, str]] = {}
        self._passes: dict[int, int] = {}

    def presents(self, part: str, layer: int) -> list[str]:
        """The outputs that are the cache of ``layer``: one for each attention over it."""
        return [_present(part, layer, i) for i in range(self._passes.get(layer, 0))]

    def own(self, op: Attention) -> None:
        """GroupQueryAttention with one fixed buffer bound as past and present, and the lengths as two integers.

        A layer that borrows hands the operator what the owner wrote, once more, over the buffer that has it already:
        the same bytes, so that the operator needs no way to write nothing (later versions have one).
        """
        nodes, kv, i = self._nodes, op.kv, op.layer
        q, k, v = self._rows(op)
        again = self._passes.get(i, 0)
        self._passes[i] = again + 1
        past = [f"past_{part}_{i}" if not again else _present(part, i, 0) for part in ("key", "value")]
        attributes: dict[str, Any] = {"num_heads": op.heads, "kv_num_heads": kv.kv_heads, "scale": op.scale}
        attributes |= {"do_rotary": 1, "rotary_interleaved": 0}
        if kv.window is not None:
            attributes["local_window_size"] = kv.window
        if op.softcap is not None:
            attributes["softcap"] = op.softcap
        inputs = [q, k, v, *past, "seqlens_k", "total_sequence_length", *self._rotation(op.rope, kv.head_dim)]
        if self._trees:
            inputs += ["position_ids", self._bias(kv.window)]
            # The bias says exactly what a row sees; this only bounds what is looked at. A row of a tree may lie so
            # many entries behind its position.
            if kv.window is not None:
                attributes["local_window_size"] = kv.window + TREE_ROWS
        outs = [op.out, _present("key", i, again), _present("value", i, again)]
        nodes.several("GroupQueryAttention", inputs, outs, MS, **attributes)

    def _bias(self, window: int | None) -> str:
        name = tree_bias(window)
        if name not in self.biases:
            self.biases.append(name)
        return name

    def borrowed(self, op: BorrowedAttention) -> None:
        """Products and a softmax over the valid entries: no operator attends without writing a cache."""
        nodes, kv = self._nodes, op.kv
        rows = nodes.node("Shape", ["input_ids"], "rows", start=1, end=2)
        total = nodes.node("Cast", ["total_sequence_length"], "total", to=TensorProto.INT64)
        more = nodes.node("Sub", [rows, nodes.ints(1)], "more")  # rows beside the first stand where it does
        length = nodes.node("Sub", [total, more], "kv_len")
        start = nodes.ints(0)
        if op.reach is not None:
            first = nodes.node("Sub", [length, nodes.ints(op.reach)], f"first_{op.reach}")
            start = nodes.node("Max", [first, nodes.ints(0)], f"start_{op.reach}")
        keys, values = (
            nodes.node(
                "Slice", [f"past_{part}_{op.layer}", start, length, nodes.ints(2)], f"{part}_{op.layer}_{op.reach}"
            )
            for part in ("key", "value")
        )
        q = self._head_norm(op.q, self._norm(op.q_norm), op.heads, kv.head_dim)
        where = nodes.node("Expand", [length, nodes.node("Concat", [nodes.ints(1), rows], "one_row", axis=0)], "where")
        turned = nodes.node(
            "RotaryEmbedding", [q, where, *self._rotation(op.rope, kv.head_dim)], f"{op.out}.turned", MS,
            num_heads=op.heads,
        )  # fmt: skip
        wide = op.heads // kv.kv_heads * kv.head_dim
        by_key = nodes.node("Reshape", [turned, nodes.ints(1, -1, kv.kv_heads, wide)], f"{op.out}.by_key")
        across = nodes.node("Transpose", [by_key], f"{op.out}.across", perm=[0, 2, 1, 3])
        queries = nodes.node("Reshape", [across, nodes.ints(1, kv.kv_heads, -1, kv.head_dim)], f"{op.out}.queries")
        scores = nodes.node("FusedMatMul", [queries, keys], f"{op.out}.scores", MS, transB=1, alpha=op.scale)
        if nodes.half:
            scores = nodes.node("Cast", [scores], f"{op.out}.scores.f32", to=TensorProto.FLOAT)
        shares = nodes.node("Softmax", [scores], f"{op.out}.shares", axis=-1)
        if nodes.half:
            shares = nodes.node("Cast", [shares], f"{op.out}.shares.f16", to=TensorProto.FLOAT16)
        mixed = nodes.node("MatMul", [shares, values], f"{op.out}.mixed")
        parted = nodes.node("Reshape", [mixed, nodes.ints(1, kv.kv_heads, -1, wide)], f"{op.out}.parted")
        back = nodes.node("Transpose", [parted], f"{op.out}.back", perm=[0, 2, 1, 3])
        nodes.node("Reshape", [back, nodes.ints(1, -1, op.heads * kv.head_dim)], op.out)

    def _rows(self, op: Attention) -> tuple[str, str, str]:
        """Queries, keys and values, normed as the family norms them."""
        nodes, kv = self._nodes, op.kv
        if op.values == "borrowed":
            q = op.qkv if op.q_norm is None else self._head_norm(op.qkv, self._norm(op.q_norm), op.heads, kv.head_dim)
            return (q, *self._written[op.layer])
        width = kv.kv_heads * kv.head_dim
        sizes = [op.heads * kv.head_dim, width] + ([width] if op.values == "own" else [])
        names = [f"{op.out}.{part}" for part, _ in zip("qkv", sizes, strict=False)]
        q, k, *own = nodes.several("Split", [op.qkv, nodes.ints(*sizes)], names, axis=-1)
        v = own[0] if own else k
        if op.value_norm:
            ones = nodes.constant(f"ones_{kv.head_dim}", np.ones(kv.head_dim, np.float32))
            v = self._head_norm(v, ones, kv.kv_heads, kv.head_dim, f"{op.out}.v.normed")
        if op.q_norm is not None and op.k_norm is not None:
            q = self._head_norm(q, self._norm(op.q_norm), op.heads, kv.head_dim)
            k = self._head_norm(k, self._norm(op.k_norm), kv.kv_heads, kv.head_dim)
        self._written[op.layer] = (k, v)
        return q, k, v

    def _norm(self, name: str) -> str:
        return self._nodes.constant(name, self._norms[name])

    def _head_norm(self, x: str, weight: str, heads: int, head_dim: int, out: str | None = None) -> str:
        nodes, out = self._nodes, out or f"{x}.normed"
        if not nodes.half:
            return nodes.group_norm(out, x, weight, heads, head_dim, self._eps)
        wide = nodes.node("Cast", [x], f"{x}.f32", to=TensorProto.FLOAT)
        nodes.group_norm(out, wide, weight, heads, head_dim, self._eps)
        return nodes.node("Cast", [out], f"{out}.f16", to=TensorProto.FLOAT16)

    def _rotation(self, rope: Rope, head_dim: int) -> list[str]:
        tag = f"rope_{rope.theta:g}_{rope.scale:g}_{head_dim}"
        tag += "" if rope.rotated is None else f"_{rope.rotated}"
        regions = zip(("cos", "sin"), self._ropes[(rope, head_dim)], strict=True)
        names = [self._nodes.external(f"{tag}.{part}", region) for part, region in regions]
        return [self._nodes.as_half(name) for name in names] if self._nodes.half else names


def narrower(graph: onnx.ModelProto) -> onnx.ModelProto | None:
    """The same with each window one less; ``None`` where there is none, or where biases say what is seen."""
    twin = onnx.ModelProto()
    twin.CopyFrom(graph)
    windows = [one for node in twin.graph.node for one in node.attribute if one.name == "local_window_size"]
    if not windows or any(one.name.startswith("attention_bias") for one in twin.graph.input):
        return None
    for window in windows:
        window.i -= 1
    return twin


def _present(part: str, layer: int, again: int) -> str:
    return f"present_{part}_{layer}" + (f".{again}" if again else "")
