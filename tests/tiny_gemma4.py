"""Tiny random Gemma 4 checkpoints and assistants, saved by transformers itself, and what its modules say of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class TinyGemma4:
    """Two sliding layers and a global one, twice."""

    per_layer: int = 8
    shared: int = 2
    wide: bool = True
    keys_are_values: bool = False
    global_kv_heads: int | None = None
    unified: bool = False
    vocab: int = 512
    hidden: int = 64
    ffn: int = 128
    heads: int = 4
    kv_heads: int = 2
    window: int = 8
    context: int = 128

    def text(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": 6,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_global_key_value_heads": self.global_kv_heads,
            "head_dim": 16,
            "global_head_dim": 32,
            "layer_types": [_SLIDING, _SLIDING, _FULL] * 2,
            "sliding_window": self.window,
            "max_position_embeddings": self.context,
            "attention_k_eq_v": self.keys_are_values,
            "num_kv_shared_layers": self.shared,
            "use_double_wide_mlp": self.wide,
            "final_logit_softcapping": 30.0,
            "initializer_range": 0.25,
            "bos_token_id": 2,
            "eos_token_id": [1, 106],
            "pad_token_id": 0,
        }


@dataclass(frozen=True)
class TinyAssistant:
    ordered: bool = True
    vocab: int = 512
    hidden: int = 32
    backbone: int = 64
    kv_heads: int = 2
    window: int = 8
    centroids: int = 32
    best: int = 4


def save_tiny_gemma4(directory: Path, config: TinyGemma4, seed: int = 0) -> Path:
    import torch
    import transformers

    torch.manual_seed(seed)
    if config.unified:
        hf: Any = transformers.Gemma4UnifiedTextConfig(**config.text())
        model: Any = transformers.Gemma4UnifiedForCausalLM(hf)
    else:
        tables = {"hidden_size_per_layer_input": config.per_layer, "vocab_size_per_layer_input": config.vocab}
        hf = transformers.Gemma4TextConfig(**config.text(), **tables)
        model = transformers.Gemma4ForCausalLM(hf)
    _shake(model)
    model.save_pretrained(directory)
    return directory


def save_tiny_assistant(directory: Path, config: TinyAssistant, seed: int = 1) -> Path:
    import torch
    import transformers

    torch.manual_seed(seed)
    text = TinyGemma4(
        shared=3, wide=False, vocab=config.vocab, hidden=config.hidden, kv_heads=config.kv_heads, window=config.window
    ).text()
    text |= {"num_hidden_layers": 3, "layer_types": [_SLIDING, _SLIDING, _FULL], "final_logit_softcapping": None}
    text |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    hf = transformers.Gemma4AssistantConfig(
        text_config=transformers.Gemma4TextConfig(**text),
        backbone_hidden_size=config.backbone,
        use_ordered_embeddings=config.ordered,
        num_centroids=config.centroids,
        centroid_intermediate_top_k=config.best,
    )
    model: Any = transformers.Gemma4AssistantForCausalLM(hf)
    _shake(model)
    with torch.no_grad():
        for name, matrix in model.named_parameters():
            if "projection" in name or "centroids" in name:
                matrix.copy_(torch.randn_like(matrix) * 0.25)
        if config.ordered:
            model.masked_embedding.token_ordering.copy_(torch.randperm(config.vocab))
    model.save_pretrained(directory)
    return directory


def _shake(model: Any) -> None:
    """Norm weights and layer factors as no initialisation leaves them."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1.0 + torch.randn_like(parameter) * 0.2)
        for name, buffer in model.named_buffers():
            if "layer_scalar" in name:
                buffer.copy_(0.5 + torch.rand_like(buffer))


class AssistantOracle:
    """transformers' modules over a text that was run once: what its assistant drafts behind any prefix of it.

    Not its ``generate``: that leaves an entry too many in the shared caches after a partial acceptance.
    """

    def __init__(self, target: Path, assistant: Path) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self._target = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype="float32", attn_implementation="eager", local_files_only=True
        ).eval()
        self._assistant = transformers.Gemma4AssistantForCausalLM.from_pretrained(
            assistant, dtype="float32", attn_implementation="eager", local_files_only=True
        ).eval()

    def run(self, tokens: NDArray[np.int64]) -> None:
        import torch

        with torch.inference_mode():
            out = self._target.model(torch.from_numpy(tokens)[None], use_cache=False, return_shared_kv_states=True)
        self._hidden, self._shared = out.last_hidden_state, dict(out.shared_kv_states)

    @cached_property
    def embedding(self) -> Any:
        return self._target.get_input_embeddings()

    def draft(self, tokens: NDArray[np.int64], k: int) -> tuple[list[int], list[NDArray[np.float32]]]:
        """``k`` greedy tokens behind ``tokens``, a prefix of the text and one more; and their rows of logits."""
        import torch

        last = len(tokens) - 1
        shared = {kind: (keys[:, :, :last], values[:, :, :last]) for kind, (keys, values) in self._shared.items()}
        token, hidden = torch.tensor([[int(tokens[-1])]]), self._hidden[:, last - 1 : last]
        drafted, rows = [], []
        with torch.inference_mode():
            for _ in range(k):
                out = self._assistant(
                    inputs_embeds=torch.cat([self.embedding(token), hidden], dim=-1),
                    position_ids=torch.tensor([[last]]),
                    shared_kv_states=shared,
                )
                token, hidden = out.logits.argmax(dim=-1), out.last_hidden_state
                drafted.append(int(token))
                rows.append(out.logits[0, 0].numpy().copy())
        return drafted, rows
