"""Checkpoints with a published shape and random weights: a GGUF like any other, written without holding it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edge_runtime.errors import ConfigError
from export.__main__ import main
from export.checkpoint import expected_shapes, open_checkpoint
from export.model_config import GemmaConfig
from export.synthetic import SHAPES, Shape, config_of, write_synthetic
from export.tokenizer import build_tokenizer_model, vocabulary_difference

TINY = Shape("gemma2", 2, 64, 96, 4, 2, 16, 512, 128, 64)


def quiet(what: str, done: int, total: int) -> None:
    assert done <= total


@pytest.mark.parametrize("shape", [TINY, replace(TINY, family="gemma3", layers=7)], ids=lambda shape: shape.family)
def test_it_opens_as_the_model_it_is_shaped_like(tmp_path: Path, shape: Shape) -> None:
    write_synthetic(tmp_path / "t.gguf", "tiny", shape, quiet)
    checkpoint = open_checkpoint(tmp_path / "t.gguf")
    config = checkpoint.config
    assert (config.family, config.num_layers, config.hidden_size, config.vocab_size) == (
        shape.family,
        shape.layers,
        64,
        512,
    )
    for name, of in expected_shapes(config).items():
        tensor = checkpoint.tensor(name)
        wanted = "F32" if len(of) == 1 else "Q8_0" if name == "embed" else "Q4_0"
        assert (tensor.shape, tensor.kind) == (of, wanted)
        rows = tensor.rows(0, min(of[0], 40))
        assert np.isfinite(rows).all() and (len(of) == 1 or rows.std() > 1e-3)


def test_two_of_one_vocabulary_are_target_and_draft(tmp_path: Path) -> None:
    tokenizers = []
    for seed, layers in enumerate((2, 1)):
        path = tmp_path / f"{layers}.gguf"
        write_synthetic(path, "tiny", replace(TINY, layers=layers), quiet, seed)
        tokenizers.append(build_tokenizer_model(open_checkpoint(path)))
    assert vocabulary_difference(tokenizers[0].pieces, tokenizers[1].pieces) == []
    assert tokenizers[0].vocab_size == TINY.vocab
    assert tokenizers[0].encode("Hi!")


def test_it_is_written_without_holding_it(tmp_path: Path) -> None:
    wide = replace(TINY, hidden=1024, ffn=16384, layers=1)
    tracemalloc.start()
    write_synthetic(tmp_path / "t.gguf", "wide", wide, quiet)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "t.gguf").stat().st_size > 28e6 and peak < 12e6


def test_shapes_are_the_published_ones() -> None:
    """As far as transformers' own defaults say them."""
    two = GemmaConfig.from_hf({"model_type": "gemma2"})
    ours = config_of("x", SHAPES["gemma-2-2b"])
    for key in ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size", "layers",
                "query_scale", "attn_softcap", "final_softcap", "embed_scale"):  # fmt: skip
        assert getattr(ours, key) == getattr(two, key), key
    counts = {name: sum(int(np.prod(of)) for of in expected_shapes(config_of(name, shape)).values())
              for name, shape in SHAPES.items()}  # fmt: skip
    published = {"gemma-2-2b": 2.61, "gemma-2-9b": 9.24, "gemma-3-270m": 0.27, "gemma-3-1b": 1.0,
                 "gemma-3-4b": 3.88, "gemma-3-12b": 11.77, "gemma-3-27b": 27.01}  # fmt: skip
    assert {name: count / 1e9 for name, count in counts.items()} == pytest.approx(published, rel=0.01)


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "t.gguf", "tiny", TINY, quiet)
    with pytest.raises(ConfigError, match="exists"):
        write_synthetic(tmp_path / "t.gguf", "tiny", TINY, quiet)
    result = CliRunner().invoke(main, ["synthetic", "gemma-2-8b", "--output", str(tmp_path / "x.gguf")])
    assert result.exit_code == 2 and "did you mean 'gemma-2-" in result.stderr and result.stderr.count("\n") == 1
