"""A trained multi-token drafter as a graph and a checkpoint. Knows neither how it was trained nor how it drafts.

Its formulas stand in ``export.training.checkpoint``: one Gemma layer over [embedding; the target's hidden row].
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edge_runtime.bundle import KvLayer

from .array_checkpoint import ArrayCheckpoint
from .checkpoint import Checkpoint
from .gemma import head_ops, layer_ops
from .graph import Copy, Embed, Graph, Join, Linear, Op, RmsNorm, Scale
from .model_config import GemmaConfig, LayerConfig
from .training.checkpoint import DrafterConfig, TrainedDrafter

_FEED = "feed_projection"
"""What a checkpoint calls feed; a graph's value has that name already."""


def drafter_checkpoint(drafter: TrainedDrafter, path: Path, target: Checkpoint) -> ArrayCheckpoint:
    tensors = {_FEED if name == "feed" else name: values for name, values in drafter.tensors.items()}
    return ArrayCheckpoint(gemma_config(drafter.config, path.name, target.config), path, target, tensors)


def gemma_config(config: DrafterConfig, name: str, target: GemmaConfig) -> GemmaConfig:
    """The drafter's one layer, as the graph of a text model describes it."""
    return replace(
        target,
        name=name,
        family="gemma3" if config.qk_norm else "gemma2",
        hidden_size=config.hidden_size,
        num_heads=config.heads,
        num_kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ffn_size=config.ffn,
        rms_eps=config.rms_eps,
        query_scale=config.query_scale,
        attn_softcap=config.attn_softcap,
        final_softcap=config.final_softcap,
        qk_norm=config.qk_norm,
        layers=(LayerConfig(config.window, config.rope_theta, config.rope_scale),),
        embed_scale=config.embed_scale,
        per_layer_size=0,
    )


def describe_multi_token(checkpoint: ArrayCheckpoint) -> Graph:
    config = checkpoint.config
    kv = KvLayer(config.num_kv_heads, config.head_dim, config.layers[0].window)
    body: list[Op] = [
        Embed("e", Graph.EMBED, config.embed_scale),
        RmsNorm("embedded", "e", "embed_norm"),
        Scale("told", Graph.HIDDEN_IN, "hidden_scale"),
        Join("joined", "embedded", "told"),
        Linear("x0", "joined", ("projection",)),
        RmsNorm("a0", "x0", "layers.0.attn_norm"),
        *layer_ops(config, 0, kv, "final_norm", Graph.BODY_OUT),
    ]
    if _FEED in checkpoint.tensors:
        body.append(Linear(Graph.FEED, Graph.BODY_OUT, (_FEED,)))
    else:
        body.append(Copy(Graph.FEED, Graph.BODY_OUT))
    return Graph(
        body=tuple(body),
        head=head_ops(config.final_softcap),
        kv_layers=(kv,),
        hidden_size=config.hidden_size,
        rms_eps=config.rms_eps,
        hidden_input=checkpoint.target.config.hidden_size,
    )
