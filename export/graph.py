"""A text model as a list of operations. Knows no engine, no file format and no weight values.

``export.gemma`` writes such a description once; a dialect spells it for ONNX Runtime, and later for TensorRT. Values
are named by strings, weights by the canonical tensor names of ``export.checkpoint``. Fusions belong to the dialect,
save those that every engine wants: several products of one input are one ``Linear``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from edge_runtime.bundle import KvLayer


@dataclass(frozen=True, slots=True)
class Embed:
    """out[T, hidden] = table[token_ids] * scale"""

    out: str
    table: str
    scale: float


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x^2) + eps) * weight; the weight already holds Gemma's 1 + w."""

    out: str
    x: str
    weight: str


@dataclass(frozen=True, slots=True)
class AddNorm:
    """total = x + delta; out = RmsNorm(total, weight). ``total`` is the residual stream."""

    out: str
    total: str
    x: str
    delta: str
    weight: str


@dataclass(frozen=True, slots=True)
class Linear:
    """out[T, sum of rows] = x @ concat(weights)^T"""

    out: str
    x: str
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal grouped-query attention over the cache of ``layer``, rotary embedding included.

    ``qkv`` [T, (heads + 2 kv_heads) * head_dim]: queries, keys and values side by side; no values where they come
    ``from-keys``, queries alone where keys and values are ``borrowed``: those of the operation before it that has the
    same ``layer`` and writes that cache.
    """

    out: str
    qkv: str
    layer: int
    heads: int
    kv: KvLayer
    scale: float
    softcap: float | None
    rope: Rope
    q_norm: str | None
    k_norm: str | None
    values: Literal["own", "from-keys", "borrowed"] = "own"
    value_norm: bool = False
    """RMS norm of every head's values, without a weight."""


@dataclass(frozen=True, slots=True)
class BorrowedAttention:
    """Queries [T, heads * head_dim] alone over the whole of a cache that another model fills: all of them stand behind
    its last entry, and see no more than its ``reach`` last ones."""

    out: str
    q: str
    layer: int
    heads: int
    kv: KvLayer
    reach: int | None
    scale: float
    rope: Rope
    q_norm: str


@dataclass(frozen=True, slots=True)
class GatedGelu:
    """out = gelu_tanh(gate) * up, where ``gate_up`` [T, 2 ffn] holds both side by side."""

    out: str
    gate_up: str


@dataclass(frozen=True, slots=True)
class Softcap:
    """out = cap * tanh(x / cap)"""

    out: str
    x: str
    cap: float


@dataclass(frozen=True, slots=True)
class GroupNorm:
    """RMS norm of each of the ``groups`` parts of a row; ``eps`` is multiplied onto the graph's."""

    out: str
    x: str
    weight: str
    groups: int
    eps: float = 1.0


@dataclass(frozen=True, slots=True)
class Split:
    """Equal parts of the last axis."""

    outs: tuple[str, ...]
    x: str


@dataclass(frozen=True, slots=True)
class Join:
    """a and b side by side."""

    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Sum:
    """out = (a + b) * scale, which is a number or the name of a weight [1]."""

    out: str
    a: str
    b: str
    scale: float | str = 1.0


@dataclass(frozen=True, slots=True)
class GeluProduct:
    """out = gelu_tanh(gate) * by"""

    out: str
    gate: str
    by: str


@dataclass(frozen=True, slots=True)
class Gelu:
    """out = gelu_tanh(x)"""

    out: str
    x: str


@dataclass(frozen=True, slots=True)
class Scale:
    """out = x * weight, element by element of a row."""

    out: str
    x: str
    weight: str


@dataclass(frozen=True, slots=True)
class Copy:
    """out = x, under a name that the engine knows."""

    out: str
    x: str


@dataclass(frozen=True, slots=True)
class Rows:
    """``parts`` [T, n] each below each other for every token: out[T * len(parts), n]."""

    out: str
    parts: tuple[str, ...]


Op = (
    Embed | RmsNorm | AddNorm | Linear | Attention | BorrowedAttention | GatedGelu | Softcap
    | GroupNorm | Split | Join | Sum | GeluProduct | Gelu | Scale | Copy | Rows
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: the angle of pair i is position / scale / theta^(2i / head_dim), and 0 from ``rotated`` on."""

    theta: float
    scale: float
    rotated: int | None = None
    """``None``: all pairs turn."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The two parts of a model: ``body`` (token ids -> hidden rows) and ``head`` (hidden rows -> logits).

    They are apart so that a verification can stop early: a head row costs as much as several layers.
    """

    body: tuple[Op, ...]
    head: tuple[Op, ...]
    kv_layers: tuple[KvLayer, ...]
    hidden_size: int
    rms_eps: float
    hidden_input: int | None = None
    """Width of the value ``hidden_in``, where the body takes another model's hidden rows; such a body may feed itself
    with the value ``feed`` of the same width."""
    fan_out: int = 1
    """Rows of ``hidden`` for each token."""
    takes: tuple[str, ...] = ()
    """Values [T, hidden_size] that another graph has made, where this one goes on from its layers."""
    hands: tuple[str, ...] = ()
    """Those that this one hands on."""
    first_layer: int = 0
    """Of ``kv_layers``, where the layers before it are another graph's."""
    lookup: tuple[Op, ...] = ()
    """Token ids -> the value ``per_layer`` [T, lookup_width], apart from the body since it belongs on the host."""
    lookup_width: int = 0

    BODY_OUT = "hidden"
    HEAD_IN = "hidden"
    HEAD_OUT = "logits"
    EMBED = "embed"
    HIDDEN_IN = "hidden_in"
    FEED = "feed"
    PER_LAYER = "per_layer"

    def with_lookup_inside(self) -> Graph:
        """One body from the token ids, for whoever runs it on the host anyway."""
        return replace(self, body=self.lookup + self.body, lookup=(), lookup_width=0)
