"""A Gemma as transformers calls its parts: settings of its config, names of its parameters. Imports no transformers."""

from __future__ import annotations

from typing import Any

from edge_runtime.errors import ConfigError

from .model_config import GemmaConfig

HF_TYPE = {"gemma2": "gemma2", "gemma3": "gemma3_text"}
"""Family -> ``model_type`` of its text model."""
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "post_ffn_norm": "post_feedforward_layernorm",
}


def hf_name(canonical: str) -> str:
    """``layers.3.q`` -> ``layers.3.self_attn.q_proj``, within the text model."""
    if canonical in ("embed", "final_norm"):
        return {"embed": "embed_tokens", "final_norm": "norm"}[canonical]
    _, index, part = canonical.split(".")
    return f"layers.{index}.{HF_LAYER[part]}"


def hf_settings(config: GemmaConfig, num_layers: int | None = None) -> dict[str, Any]:
    """Of ``Gemma2Config`` or ``Gemma3TextConfig``, for a model of the first ``num_layers`` layers.

    Raises ``ConfigError`` for another family.
    """
    if config.family not in HF_TYPE:
        raise ConfigError(f"{config.name}: {config.family} has no settings here; Gemma 2 and 3 have")
    windows = [layer.window for layer in config.layers[:num_layers]]
    local = next((layer for layer in config.layers if layer.window is not None), config.layers[0])
    globe = next((layer for layer in config.layers if layer.window is None), config.layers[0])
    shared = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": len(windows),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_eps,
        "query_pre_attn_scalar": round(config.query_scale**-2),
        "sliding_window": local.window or config.max_position,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "attn_logit_softcapping": config.attn_softcap,
        "final_logit_softcapping": config.final_softcap,
    }
    if config.family == "gemma2":
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": globe.rope_theta}
        return {**shared, "rope_parameters": rope}
    rope = {
        "full_attention": _rope(globe.rope_theta, globe.rope_scale),
        "sliding_attention": _rope(local.rope_theta, local.rope_scale),
    }
    return {**shared, "rope_parameters": rope}


def _rope(theta: float, scale: float) -> dict[str, Any]:
    if scale == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": scale}
