"""``tokenizer.model``: its pieces as export reads and marks them, and the tokenizer of the runtime over the same bytes.

Sentencepiece itself parses these bytes, in C++: what it does to the process is looked at here too.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

from edge_runtime.errors import BundleError, CheckpointError, InputError
from edge_runtime.text.tokenizer import Tokenizer
from export.checkpoint import Checkpoint, open_checkpoint
from export.tokenizer import build_tokenizer_model

from ..gemma_seeds import CONFIG, safetensors_gemma, tokenizer_json
from ..judge import Judge
from .wire import mutate as mutate_message

REFUSAL = (BundleError, CheckpointError, InputError)
NAME = "tokenizer.model"
_TEXT = "ab \u2581 a\n<start_of_turn>c\x00\U0001f4a5"
_OPEN: dict[str, Checkpoint] = {}


def prepare(place: Path) -> None:
    (place / "tokenizer_config.json").write_text('{"added_tokens_decoder": {}}', encoding="utf-8")
    _OPEN["it"] = _checkpoint(place)


def _checkpoint(place: Path) -> Checkpoint:
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (place / "model.safetensors").write_bytes(safetensors_gemma("F16"))
    return open_checkpoint(place)


def seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "tokenizer.json").write_text(json.dumps(tokenizer_json()), encoding="utf-8")
        return [build_tokenizer_model(_checkpoint(place)).model]


def mutate(data: bytes, rng: Random) -> bytes:
    return mutate_message(data, rng)


def read(judge: Judge, path: Path) -> None:
    judge.attempt(build_tokenizer_model, _OPEN["it"])
    tokenizer = judge.attempt(Tokenizer, path)
    if tokenizer is not None:
        judge.attempt(tokenizer.encode, _TEXT)
        judge.attempt(_rendered, tokenizer)


def _rendered(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(_TEXT, parse_special=True)
    tokenizer.longest_piece()
    for token in ids:
        tokenizer.piece_bytes(token)
