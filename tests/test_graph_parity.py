"""The exported graphs against transformers, on tiny random models: the arithmetic, not the weights, is tested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tiny_models import TinyConfig, export_tiny, run_in_chunks, save_tiny, tiny_engine

from edge_runtime.engines.protocol import HeadRequest, StepInput
from export.checkpoint import open_checkpoint
from export.reference import Reference

CONFIGS = {
    "gemma3-gqa2": TinyConfig(),
    "gemma3-mqa": TinyConfig(kv_heads=1),
    "gemma3-mha": TinyConfig(kv_heads=4),
    "gemma3-scaled-rope": TinyConfig(rope_factor=8.0),
    "gemma3-vocab-not-by-64": TinyConfig(vocab=500),
    "gemma3-wide-head": TinyConfig(vocab=8192),
    "gemma2-gqa2": TinyConfig("gemma2", layers=4),
    "gemma2-mqa": TinyConfig("gemma2", layers=3, kv_heads=1),
    "gemma2-mha": TinyConfig("gemma2", layers=2, kv_heads=4),
}


@pytest.fixture(scope="module", params=CONFIGS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyConfig]:
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny(folder, CONFIGS[request.param]), CONFIGS[request.param]


def _ids(config: TinyConfig, count: int = 48) -> np.ndarray:
    return np.random.default_rng(7).integers(3, config.vocab, count).astype(np.int64)


@pytest.mark.parametrize("sizes", [[48], [1], [5, 1, 3, 7, 2, 11], [16]], ids=str)
def test_fp32_equals_transformers_past_the_window(
    tiny: tuple[Path, TinyConfig], tmp_path: Path, sizes: list[int]
) -> None:
    source, config = tiny
    ids = _ids(config)
    assert len(ids) > 4 * config.window
    wanted = Reference(open_checkpoint(source)).logits(ids)
    engine = tiny_engine(*export_tiny(tmp_path, source, precision="fp32"), max_rows=48, max_head_rows=48)
    found = run_in_chunks(engine, ids, sizes)
    assert np.abs(found - wanted).max() <= 1e-3
    assert np.std(wanted) > 0.05, "a model whose logits are all alike proves nothing"


def test_padding_rows_of_the_vocabulary_are_dropped(tiny: tuple[Path, TinyConfig], tmp_path: Path) -> None:
    source, config = tiny
    vocab = config.vocab - 20
    engine = tiny_engine(*export_tiny(tmp_path, source, precision="fp32", vocab_size=vocab), max_head_rows=12)
    found = run_in_chunks(engine, _ids(config, 12) % vocab, [12])
    wanted = Reference(open_checkpoint(source)).logits(_ids(config, 12) % vocab)
    assert found.shape == (12, vocab)
    assert np.abs(found - wanted[:, :vocab]).max() <= 1e-3


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_smaller_precisions_stay_close(tiny: tuple[Path, TinyConfig], tmp_path: Path, precision: str) -> None:
    source, config = tiny
    ids = _ids(config)
    wanted = Reference(open_checkpoint(source)).logits(ids)
    engine = tiny_engine(*export_tiny(tmp_path, source, precision=precision), max_rows=48, max_head_rows=48)
    found = run_in_chunks(engine, ids, [16])
    allowed = {"fp16": 0.02, "int8": 0.1, "int4": 0.6}[precision]
    assert np.abs(found - wanted).std() <= allowed * wanted.std()


def test_a_screened_head_finds_what_the_full_head_finds(tmp_path: Path) -> None:
    config = TinyConfig(vocab=65536, layers=2)
    source = save_tiny(tmp_path / "hf", config)
    directory, manifest = export_tiny(tmp_path / "b", source, precision="int8", accuracy_level=1)
    ids = _ids(config, 64)
    gathered = ids[::-1].copy()
    heads = {}
    for way in ("full", "screened"):
        engine = tiny_engine(directory, manifest, max_rows=64, max_head_rows=64, head=way)
        output = engine.forward(StepInput(0, ids, 0, HeadRequest(0, 64, 0.8, gathered))).head
        assert output is not None and output.gathered is not None
        rows = np.stack([engine.logits(row) for row in range(64)])
        heads[way] = (output, rows)
    (full, full_rows), (screened, screened_rows) = heads["full"], heads["screened"]
    assert np.array_equal(full.argmax, screened.argmax)
    assert np.array_equal(full.candidate_ids[:, :8], screened.candidate_ids[:, :8])
    assert np.allclose(full.candidate_logits[:, :8], screened.candidate_logits[:, :8], atol=1e-3)
    # Rows, gathered logits and log-sum-exp must be of one law, or an accepted draft would bend the text's.
    assert screened.gathered is not None
    assert np.allclose(screened.gathered, screened_rows[np.arange(64), gathered], atol=1e-4)
    best = full.argmax.copy()
    output = engine.forward(StepInput(0, ids, 0, HeadRequest(0, 64, 0.8, best))).head
    assert output is not None and np.allclose(output.gathered, full.candidate_logits[:, 0], atol=1e-3)
    assert np.abs(full.logsumexp - screened.logsumexp).max() < 0.05
    # A mended row holds the exact logits of the best and agrees with its own log-sum-exp.
    best = full.candidate_ids[:, :8]
    picked = [np.take_along_axis(rows, best, 1) for rows in (full_rows, screened_rows)]
    assert np.allclose(*picked, atol=1e-3)
    lse = np.log(np.exp(0.8 * screened_rows.astype(np.float64)).sum(axis=1))
    assert np.allclose(lse, screened.logsumexp, atol=1e-3)


def test_before_1_24_a_window_is_asked_for_one_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime 1.23 looks one token further back on the CPU; the graphs for it are the same but for that."""
    source = save_tiny(tmp_path / "checkpoint", TinyConfig())
    directory, manifest = export_tiny(tmp_path / "bundle", source, precision="fp32")
    model = manifest.models["target"]
    assert list(model.narrow) == [model.body]
    windows = {}
    for name in (model.body, model.narrow[model.body]):
        nodes = onnx.load(directory / name, load_external_data=False).graph.node
        found = [one.i for node in nodes for one in node.attribute if one.name == "local_window_size"]
        windows[name] = found
    assert windows[model.narrow[model.body]] == [window - 1 for window in windows[model.body]] != []
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    assert set(tiny_engine(directory, manifest)._sessions.by_file) >= {model.narrow[model.body]}
    monkeypatch.setattr(onnxruntime, "__version__", "1.24.0")
    assert model.narrow[model.body] not in tiny_engine(directory, manifest)._sessions.by_file
