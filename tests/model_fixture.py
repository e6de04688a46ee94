"""The real Gemma 3 270M of the demo, and its tokenizer as this project and as transformers have it. Knows no test."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.text.tokenizer import Tokenizer
from export.checkpoint import Checkpoint, open_checkpoint
from export.demo import PACKAGE, demo_checkpoint
from export.tokenizer import TokenizerModel, build_tokenizer_model


@cache
def gguf_path() -> Path:
    """Joined once into the user's cache and checked by its sha256.

    Without its package a test fails, lest it be skipped for ever; ``EDGE_TESTS_OFFLINE=1`` skips it.
    """
    if importlib.util.find_spec(PACKAGE) is None and os.environ.get("EDGE_TESTS_OFFLINE") == "1":
        pytest.skip(f"{PACKAGE} is not installed and EDGE_TESTS_OFFLINE=1")
    return demo_checkpoint()


@cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(gguf_path())


@cache
def tokenizer_model() -> TokenizerModel:
    return build_tokenizer_model(checkpoint())


def load_tokenizer(model: bytes) -> Tokenizer:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.model"
        path.write_bytes(model)
        return Tokenizer(path)


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(tokenizer_model().model)


@cache
def transformers_gemma() -> Any:
    """A tokenizer as transformers sets one up for Gemma, with merges that it finds by itself.

    Not by ``gguf_file=``: transformers 5.24 then gives runs of spaces ids behind the vocabulary.
    """
    import transformers

    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "tokenizer.model").write_bytes(tokenizer_model().model)
        return transformers.GemmaTokenizer.from_pretrained(directory)


@cache
def transformers_tokenizer() -> Any:
    """Its ``tokenizers.Tokenizer``."""
    return transformers_gemma().backend_tokenizer
