"""What a trained drafter computes, entry by entry, in plain numpy. Knows no training and no engine.

The formulas stand in ``export.training.checkpoint``; this is what exported graphs are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .checkpoint import LAYER, DrafterConfig, TrainedDrafter

Floats = NDArray[np.float32]

_GELU_INNER = np.float32(np.sqrt(2.0 / np.pi))


@dataclass(slots=True)
class ReferenceCache:
    """K and V by entry; writing at an index that is taken overwrites it, as a rollback does."""

    keys: dict[int, Floats] = field(default_factory=dict)
    """[kv_heads, head_dim] each"""
    values: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceOutput:
    hidden: Floats
    """[D] what the head reads"""
    feed: Floats
    """[B] what stands in for the target's next row"""
    logits: Floats
    """[R]"""


def reference_step(
    drafter: TrainedDrafter, cache: ReferenceCache, embedding: Floats, hidden: Floats, entry: int, head: Floats
) -> ReferenceOutput:
    """Entry ``entry``: attends to itself and to the entries before it.

    Args:
        embedding: [B] the target's embedding row of token x_{entry+1}, unscaled.
        hidden: [B] the target's row h_entry, or the feed of the entry before.
        head: [R, D] the drafter's own head, or the target's embedding rows at its token ids.
    """
    config, t = drafter.config, drafter.tensors
    e = _rms(embedding * np.float32(config.embed_scale), t["embed_norm"], config.rms_eps)
    r = t["projection"] @ np.concatenate([e, hidden * t["hidden_scale"]])
    r = r + _rms(t[LAYER + "o"] @ _attend(drafter, cache, r, entry), t[LAYER + "post_attn_norm"], config.rms_eps)
    f = _rms(r, t[LAYER + "ffn_norm"], config.rms_eps)
    gated = _gelu(t[LAYER + "gate"] @ f) * (t[LAYER + "up"] @ f)
    r = r + _rms(t[LAYER + "down"] @ gated, t[LAYER + "post_ffn_norm"], config.rms_eps)
    y = _rms(r, t["final_norm"], config.rms_eps)
    logits = head @ y
    if config.final_softcap is not None:
        logits = np.float32(config.final_softcap) * np.tanh(logits / np.float32(config.final_softcap))
    return ReferenceOutput(y, t["feed"] @ y if "feed" in t else y, logits)


def _attend(drafter: TrainedDrafter, cache: ReferenceCache, r: Floats, entry: int) -> Floats:
    """[heads * head_dim]"""
    config, t = drafter.config, drafter.tensors
    a = _rms(r, t[LAYER + "attn_norm"], config.rms_eps)
    q = (t[LAYER + "q"] @ a).reshape(config.heads, config.head_dim)
    k = (t[LAYER + "k"] @ a).reshape(config.kv_heads, config.head_dim)
    if config.qk_norm:
        q, k = _rms(q, t[LAYER + "q_norm"], config.rms_eps), _rms(k, t[LAYER + "k_norm"], config.rms_eps)
    q, k = _rope(q, entry, config), _rope(k, entry, config)
    cache.keys[entry] = k
    cache.values[entry] = (t[LAYER + "v"] @ a).reshape(config.kv_heads, config.head_dim)
    first = 0 if config.window is None else max(0, entry - config.window + 1)
    keys = np.stack([cache.keys[j] for j in range(first, entry + 1)])  # [n, kv_heads, head_dim]
    values = np.stack([cache.values[j] for j in range(first, entry + 1)])
    out = []
    for head in range(config.heads):
        shared = head // (config.heads // config.kv_heads)
        scores = np.float32(config.query_scale) * (keys[:, shared] @ q[head])
        if config.attn_softcap is not None:
            scores = np.float32(config.attn_softcap) * np.tanh(scores / np.float32(config.attn_softcap))
        weights = np.exp(scores - scores.max())
        out.append((weights / weights.sum()) @ values[:, shared])
    return np.concatenate(out)


def _rms(x: Floats, weight: Floats, eps: float) -> Floats:
    scaled: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
    return scaled


def _rope(x: Floats, position: int, config: DrafterConfig) -> Floats:
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-2.0 * np.arange(half) / config.head_dim)
    angle = position / config.rope_scale * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def _gelu(x: Floats) -> Floats:
    inner = _GELU_INNER * (x + np.float32(0.044715) * x * x * x)
    gelu: Floats = (np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))).astype(np.float32)
    return gelu
