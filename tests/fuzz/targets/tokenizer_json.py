"""``tokenizer.json`` as a sentencepiece model, and its neighbours with settings and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from edge_runtime.errors import CheckpointError
from export.chat_template import template_for
from export.checkpoint import Checkpoint, open_checkpoint
from export.tokenizer import build_tokenizer_model

from ..gemma_seeds import CONFIG, safetensors_gemma, tokenizer_json
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = CheckpointError
NAME = "tokenizer.json"
_KNOWN = ("<bos>", "<eos>", "<pad>", "<unk>", "a", "b", "ab", "id", "content", "special", "BPE", "merges", "vocab",
          "chat_template", "added_tokens_decoder", "{{ bos_token }}")  # fmt: skip
_OPEN: dict[str, Checkpoint] = {}


def prepare(place: Path) -> None:
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (place / "model.safetensors").write_bytes(safetensors_gemma("F16"))
    (place / "tokenizer_config.json").symlink_to(NAME)
    _OPEN["it"] = open_checkpoint(place)


def seeds() -> list[bytes]:
    settings = {"added_tokens_decoder": {"4": {"content": "<start_of_turn>", "special": True}}}
    named = [{"name": "default", "template": "{{ bos_token }}"}, {"name": "tools", "template": "x"}]
    trees = (tokenizer_json(), settings | {"chat_template": "{{ bos_token }}{% if messages %}a{% endif %}"},
             settings | {"chat_template": named},
             {"chat_template": "{{ " + "(" * 300 + "1" + ")" * 300 + " }}"})  # fmt: skip
    return [json.dumps(tree).encode() for tree in trees]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    judge.attempt(build_tokenizer_model, _OPEN["it"])
    judge.attempt(template_for, _OPEN["it"])
