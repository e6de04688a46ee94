"""Attention spelt for TensorRT over a *past* that it only reads: new keys and values go out by themselves.

TensorRT 10.3 writes no cache in place. So the scores of the past and of the new entries stand side by side under one
softmax, and each part has its own product with its values; the engine copies the new rows afterwards. Everything that
hangs on positions alone (what is seen, the angles) is made once for all layers that share it.

Queries of one key head lie together: row t * group + g is head g of its group at token t. So every product is one of
four dimensions, and no key is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ConfigError

from ..graph import Attention, Rope
from ..weights import Region
from .trt_nodes import TrtNodes

POSITIONS = "positions"
_END = 2**31 - 1
_UNSEEN = float(np.finfo(np.float32).min)
"""A score whose share is exactly zero, whatever garbage it was made of: every row sees at least itself."""


class TrtAttention:
    """Of one graph."""

    def __init__(
        self,
        nodes: TrtNodes,
        norms: Mapping[str, NDArray[np.float32]],
        ropes: Mapping[tuple[Rope, int], tuple[Region, Region]],
        eps: float,
    ) -> None:
        self._nodes, self._norms, self._ropes, self._eps = nodes, norms, ropes, eps
        self._positions = min((cos.shape[0] for cos, _ in ropes.values()), default=0)

    def own(self, op: Attention) -> None:
        if op.values != "own" or op.value_norm:
            raise ConfigError("engine: tensorrt cannot spell this attention yet (borrowed or normed values)")
        nodes, kv, group = self._nodes, op.kv, op.heads // op.kv.kv_heads
        wide, width = group * kv.head_dim, kv.kv_heads * kv.head_dim
        parts = [f"{op.out}.{part}" for part in "qkv"]
        sizes = nodes.ints(op.heads * kv.head_dim, width, width)
        q, k, v = nodes.several("Split", [op.qkv, sizes], parts, axis=-1)
        q = self._by_key_head(q, kv.kv_heads, wide)
        q = nodes.node("Reshape", [q, nodes.ints(1, kv.kv_heads, -1, kv.head_dim)], f"{op.out}.queries")
        k, v = self._by_key_head(k, kv.kv_heads, kv.head_dim), self._by_key_head(v, kv.kv_heads, kv.head_dim)
        if op.q_norm is not None and op.k_norm is not None:
            q = nodes.rms_norm(f"{q}.normed", q, self._norm(op.q_norm), self._eps)
            k = nodes.rms_norm(f"{k}.normed", k, self._norm(op.k_norm), self._eps)
        # Turned, scaled and only then narrowed: a product in float16 must not meet sums beyond its range.
        turned = self._turn(q, op.rope, kv.head_dim, self._query_positions(group))
        scaled = nodes.node("Mul", [turned, nodes.floats(f"scale_{op.scale!r}", op.scale)], f"{op.out}.scaled")
        keys = nodes.stored(self._turn(k, op.rope, kv.head_dim, POSITIONS), f"new_key_{op.layer}")
        values = nodes.stored(v, f"new_value_{op.layer}")
        mixed = self._attend(op, nodes.narrow(scaled), keys, values, self._seen(group, kv.window))
        back = nodes.node("Reshape", [mixed, nodes.ints(1, kv.kv_heads, -1, wide)], f"{op.out}.parted")
        back = nodes.node("Transpose", [back], f"{op.out}.back", perm=[0, 2, 1, 3])
        nodes.node("Reshape", [back, nodes.ints(1, -1, op.heads * kv.head_dim)], op.out)
        nodes.is_narrow(op.out)

    def _attend(self, op: Attention, q: str, keys: str, values: str, seen: str) -> str:
        """[1, kv_heads, T * group, head_dim]"""
        nodes, out = self._nodes, op.out
        scores = []
        for part, of in (("past", f"past_key_{op.layer}"), ("new", keys)):
            across = nodes.node("Transpose", [of], f"{out}.{part}.keys", perm=[0, 1, 3, 2])
            scores.append(nodes.node("MatMul", [q, across], f"{out}.{part}.scores"))
        both = nodes.wide(nodes.node("Concat", scores, f"{out}.both", axis=-1), f"{out}.scores")
        if op.softcap is not None:
            both = nodes.softcap(f"{out}.capped", both, op.softcap)
        visible = nodes.node("Where", [seen, both, nodes.floats("unseen", _UNSEEN)], f"{out}.visible")
        shares = nodes.narrow(nodes.node("Softmax", [visible], f"{out}.shares", axis=-1))
        length, last = self._past_length(), nodes.ints(3)
        past = nodes.node("Slice", [shares, nodes.ints(0), length, last], f"{out}.past.shares")
        new = nodes.node("Slice", [shares, length, nodes.ints(_END), last], f"{out}.new.shares")
        terms = [
            nodes.node("MatMul", [past, f"past_value_{op.layer}"], f"{out}.past.mixed"),
            nodes.node("MatMul", [new, values], f"{out}.new.mixed"),
        ]
        return nodes.node("Add", terms, f"{out}.mixed")

    def _by_key_head(self, x: str, heads: int, width: int) -> str:
        """[1, T, heads * width] -> [1, heads, T, width]"""
        parted = self._nodes.node("Reshape", [x, self._nodes.ints(1, -1, heads, width)], f"{x}.parted")
        return self._nodes.node("Transpose", [parted], f"{x}.heads", perm=[0, 2, 1, 3])

    def _norm(self, name: str) -> str:
        return self._nodes.constant(name, self._norms[name])

    # What hangs on positions alone

    def _turn(self, x: str, rope: Rope, head_dim: int, where: str) -> str:
        """Pair i of a head is (x_i, x_{i + half}), turned by the angle of its row's position."""
        nodes = self._nodes
        cos, sin = self._angles(rope, head_dim, where)
        half = nodes.ints(head_dim // 2, head_dim // 2)
        low, high = nodes.several("Split", [x, half], [f"{x}.low", f"{x}.high"], axis=-1)
        turned = [
            nodes.node(
                kind,
                [nodes.node("Mul", [a, cos], f"{x}.{name}.cos"), nodes.node("Mul", [b, sin], f"{x}.{name}.sin")],
                f"{x}.{name}.turned",
            )
            for name, kind, a, b in (("low", "Sub", low, high), ("high", "Add", high, low))
        ]
        return nodes.node("Concat", turned, f"{x}.turned", axis=-1)

    def _angles(self, rope: Rope, head_dim: int, where: str) -> list[str]:
        """cos and sin [rows, head_dim / 2] of the positions ``where``."""
        tag = f"rope_{rope.theta:g}_{rope.scale:g}_{head_dim}"
        tables = zip(("cos", "sin"), self._ropes[(rope, head_dim)], strict=True)
        return [
            self._nodes.node(
                "Gather", [self._nodes.external(f"{tag}.{part}", table), where], f"{tag}.{part}.{where}", axis=0
            )
            for part, table in tables
        ]

    def _query_positions(self, group: int) -> str:
        """[T * group]: the position of a token for each query of it."""
        if group == 1:
            return POSITIONS
        nodes = self._nodes
        column = nodes.node("Unsqueeze", [POSITIONS, nodes.ints(1)], "positions.column")
        repeated = nodes.node("Expand", [column, nodes.ints(1, group)], f"positions.{group}.repeated")
        return nodes.node("Reshape", [repeated, nodes.ints(-1)], f"positions.{group}")

    def _past_length(self) -> str:
        """[1] the capacity: a shape, reckoned on the host."""
        nodes = self._nodes
        shape = nodes.node("Shape", ["past_key_0"], "past_shape")
        return nodes.node("Slice", [shape, nodes.ints(2), nodes.ints(3), nodes.ints(0)], "past_length")

    def _seen(self, group: int, window: int | None) -> str:
        """[T * group, capacity + T]: of the past what is before the first new position, of the new what is not
        behind the query, and of both what is in the window."""
        nodes, tag = self._nodes, f"seen_{group}_{window}"
        zero = nodes.ints(0)
        flat = self._query_positions(group)
        queries = nodes.node("Unsqueeze", [flat, nodes.ints(1)], f"positions.{group}.queries")
        places = nodes.constant("places", np.arange(self._positions, dtype=np.int32))
        past = nodes.node("Slice", [places, zero, self._past_length(), zero], "past_places")
        first = nodes.node("Slice", [POSITIONS, zero, nodes.ints(1), zero], "first_position")
        valid = nodes.node("Less", [past, first], "past_valid")
        causal = nodes.node("LessOrEqual", [POSITIONS, queries], f"causal_{group}")
        if window is None:
            # A row for each query, all of them alike: what is joined must agree in rows.
            each = nodes.node("LessOrEqual", [nodes.ints32("place_0", 0), queries], f"each_{group}")
            valid = nodes.node("And", [valid, each], f"past_valid_{group}")
            return nodes.node("Concat", [valid, causal], tag, axis=-1)
        reach = nodes.ints32(f"window_{window}", window)
        parts = []
        for name, keys, allowed in (("past", past, valid), ("new", POSITIONS, causal)):
            distance = nodes.node("Sub", [queries, keys], f"{name}_distance_{group}")
            near = nodes.node("Less", [distance, reach], f"{name}_near_{group}_{window}")
            parts.append(nodes.node("And", [allowed, near], f"{name}_{tag}"))
        return nodes.node("Concat", parts, tag, axis=-1)
