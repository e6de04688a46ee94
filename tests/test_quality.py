"""What 4 bits cost, measured: the figures mean what they say, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tiny_models import TinyConfig, save_tiny_checkpoint

from export.__main__ import main
from export.checkpoint import open_checkpoint
from export.quality import SCHEMES, Scheme, measure_quality
from export.reference import Reference
from export.tokenizer import build_tokenizer_model

TEXT = "One licence says that all copies of a program may be given away; another says that none may."


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Blocks of 128 do not divide its rows of 64.
    return save_tiny_checkpoint(tmp_path_factory.mktemp("quality") / "hf", TinyConfig("gemma2", layers=2))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["quality", *map(str, arguments)])


def test_the_table_and_its_json(source: Path) -> None:
    result = run(source, "--tokens", 100, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["tokens"], report["context"], report["text"]) == (100, 512, "GPL-3")
    assert report["calibration_tokens"] == 4096
    assert report["left_out"] == ["int4-128", "int4-128-plain"]
    rows = {row["scheme"]: row for row in report["rows"]}
    assert list(rows) == [scheme.name for scheme in SCHEMES if scheme.name not in report["left_out"]]
    assert rows["fp16"]["kl"] < 1e-5 < rows["int4-cpu"]["kl"]
    assert rows["fp16"]["nll"] == pytest.approx(report["nll"], abs=1e-3)
    assert rows["int4-64"]["kl"] < rows["int4-64-plain"]["kl"], "calibration must help"
    for row in rows.values():
        assert row["kl"] >= 0 and row["kl_error"] is None and 0 <= row["top1_agreement"] <= 1


def test_figures_are_those_of_the_reference(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    result = run(source, "--text", tmp_path / "text", "--tokens", 9999, "--scheme", "fp16", "--scheme", "nf4", "--json")
    report = json.loads(result.stdout)
    checkpoint = open_checkpoint(source)
    ids = build_tokenizer_model(checkpoint)
    tokens = np.array([ids.bos_id, *ids.encode(TEXT)], np.int64)
    logits = Reference(checkpoint).logits(tokens[:-1]).astype(np.float64)
    laws = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = -laws[np.arange(len(laws)), tokens[1:]].mean()
    assert report["tokens"] == len(tokens) - 1 and report["calibration_tokens"] == 0
    assert report["nll"] == pytest.approx(wanted, abs=1e-4)
    assert [row["scheme"] for row in report["rows"]] == ["fp16", "nf4"]


def test_what_is_shown(source: Path) -> None:
    shown = run(source, "--tokens", 40, "--scheme", "fp16", "--scheme", "int4-128").stdout
    assert "40 tokens of GPL-3" in " ".join(shown.split()) and "fp16: float16" in shown
    assert "int4-128: left out" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheme", "int5"), "'int5' is none of fp16, int4-cpu"),
        (("--calibration", "none"), "leave the calibrated schemes out"),
        (("--calibration", "/none"), "/none"),
    ],
)
def test_mistakes_cost_one_line(source: Path, options: tuple[str, ...], words: str) -> None:
    result = run(source, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr and result.stderr.count("\n") == 1


def test_an_empty_text_has_nothing_to_predict(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("")
    result = run(source, "--text", tmp_path / "text")
    assert result.exit_code == 2 and "no tokens to predict" in result.stderr


def test_contexts_are_apart(source: Path) -> None:
    """Each piece of a long text begins anew: its mean is over pieces, whose spread is told."""
    fp16 = [Scheme("nf4", "nf4", "", 64)]
    report = measure_quality(open_checkpoint(source), lambda *_: None, tokens=600, schemes=fp16)
    assert report.tokens == 600 and report.rows[0].kl_error is not None and report.rows[0].kl_error > 0


def test_bits_of_a_weight() -> None:
    bits = {scheme.name: scheme.bits for scheme in SCHEMES}
    assert bits == {
        "fp16": 16.0, "int4-cpu": 5.125, "int4-64": 4.25, "int4-128": 4.125, "int4-64-plain": 4.25,
        "int4-128-plain": 4.125, "nf4": 4.5,
    }  # fmt: skip
