"""The Gemma 2 and 3 text graph, written once (4: ``gemma4``). Knows no engine, no precision and no weight values.

Sources: Gemma 2 technical report (arXiv 2408.00118), Gemma 3 technical report (arXiv 2503.19786).
"""

from __future__ import annotations

from edge_runtime.bundle import KvLayer

from .gemma4 import describe_gemma4
from .graph import AddNorm, Attention, Embed, GatedGelu, Graph, Linear, Op, RmsNorm, Rope, Softcap
from .model_config import GemmaConfig


def describe(config: GemmaConfig, num_layers: int | None = None) -> Graph:
    """The graph of ``config``, or of its first ``num_layers`` layers (a draft pruned from the same checkpoint)."""
    depth = config.num_layers if num_layers is None else num_layers
    if config.family == "gemma4":
        return describe_gemma4(config, depth)
    kv_layers = tuple(KvLayer(config.num_kv_heads, config.head_dim, config.layers[i].window) for i in range(depth))
    body: list[Op] = [
        Embed("x0", Graph.EMBED, config.embed_scale),
        RmsNorm("a0", "x0", "layers.0.attn_norm"),
    ]
    for i in range(depth):
        after = f"layers.{i + 1}.attn_norm" if i + 1 < depth else "final_norm"
        normed = f"a{i + 1}" if i + 1 < depth else Graph.BODY_OUT
        body += layer_ops(config, i, kv_layers[i], after, normed)
    return Graph(tuple(body), head_ops(config.final_softcap), kv_layers, config.hidden_size, config.rms_eps)


def head_ops(softcap: float | None) -> tuple[Op, ...]:
    """Hidden rows to logits, by the rows of the embedding."""
    if softcap is None:
        return (Linear(Graph.HEAD_OUT, Graph.HEAD_IN, (Graph.EMBED,)),)
    return (
        Linear("raw_logits", Graph.HEAD_IN, (Graph.EMBED,)),
        Softcap(Graph.HEAD_OUT, "raw_logits", softcap),
    )


def layer_ops(config: GemmaConfig, i: int, kv: KvLayer, next_norm: str, next_normed: str) -> list[Op]:
    """One block: x_i and its norm a_i in, x_{i+1} and its norm out. Gemma norms before and after both halves."""
    w, layer = f"layers.{i}.", config.layers[i]
    return [
        Linear(f"qkv{i}", f"a{i}", (w + "q", w + "k", w + "v")),
        Attention(
            out=f"att{i}",
            qkv=f"qkv{i}",
            layer=i,
            heads=config.num_heads,
            kv=kv,
            scale=config.query_scale,
            softcap=config.attn_softcap,
            rope=Rope(layer.rope_theta, layer.rope_scale),
            q_norm=w + "q_norm" if config.qk_norm else None,
            k_norm=w + "k_norm" if config.qk_norm else None,
        ),
        Linear(f"o{i}", f"att{i}", (w + "o",)),
        RmsNorm(f"on{i}", f"o{i}", w + "post_attn_norm"),
        AddNorm(f"f{i}", f"m{i}", f"x{i}", f"on{i}", w + "ffn_norm"),
        Linear(f"gu{i}", f"f{i}", (w + "gate", w + "up")),
        GatedGelu(f"g{i}", f"gu{i}"),
        Linear(f"d{i}", f"g{i}", (w + "down",)),
        RmsNorm(f"dn{i}", f"d{i}", w + "post_ffn_norm"),
        AddNorm(next_normed, f"x{i + 1}", f"m{i}", f"dn{i}", next_norm),
    ]
