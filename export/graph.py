"""A text model as a list of operations. Knows no engine, no file format and no weight values.

``export.gemma`` writes such a description once; a dialect spells it for ONNX Runtime, and later for TensorRT. Values
are named by strings, weights by the canonical tensor names of ``export.checkpoint``. Fusions belong to the dialect,
save those that every engine wants: several products of one input are one ``Linear``.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    ``qkv`` [T, (heads + 2 kv_heads) * head_dim]: queries, keys and values side by side.
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


Op = Embed | RmsNorm | AddNorm | Linear | Attention | GatedGelu | Softcap


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding over the whole head: angle = position / scale / theta^(2i / head_dim)."""

    theta: float
    scale: float


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

    BODY_OUT = "hidden"
    HEAD_IN = "hidden"
    HEAD_OUT = "logits"
    EMBED = "embed"
