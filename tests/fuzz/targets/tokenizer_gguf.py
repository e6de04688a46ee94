"""The tokenizer of a GGUF: pieces, scores, types and special ids out of its metadata, as a sentencepiece model;
its chat template."""

from __future__ import annotations

from pathlib import Path
from random import Random

from edge_runtime.errors import CheckpointError
from export.chat_template import template_for
from export.checkpoint import open_checkpoint
from export.tokenizer import build_tokenizer_model

from ..gemma_seeds import ALL_PIECES, gguf_gemma
from ..gguf_bytes import spoilt_metadata
from ..judge import Judge

REFUSAL = CheckpointError
NAME = "input.gguf"


def seeds() -> list[bytes]:
    return [gguf_gemma(8, ALL_PIECES).packed()]


def mutate(data: bytes, rng: Random) -> bytes:
    return spoilt_metadata(data, rng, b"tokenizer.")


def read(judge: Judge, path: Path) -> None:
    checkpoint = judge.attempt(open_checkpoint, path)
    if checkpoint is not None:
        judge.attempt(build_tokenizer_model, checkpoint)
        judge.attempt(template_for, checkpoint)
