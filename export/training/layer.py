"""One Gemma layer in torch, for the target as for the drafter. Knows no checkpoint, no cache and no training.

Weights come as a mapping of the canonical names of ``export.checkpoint`` (``q``, ``attn_norm`` ...); norm weights are
the factors themselves. Rows are [batch, rows, width] throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class LayerShape:
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float
    query_scale: float
    softcap: float | None
    window: int | None
    rope_theta: float
    rope_scale: float


@dataclass(frozen=True, slots=True)
class Projected:
    """Queries [batch, heads, rows, head_dim]; keys and values likewise, with kv_heads. Normed and rotated."""

    q: Tensor
    k: Tensor
    v: Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def project(stream: Tensor, w: Weights, shape: LayerShape, positions: Tensor) -> Projected:
    """What attention needs of ``stream``, whose rows stand at ``positions`` [rows]."""
    a = rms_norm(stream, w["attn_norm"], shape.rms_eps)
    q, k = _heads(a, w["q"], shape.heads), _heads(a, w["k"], shape.kv_heads)
    if "q_norm" in w:
        q, k = rms_norm(q, w["q_norm"], shape.rms_eps), rms_norm(k, w["k_norm"], shape.rms_eps)
    cos, sin = _rotary(shape, positions)
    return Projected(_rotate(q, cos, sin), _rotate(k, cos, sin), _heads(a, w["v"], shape.kv_heads))


def causal(at: Projected, shape: LayerShape) -> Tensor:
    """[batch, rows, heads * head_dim]: each row sees itself and those before it."""
    rows = at.q.shape[2]
    if shape.softcap is None and (shape.window is None or rows <= shape.window):
        groups = shape.heads // shape.kv_heads
        k, v = (_repeat(x, groups) for x in (at.k, at.v))
        out = functional.scaled_dot_product_attention(at.q, k, v, is_causal=True, scale=shape.query_scale)
        return out.transpose(1, 2).flatten(2)
    place = torch.arange(rows, device=at.q.device)
    behind = place[:, None] - place[None, :]
    seen = behind >= 0 if shape.window is None else (behind >= 0) & (behind < shape.window)
    return weigh(scores(at.q, at.k, shape).masked_fill(~seen, -torch.inf), at.v)


def scores(q: Tensor, k: Tensor, shape: LayerShape) -> Tensor:
    """[batch, kv_heads, group, rows, keys]"""
    batch, heads, rows, dim = q.shape
    groups = heads // shape.kv_heads
    # The heads of a group as more rows of one product: broadcast over them, the keys would be copied for each.
    products = q.reshape(batch, shape.kv_heads, groups * rows, dim) @ k.transpose(-1, -2)
    return capped(products.unflatten(2, (groups, rows)), shape)


def capped(products: Tensor, shape: LayerShape) -> Tensor:
    products = products * shape.query_scale
    return products if shape.softcap is None else shape.softcap * torch.tanh(products / shape.softcap)


def weigh(scored: Tensor, v: Tensor) -> Tensor:
    """Softmax over the last axis of :func:`scores`, then the values: [batch, rows, heads * head_dim]."""
    return merge(mix(scored.softmax(-1), v))


def mix(law: Tensor, v: Tensor) -> Tensor:
    """[batch, kv_heads, group, rows, head_dim]: the values by a law of the shape of :func:`scores`."""
    return (law.flatten(2, 3) @ v).unflatten(2, law.shape[2:4])


def merge(grouped: Tensor) -> Tensor:
    """[batch, kv_heads, group, rows, head_dim] -> [batch, rows, heads * head_dim]"""
    return grouped.flatten(1, 2).transpose(1, 2).flatten(2)


def finish(stream: Tensor, attended: Tensor, w: Weights, eps: float) -> Tensor:
    """The rest of the layer: output product and feed-forward, each normed before it joins the stream."""
    stream = stream + rms_norm(attended @ w["o"].T, w["post_attn_norm"], eps)
    f = rms_norm(stream, w["ffn_norm"], eps)
    gated = functional.gelu(f @ w["gate"].T, approximate="tanh") * (f @ w["up"].T)
    return stream + rms_norm(gated @ w["down"].T, w["post_ffn_norm"], eps)


def _heads(a: Tensor, weight: Tensor, heads: int) -> Tensor:
    return (a @ weight.T).unflatten(-1, (heads, -1)).transpose(1, 2)


def _repeat(x: Tensor, groups: int) -> Tensor:
    batch, heads, rows, dim = x.shape
    return x[:, :, None].expand(batch, heads, groups, rows, dim).reshape(batch, heads * groups, rows, dim)


def _rotary(shape: LayerShape, positions: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, head_dim / 2] each"""
    even = torch.arange(0, shape.head_dim, 2, dtype=torch.float64, device=positions.device)
    frequency = shape.rope_theta ** (-even / shape.head_dim)
    angle = positions.to(torch.float64)[:, None] / shape.rope_scale * frequency
    return angle.cos().to(torch.float32), angle.sin().to(torch.float32)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
