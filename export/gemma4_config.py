"""Gemma 4 and its assistants, as their ``config.json`` has them. Knows no tensors' places and opens no files.

Layers differ in their head's width, some of them in the feed-forward's, and the last ones may attend to the keys and
values of an earlier layer. An assistant attends to nothing but its target's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edge_runtime.errors import CheckpointError
from export.config_reader import Reader, token_ids
from export.model_config import (
    ASSISTANTS,
    GemmaConfig,
    LayerConfig,
    LayerShape,
    layer_types,
    refuse_hf_features,
    stop_ids,
)

_GLOBAL_EVERY = 6
_SLIDING, _FULL = "sliding_attention", "full_attention"
KINDS = (_SLIDING, _FULL)
"""In the order in which an assistant's layers know their target's caches."""
_GLOBAL_HEAD_DIM = 512

# Defaults of transformers' Gemma4TextConfig and Gemma4UnifiedTextConfig.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 512,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
_UNIFIED = {"max_position_embeddings": 262_144, "sliding_window": 1024, "hidden_size_per_layer_input": 0}
_ROPES: dict[str, Mapping[str, object]] = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(frozen=True, slots=True)
class AssistantConfig:
    """A drafter that lives on a Gemma 4: queries of its own, its target's keys and values."""

    text: GemmaConfig
    """Its layers' ``donor`` is the place of their kind in ``KINDS``."""
    backbone_size: int
    """Width of the target's hidden rows."""
    centroids: int | None
    """Groups that its vocabulary is ordered by; ``None``: a dense head."""
    best_centroids: int
    """Groups of a row whose tokens are scored."""

    @classmethod
    def from_hf(cls, config: Mapping[str, object], name: str) -> AssistantConfig:
        """Raises ``CheckpointError`` for another kind of drafter and for what its graph lacks."""
        if str(config.get("model_type")) not in ASSISTANTS:
            raise CheckpointError(f"{name}: model_type {config.get('model_type')} is no Gemma 4 assistant")
        nested = config.get("text_config")
        if not isinstance(nested, Mapping):
            raise CheckpointError(f"{name}: an assistant without a text_config")
        text = _reader(config, nested, name)
        for feature in ("hidden_size_per_layer_input", "use_double_wide_mlp"):
            if text.get(feature):
                raise CheckpointError(f"{name}: an assistant with {feature} is not supported")
        layers = text.depth("num_hidden_layers")
        if (text.get("num_kv_shared_layers") or layers) != layers:
            raise CheckpointError(f"{name}: an assistant with keys and values of its own is not supported")
        read = Reader(config, name)
        ordered = bool(config.get("use_ordered_embeddings"))
        found = cls(
            text=_text(config, {}, text, shared=layers),
            backbone_size=read.as_size("backbone_hidden_size", config.get("backbone_hidden_size", 1536)),
            centroids=read.as_size("num_centroids", config.get("num_centroids", 2048)) if ordered else None,
            best_centroids=read.as_size("centroid_intermediate_top_k", config.get("centroid_intermediate_top_k", 32)),
        )
        if found.centroids is not None:
            if found.text.vocab_size % found.centroids:
                groups = f"{found.text.vocab_size} tokens do not fall into {found.centroids} groups"
                raise CheckpointError(f"{name}: {groups} of one size")
            if found.best_centroids > found.centroids:
                raise CheckpointError(f"{name}: the best {found.best_centroids} of {found.centroids} centroids")
        return found


def read_gemma4(config: Mapping[str, object], generation: Mapping[str, object], name: str) -> GemmaConfig:
    """Raises ``CheckpointError`` for a feature that the graph lacks, or a malformed value."""
    nested = config.get("text_config")
    read = _reader(config, nested if isinstance(nested, Mapping) else config, name)
    shared = _size_or_none(read, "num_kv_shared_layers")
    layers = read.depth("num_hidden_layers")
    if shared >= layers:
        raise CheckpointError(f"{name}: num_kv_shared_layers is {shared} of {layers} layers: none has keys of its own")
    return _text(config, generation, read, shared)


def tensor_shapes(config: GemmaConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of the text model."""
    hidden, per_layer = config.hidden_size, config.per_layer_size
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if per_layer:
        # Rows of padding, where there are any, are as many as the embedding's.
        width = config.num_layers * per_layer
        shapes |= {"per_layer_embed": (config.vocab_size, width), "per_layer_projection": (width, hidden)}
        shapes["per_layer_norm"] = (per_layer,)
    for index, layer in enumerate(config.layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in _layer_shapes(config, layer).items()}
    return shapes


def idle_tensors(config: GemmaConfig) -> set[str]:
    """What published checkpoints hold although no layer reads it: keys and values of layers that borrow theirs."""
    borrowing = [i for i, layer in enumerate(config.layers) if layer.shape and layer.shape.donor is not None]
    return {f"layers.{i}.{part}" for i in borrowing for part in ("k", "v", "k_norm")}


def _layer_shapes(config: GemmaConfig, layer: LayerConfig) -> dict[str, tuple[int, ...]]:
    shape, hidden = layer.shape, config.hidden_size
    assert shape is not None
    queries, keys = config.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = ("attn_norm", "ffn_norm", "post_attn_norm", "post_ffn_norm")
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (hidden,))
    shapes |= {"q": (queries, hidden), "q_norm": (shape.head_dim,), "o": (hidden, queries), "scalar": (1,)}
    shapes |= {"gate": (shape.ffn_size, hidden), "up": (shape.ffn_size, hidden), "down": (hidden, shape.ffn_size)}
    if shape.donor is None:
        shapes |= {"k": (keys, hidden), "k_norm": (shape.head_dim,)}
        shapes |= {} if shape.values_from_keys else {"v": (keys, hidden)}
    if config.per_layer_size:
        shapes |= {"per_layer_gate": (config.per_layer_size, hidden), "per_layer_out": (hidden, config.per_layer_size)}
        shapes["post_per_layer_norm"] = (hidden,)
    return shapes


def _reader(config: Mapping[str, object], text: Mapping[str, object], name: str) -> Reader:
    unified = "unified" in str(text.get("model_type")) or "unified" in str(config.get("model_type"))
    read = Reader(_DEFAULTS | (_UNIFIED if unified else {}) | dict(text), name)
    if read.get("enable_moe_block"):
        raise CheckpointError(f"{name}: a mixture of experts (26B-A4B) is not supported; dense Gemma 4 are")
    if read.get("use_bidirectional_attention") == "vision":
        # Of image tokens only; a text is causal.
        read = Reader({**read.values, "use_bidirectional_attention": None}, name)
    refuse_hf_features(config, read)
    return read


def _text(config: Mapping[str, object], generation: Mapping[str, object], read: Reader, shared: int) -> GemmaConfig:
    hidden, vocab = read.size("hidden_size"), read.size("vocab_size")
    per_layer = _size_or_none(read, "hidden_size_per_layer_input")
    if per_layer and (rows := read.size("vocab_size_per_layer_input")) != vocab:
        raise CheckpointError(f"{read.name}: a per-layer table of {rows} rows for {vocab} tokens is not supported")
    return GemmaConfig(
        name=read.name,
        family="gemma4",
        vocab_size=vocab,
        hidden_size=hidden,
        num_heads=read.size("num_attention_heads"),
        num_kv_heads=read.size("num_key_value_heads"),
        head_dim=read.size("head_dim"),
        ffn_size=read.size("intermediate_size"),
        rms_eps=read.number("rms_norm_eps"),
        query_scale=1.0,
        attn_softcap=None,
        final_softcap=read.optional_number("final_logit_softcapping"),
        qk_norm=True,
        layers=_layers(read, shared),
        embed_scale=math.sqrt(hidden),
        max_position=read.size("max_position_embeddings"),
        bos_id=next(iter(token_ids(read.get("bos_token_id"))), None),
        eos_ids=stop_ids(config, generation, read),
        per_layer_size=per_layer,
    )


def _size_or_none(read: Reader, key: str) -> int:
    """0 where there is none of it."""
    return read.size(key) if read.get(key) else 0


def _layers(read: Reader, shared: int) -> tuple[LayerConfig, ...]:
    count = read.depth("num_hidden_layers")
    # As transformers reads it: the last layer is a global one, whatever the list says.
    kinds = [*layer_types(read, count, _GLOBAL_EVERY)[:-1], _FULL]
    own = count - shared
    layers = []
    for i, kind in enumerate(kinds):
        donor = None
        if shared == count:
            donor = KINDS.index(kind)
        elif i >= own:
            donor = next((j for j in reversed(range(own)) if kinds[j] == kind), None)
            if donor is None:
                raise CheckpointError(f"{read.name}: layer {i} borrows keys, but no {kind} layer has any of its own")
        layers.append(_layer(read, i, kind, donor))
    for layer in layers:
        if layer.shape and layer.shape.donor is not None and shared < count:
            owner = layers[layer.shape.donor].shape
            if owner is None or (owner.head_dim, owner.kv_heads) != (layer.shape.head_dim, layer.shape.kv_heads):
                raise CheckpointError(f"{read.name}: layers that share keys have heads of different sizes")
    return tuple(layers)


def _layer(read: Reader, index: int, kind: str, donor: int | None) -> LayerConfig:
    sizes = _overrides(read, index, kind)
    head_dim = read.as_size("head_dim", sizes.get("head_dim", read.get("head_dim")))
    kv_heads = read.as_size("num_key_value_heads", sizes.get("num_key_value_heads", read.get("num_key_value_heads")))
    if read.size("num_attention_heads") % kv_heads:
        raise CheckpointError(f"{read.name}: the heads of layer {index} do not share {kv_heads} KV heads evenly")
    wide = donor is not None and bool(read.get("use_double_wide_mlp"))
    theta, scale, rotated = _rope(read, kind, head_dim)
    shape = LayerShape(
        head_dim=head_dim,
        kv_heads=kv_heads,
        ffn_size=read.size("intermediate_size") * (2 if wide else 1),
        rotated=rotated,
        values_from_keys=bool(read.get("attention_k_eq_v")) and kind == _FULL,
        donor=donor,
    )
    return LayerConfig(read.size("sliding_window") if kind == _SLIDING else None, theta, scale, shape)


def _overrides(read: Reader, index: int, kind: str) -> Mapping[str, object]:
    """What a layer has instead of the model's sizes; transformers 5 writes it by layer, published configs by kind."""
    by_layer = read.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        found: object = next((sizes for key, sizes in by_layer.items() if str(key).lstrip("0") == str(index or "")), {})
        if not isinstance(found, Mapping) or not found.keys() <= {"head_dim", "num_key_value_heads"}:
            raise CheckpointError(f"{read.name}: per_layer_config of layer {index} is not supported: {found!r}")
        return found
    if kind != _FULL:
        return {}
    sizes: dict[str, object] = {"head_dim": read.get("global_head_dim") or _GLOBAL_HEAD_DIM}
    if read.get("attention_k_eq_v") and read.get("num_global_key_value_heads") is not None:
        sizes["num_key_value_heads"] = read.get("num_global_key_value_heads")
    return sizes


def _rope(read: Reader, kind: str, head_dim: int) -> tuple[float, float, int]:
    """(theta, linear factor, pairs that turn)"""
    parameters = read.get("rope_parameters")
    given = parameters.get(kind) if isinstance(parameters, Mapping) else None
    rope = _ROPES[kind] if given is None else given
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"{read.name}: rope parameters must be a mapping, found {rope!r}")
    how = rope.get("rope_type", "default")
    if how not in ("default", "linear", "proportional"):
        raise CheckpointError(f"{read.name}: rope type {how} is not supported (default, linear and proportional are)")
    theta = read.as_number("rope_theta", rope.get("rope_theta", _ROPES[kind]["rope_theta"]))
    if how == "default":
        return theta, 1.0, head_dim // 2
    factor = read.as_number("rope factor", rope.get("factor", 1.0 if how == "proportional" else None))
    share = read.as_number("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) if how != "linear" else 1.0
    return theta, factor, min(int(share * head_dim // 2), head_dim // 2)
