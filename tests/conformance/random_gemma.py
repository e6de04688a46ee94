"""Tiny random Gemma checkpoints without torch: a board that tries its engine has none. Knows no test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.bundle import Manifest, MemoryNeeds, TokenizerEntry
from export.checkpoint import open_checkpoint
from export.model_writer import ModelPlan
from export.recipe import ExportRecipe
from export.writing import write_model

VOCAB, WINDOW, CONTEXT = 512, 8, 128
LAYERS = {"gemma2": ("sliding", "full"), "gemma3": ("sliding", "full", "sliding")}
"""Few: what an engine does between two layers it does once, and a suite of seconds is run more often."""
_SEEDS = {"gemma2": 5, "gemma3": 8}
"""Whose greedy texts do not end in a circle at once, as those of most random models do."""
_HIDDEN, _FFN, _HEADS, _KV_HEADS, _DIM = 64, 128, 4, 2, 32


def save_random(directory: Path, family: str) -> Path:
    """In Hugging Face layout; weights so large that a row hangs on all that stands before it."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(_SEEDS[family])
    tensors = {
        name: (random.standard_normal(shape) * (0.2 if len(shape) == 1 else 0.25)).astype("<f4")
        for name, shape in _shapes(family).items()
    }
    for name in tensors:
        if "post_" in name:
            # Layers that say more than the embedding: a model that only repeats its last token tests nothing.
            tensors[name] += np.float32(4.0)
    (directory / "config.json").write_text(json.dumps(_config(family)), encoding="utf-8")
    header: dict[str, Any] = {}
    offset = 0
    for name, values in tensors.items():
        stop = offset + values.nbytes
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.tobytes())
    return directory


def export_random(directory: Path, checkpoint_path: Path, **recipe: Any) -> Manifest:
    """The model's files to ``directory``, and a manifest in memory."""
    checkpoint = open_checkpoint(checkpoint_path)
    keys = {"source": str(checkpoint_path), "output": str(directory), "max_context": CONTEXT, **recipe}
    wanted = ExportRecipe(**keys)
    directory.mkdir(parents=True, exist_ok=True)
    plan = ModelPlan(
        role="target",
        checkpoint=checkpoint,
        num_layers=checkpoint.config.num_layers,
        vocab_size=VOCAB,
        token_ids=None,
        precision=wanted.precision,
        head_precision=wanted.head_precision or wanted.precision,
    )
    written = write_model(directory, plan, wanted, lambda what, done, total: None)
    return Manifest(
        schema_version=1, name="tiny", family=checkpoint.config.family, models={"target": written.model},
        tokenizer=TokenizerEntry("tokenizer.model", VOCAB, 2, (1,), ""), chat_template=None,
        memory=MemoryNeeds(0, 0, 0), sources=(), recipe={}, notes=written.notes, licence="", licence_file="",
        exporter="", files=(),
    )  # fmt: skip


def _config(family: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "gemma2" if family == "gemma2" else "gemma3_text",
        "vocab_size": VOCAB, "hidden_size": _HIDDEN, "intermediate_size": _FFN,
        "num_hidden_layers": len(LAYERS[family]),
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _DIM, "sliding_window": WINDOW,
        "max_position_embeddings": CONTEXT, "query_pre_attn_scalar": _DIM, "rms_norm_eps": 1e-6,
        "layer_types": [f"{kind}_attention" for kind in LAYERS[family]],
        "hidden_activation": "gelu_pytorch_tanh", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    if family == "gemma2":
        return config | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "rope_theta": 1e4}
    return config | {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


def _shapes(family: str) -> dict[str, tuple[int, ...]]:
    queries, keys = _HEADS * _DIM, _KV_HEADS * _DIM
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (_HIDDEN,), "self_attn.q_proj": (queries, _HIDDEN), "self_attn.k_proj": (keys, _HIDDEN),
        "self_attn.v_proj": (keys, _HIDDEN), "self_attn.o_proj": (_HIDDEN, queries),
        "post_attention_layernorm": (_HIDDEN,), "pre_feedforward_layernorm": (_HIDDEN,),
        "mlp.gate_proj": (_FFN, _HIDDEN), "mlp.up_proj": (_FFN, _HIDDEN), "mlp.down_proj": (_HIDDEN, _FFN),
        "post_feedforward_layernorm": (_HIDDEN,),
    }  # fmt: skip
    if family == "gemma3":
        layer |= {"self_attn.q_norm": (_DIM,), "self_attn.k_norm": (_DIM,)}
    shapes: dict[str, tuple[int, ...]] = {"model.norm.weight": (_HIDDEN,)}
    shapes["model.embed_tokens.weight"] = (VOCAB, _HIDDEN)
    for i in range(len(LAYERS[family])):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes
