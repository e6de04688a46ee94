"""The numerical reference: transformers in float32 with the checkpoint's own weights. Knows no bundle.

A safetensors directory is loaded by transformers itself. A GGUF goes through ``export.checkpoint`` into a fresh model:
transformers' own GGUF path makes the same weights, but takes half a minute and lacks the family's rotary constants.
A bfloat16 copy would not do: that alone is off by 0.27 logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import Checkpoint
from .model_config import GemmaConfig

_HF_LAYER = {
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


class Reference:
    """A causal transformers model in float32 on the CPU."""

    def __init__(self, checkpoint: Checkpoint, dtype: str = "float32") -> None:
        import torch
        import transformers

        self._torch = torch
        # Its bars would stand between the lines of our own.
        transformers.utils.logging.disable_progress_bar()
        kind = getattr(torch, dtype)
        if checkpoint.kind == "safetensors":
            model = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint.path, dtype=kind, attn_implementation="eager", local_files_only=True
            )
        else:
            model = _fresh_model(checkpoint).to(kind)
        self._model: Any = model.eval()

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[T] -> [T, vocab]"""
        with self._torch.inference_mode():
            out = self._model(self._torch.from_numpy(ids)[None], use_cache=False).logits[0]
        array: NDArray[np.float32] = out.float().numpy()
        return array

    @property
    def model(self) -> Any:
        """The transformers model itself, for benchmarks."""
        return self._model


def _fresh_model(checkpoint: Checkpoint) -> Any:
    import torch
    import transformers

    config = checkpoint.config
    gemma2 = config.family == "gemma2"
    hf_config = _hf_config(config)
    hf_config._attn_implementation = "eager"
    # Without initialisation: every parameter is written below, and half a gigabyte of random numbers takes seconds.
    with transformers.initialization.no_init_weights() if hasattr(transformers, "initialization") else torch.no_grad():
        model: Any = (transformers.Gemma2ForCausalLM if gemma2 else transformers.Gemma3ForCausalLM)(hf_config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            source = checkpoint.tensor(_canonical(name))
            values = source.rows(0, source.shape[0])
            if len(source.shape) == 1:
                values = values + np.float32(checkpoint.norm_offset - 1.0)
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return model


def _canonical(parameter: str) -> str:
    """A parameter's name in transformers -> its canonical name."""
    if parameter == "model.embed_tokens.weight":
        return "embed"
    if parameter == "model.norm.weight":
        return "final_norm"
    _, _, index, part = parameter.split(".", 3)
    inverse = {hf: ours for ours, hf in _HF_LAYER.items()}
    return f"layers.{index}.{inverse[part.removesuffix('.weight')]}"


def _hf_config(config: GemmaConfig) -> Any:
    import transformers

    windows = [layer.window for layer in config.layers]
    local = next((layer for layer in config.layers if layer.window is not None), config.layers[0])
    globe = next((layer for layer in config.layers if layer.window is None), config.layers[0])
    shared = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
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
        rope = {"rope_type": "default", "rope_theta": globe.rope_theta}
        return transformers.Gemma2Config(**shared, rope_parameters=rope)
    rope = {
        "full_attention": _rope(globe.rope_theta, globe.rope_scale),
        "sliding_attention": _rope(local.rope_theta, local.rope_scale),
    }
    return transformers.Gemma3TextConfig(**shared, rope_parameters=rope)


def _rope(theta: float, scale: float) -> dict[str, Any]:
    if scale == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": scale}
