"""What stands beside the weights of a Hugging Face checkpoint: ``config.json`` of every family, the index of shards."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from edge_runtime.errors import CheckpointError
from export.assistant_checkpoint import is_assistant
from export.checkpoint import expected_shapes as tensor_shapes
from export.gemma4_config import AssistantConfig
from export.model_config import GemmaConfig
from export.parallel_heads import HeadsConfig, load_heads
from export.parallel_heads import expected_shapes as shapes_of_heads
from export.safetensors_file import open_shards, read_json
from export.training.checkpoint import DrafterConfig, expected_shapes, is_drafter, load_drafter

from ..gemma_seeds import CONFIG, safetensors_file, safetensors_gemma, safetensors_header
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = CheckpointError
NAME = "config.json"
INDEX = "model.safetensors.index.json"
_SHARD = "part.safetensors"
_FULL = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
_GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text", "hidden_size": 32, "num_hidden_layers": 4, "num_kv_shared_layers": 1, "vocab_size": 12,
    "vocab_size_per_layer_input": 12, "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}},
}  # fmt: skip
_ASSISTANT: dict[str, Any] = {
    "model_type": "gemma4_assistant", "backbone_hidden_size": 64, "use_ordered_embeddings": True, "num_centroids": 4,
    "centroid_intermediate_top_k": 2, "text_config": {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2,
    "hidden_size_per_layer_input": 0, "num_attention_heads": 2, "num_key_value_heads": 1},
}  # fmt: skip
DRAFTER: dict[str, Any] = {
    "model_type": "edge_mtp", "backbone_hidden_size": 8, "hidden_size": 8, "heads": 2, "kv_heads": 1, "head_dim": 4,
    "ffn": 8, "rope_theta": 1e4, "rope_scale": 1.0, "rms_eps": 1e-6, "query_scale": 0.5, "attn_softcap": None,
    "final_softcap": None, "window": 8, "qk_norm": True, "embed_scale": 2.0, "head_rows": 4, "vocab_size": 12,
}  # fmt: skip
HEADS: dict[str, Any] = {"model_type": "edge_heads", "hidden_size": 8, "heads": 2, "inner": 4, "rms_eps": 1e-6,
                          "embed_scale": 2.0, "final_softcap": None, "head_rows": 4, "vocab_size": 12}  # fmt: skip
_KNOWN = ("gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_unified", "Gemma2ForCausalLM", "text_config",
          "layer_types", "rope_parameters", "rope_scaling", "per_layer_config", "eos_token_id", "quantization_config",
          "weight_map", "proportional", "linear", "global_head_dim", "attention_k_eq_v",
          "use_double_wide_mlp")  # fmt: skip


def prepare(place: Path) -> None:
    """Weights that fit the seeds, each beside a name for the one input: ``config.json``, or the index of shards."""
    drafter, heads = (dict(tree) for tree in (DRAFTER, HEADS))
    del drafter["model_type"], heads["model_type"]
    for beside, name, weights in (
        ("drafter", NAME, _rows(expected_shapes(DrafterConfig(**drafter)))),
        ("heads", NAME, _rows(shapes_of_heads(HeadsConfig(**heads)))),
        ("sharded", INDEX, safetensors_gemma("F16")),
    ):  # fmt: skip
        (place / beside).mkdir()
        (place / beside / (_SHARD if name == INDEX else "model.safetensors")).write_bytes(weights)
        (place / beside / name).symlink_to(place / NAME)


def _rows(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """With the ids of four rows of a head."""
    ids = struct.pack("<4q", 0, 3, 4, 11)
    header = safetensors_header({"token_ids": (4,)}, "I64")[0]
    others, nbytes = safetensors_header(shapes)
    for entry in others.values():
        if "data_offsets" in entry:
            entry["data_offsets"] = [len(ids) + at for at in entry["data_offsets"]]
    return safetensors_file(json.dumps(header | others).encode(), ids + bytes(nbytes))


def seeds() -> list[bytes]:
    nested = {"model_type": "gemma3", "text_config": CONFIG | {"rope_parameters": {"full_attention": _FULL}}}
    gemma2 = CONFIG | {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window_pattern": 2}
    layered = _GEMMA4 | {"per_layer_config": {"1": {"head_dim": 8, "num_key_value_heads": 2}}}
    index = {"metadata": {"total_size": 1}, "weight_map": {"model.norm.weight": _SHARD}}
    trees = (CONFIG, nested, gemma2, _GEMMA4, layered, _ASSISTANT, DRAFTER, HEADS, index)
    return [json.dumps(tree).encode() for tree in trees]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    given = judge.attempt(read_json, path)
    if given is None:
        return
    place = path.parent
    judge.attempt(is_assistant, place)
    judge.attempt(is_drafter, place)
    judge.either([
        (lambda one: tensor_shapes(GemmaConfig.from_hf(one, one, "tiny")), given),
        (lambda one: tensor_shapes(AssistantConfig.from_hf(one, "tiny").text), given),
        (_drafted, place), (open_shards, place / "sharded"),
    ])  # fmt: skip


def _drafted(place: Path) -> None:
    """A graph is made of it: no number of it may be none."""
    drafter = place / "drafter"
    config = load_drafter(drafter).config if is_drafter(drafter) else load_heads(place / "heads").config
    numbers = [value for value in asdict(config).values() if isinstance(value, float)]
    assert all(0.0 < value < math.inf for value in numbers), config
