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
from .hf_config import HF_LAYER, hf_settings


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
                checkpoint.path,
                dtype=kind,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
        else:
            model = _fresh_model(checkpoint).to(kind)
        self._model: Any = model.eval()
        self._matrices: dict[str, Any] | None = None

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

    def hidden(self, ids: NDArray[np.int64]) -> Any:
        """[T] -> [T, hidden_size] after the final norm, a tensor."""
        with self._torch.inference_mode():
            return self._model.get_decoder()(self._torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]

    def read(self, hidden: Any) -> Any:
        """[n, hidden_size] -> [n, vocab] logits, tensors: the whole of a long text would be gigabytes."""
        with self._torch.inference_mode():
            logits = self._model.lm_head(hidden)
            cap = self._model.config.get_text_config().final_logit_softcapping
            return logits if cap is None else self._torch.tanh(logits / cap) * cap

    def set_matrix(self, name: str, rows: NDArray[np.float32]) -> None:
        """Put other values [N, K] in the place of a matrix, by its canonical name. Raises ``KeyError``."""
        if self._matrices is None:
            self._matrices = {
                _canonical(full): parameter
                for full, parameter in self._model.named_parameters()
                if ".layers." in full and parameter.dim() == 2 and "vision" not in full
            }
        with self._torch.no_grad():
            self._matrices[name].copy_(self._torch.from_numpy(np.ascontiguousarray(rows)))


def _fresh_model(checkpoint: Checkpoint) -> Any:
    import torch
    import transformers

    config = checkpoint.config
    gemma2 = config.family == "gemma2"
    settings = hf_settings(config)
    hf_config: Any = (transformers.Gemma2Config if gemma2 else transformers.Gemma3TextConfig)(**settings)
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
    index, part = parameter.split("layers.", 1)[1].split(".", 1)
    inverse = {hf: ours for ours, hf in HF_LAYER.items()}
    return f"layers.{index}.{inverse[part.removesuffix('.weight')]}"
