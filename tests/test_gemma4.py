"""Gemma 4's text graph against transformers, on tiny random models: the arithmetic, not the weights, is tested."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_runs import watched_export
from tiny_bundle import tiny_tokenizer
from tiny_gemma4 import TinyGemma4, save_tiny_gemma4
from tiny_models import export_tiny, run_in_chunks, tiny_engine

from edge_runtime.bundle import read_manifest
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.errors import CheckpointError
from edge_runtime.resident import resident
from export.build import build_bundle
from export.chat_template import FAMILY_TEMPLATES, template_for
from export.checkpoint import open_checkpoint
from export.recipe import ExportRecipe
from export.reference import Reference
from export.tokenizer import build_tokenizer_model

CONFIGS = {
    "per-layer-and-shared": TinyGemma4(),
    "one-kv-head": TinyGemma4(kv_heads=1, wide=False),
    "keys-are-values": TinyGemma4(per_layer=0, shared=0, keys_are_values=True, global_kv_heads=1),
    "unified": TinyGemma4(per_layer=0, shared=0, unified=True),
}


@pytest.fixture(scope="module", params=CONFIGS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyGemma4]:
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny_gemma4(folder, CONFIGS[request.param]), CONFIGS[request.param]


def _ids(count: int = 48) -> np.ndarray:
    return np.random.default_rng(7).integers(3, 512, count).astype(np.int64)


def test_fp32_equals_transformers_past_the_window(tiny: tuple[Path, TinyGemma4], tmp_path: Path) -> None:
    source, config = tiny
    ids = _ids()
    assert len(ids) > 4 * config.window
    wanted = Reference(open_checkpoint(source)).logits(ids)
    directory, manifest = export_tiny(tmp_path, source, precision="fp32")
    assert len(manifest.model("target").layers) == 6 - config.shared, "a layer that borrows owns no cache"
    engine = tiny_engine(directory, manifest, max_rows=48, max_head_rows=48)
    for sizes in ([48], [1], [5, 1, 3, 7, 2, 11]):
        assert np.abs(run_in_chunks(engine, ids, sizes) - wanted).max() <= 1e-3
    assert np.std(wanted) > 0.05, "a model whose logits are all alike proves nothing"


def test_rollback_reaches_borrowed_keys(tmp_path: Path) -> None:
    """What a rejected draft left in a cache is seen by no layer, the ones that borrow it included."""
    ids = _ids()
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4())
    engine = tiny_engine(*export_tiny(tmp_path / "b", source, precision="fp32"), slots=2, max_rows=48, max_head_rows=48)
    wanted = run_in_chunks(engine, ids, [48])
    engine.forward(StepInput(1, ids[:20], 0, None))
    engine.forward(StepInput(1, np.full(12, 5, np.int64), 20, None))
    engine.forward(StepInput(0, ids[::-1], 0, None))
    engine.forward(StepInput(1, ids[20:], 20, HeadRequest(0, 28)))
    found = np.stack([engine.logits(row) for row in range(28)])
    assert np.abs(found - wanted[20:]).max() <= 1e-4


def test_alternatives_are_told_apart_by_layers_that_borrow(tmp_path: Path) -> None:
    ids = _ids()
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4())
    directory, manifest = export_tiny(tmp_path / "b", source, precision="fp32", trees=True)
    engine = tiny_engine(directory, manifest, max_rows=48, max_head_rows=48)
    wanted = run_in_chunks(engine, ids, [48])
    run_in_chunks(engine, ids[:30], [30])
    rows = np.array([ids[30], 7, ids[31], 9], np.int64)
    engine.forward(StepInput(0, rows, 30, HeadRequest(0, 4), parents=np.array([-1, -1, 0, 1])))
    for row, place in ((0, 30), (2, 31)):
        assert np.abs(engine.logits(row) - wanted[place]).max() <= 1e-4


@pytest.mark.parametrize(("precision", "allowed"), [("fp16", 0.02), ("int8", 0.15)])
def test_smaller_precisions_stay_close(tmp_path: Path, precision: str, allowed: float) -> None:
    ids = _ids()
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4(per_layer=32))
    wanted = Reference(open_checkpoint(source)).logits(ids)
    engine = tiny_engine(*export_tiny(tmp_path / "b", source, precision=precision), max_rows=48, max_head_rows=48)
    found = run_in_chunks(engine, ids, [16])
    assert np.abs(found - wanted).std() <= allowed * wanted.std()


def test_rows_do_not_depend_on_each_other_in_the_deterministic_mode(tmp_path: Path) -> None:
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4(per_layer=32))
    directory, manifest = export_tiny(tmp_path / "b", source, precision="int8")
    engine = tiny_engine(directory, manifest, max_rows=48, max_head_rows=48, deterministic=True)
    assert np.array_equal(run_in_chunks(engine, _ids(), [48]), run_in_chunks(engine, _ids(), [1]))


def test_the_text_part_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    """With what published ones hold beside it: towers, and keys of layers that borrow theirs."""
    from safetensors.numpy import load_file, save_file

    plain = save_tiny_gemma4(tmp_path / "plain", TinyGemma4())
    (file,) = plain.glob("*.safetensors")
    tensors = load_file(file)
    towers = {"model.vision_tower.encoder.layers.0.weight": np.zeros(3, np.int8), "model.embed_audio.w": np.zeros(1)}
    towers |= {
        f"model.layers.5.self_attn.{name}.weight": np.zeros((64, 64), np.float32) for name in ("k_proj", "v_proj")
    }
    tensors = {name.replace("model.layers", "model.language_model.layers"): v for name, v in (tensors | towers).items()}
    for name in [n for n in tensors if n.startswith(("model.embed_tokens", "model.norm", "model.per_layer"))]:
        tensors[name.replace("model.", "model.language_model.")] = tensors.pop(name)
    folder = tmp_path / "multimodal"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    text = json.loads((plain / "config.json").read_text())
    config = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config | {"text_config": text}))
    logits = []
    for source in (plain, folder):
        directory, manifest = export_tiny(tmp_path / f"{source.name}-b", source, precision="fp32")
        logits.append(run_in_chunks(tiny_engine(directory, manifest), _ids(16), [16]))
        assert any("images and sound" in note for note in manifest.notes) == (source is folder)
    assert np.array_equal(*logits)


def test_turns_of_gemma4_end_a_text_and_cannot_be_spelt(tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4())
    model: Any = vars(sentencepiece_model_pb2)["ModelProto"]()
    model.ParseFromString(tiny_tokenizer())
    for old, new in (("<start_of_turn>", "<|turn>"), ("<end_of_turn>", "<turn|>")):
        (piece,) = (piece for piece in model.pieces if piece.piece == old)
        piece.piece, piece.type = new, 4  # user-defined, as Google's own models have it
    (source / "tokenizer.model").write_bytes(model.SerializeToString())
    checkpoint = open_checkpoint(source)
    made = build_tokenizer_model(checkpoint)
    assert made.eos_ids == (1, 106, made.pieces.index("<turn|>"))
    assert {made.pieces.index("<|turn>"), made.pieces.index("<turn|>")} <= set(made.control_ids)
    assert template_for(checkpoint) == FAMILY_TEMPLATES["gemma4"]


def test_a_mixture_of_experts_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4())
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"enable_moe_block": True, "num_experts": 4}))
    with pytest.raises(CheckpointError, match=r"mixture of experts \(26B-A4B\) is not supported"):
        build_bundle(ExportRecipe(source=str(source), output=str(tmp_path / "b"), precision="int8"), _silent)
    assert not (tmp_path / "b").exists()


def test_a_per_layer_table_is_never_held_whole(tmp_path: Path) -> None:
    """A table of 100 MB: neither its export nor an engine that reads rows of it holds it in memory."""
    source = save_tiny_gemma4(tmp_path / "hf", TinyGemma4(per_layer=32))
    (source / "tokenizer.model").write_bytes(tiny_tokenizer())
    _widen_table(source, size=8192)
    table = 4 * 512 * 6 * 8192
    run = watched_export(source, tmp_path / "b", "--precision", "fp32", "--max-context", "64")
    assert run.returncode == 0, run.stderr
    assert run.peak_anonymous < table, "of which imports are a third, and slabs another"
    manifest = read_manifest(run.output)
    assert manifest.memory.weights > table
    before = resident().anonymous
    engine = tiny_engine(run.output, manifest, capacity=64, max_rows=4)
    engine.forward(StepInput(0, _ids(4), 0, HeadRequest(3, 4)))
    assert resident().anonymous - before < table / 4


def _widen_table(source: Path, size: int) -> None:
    """The per-layer tensors of another ``size``, zeros in a hole of the file: they cost no disk."""
    from safetensors.numpy import load_file

    (file,) = source.glob("*.safetensors")
    header: dict[str, Any] = {}
    data = b""
    tensors = load_file(file)
    for name, value in tensors.items():
        if "per_layer" not in name:
            header[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": [len(data), len(data) + value.nbytes]}
            data += value.tobytes()
    end = len(data)
    for name, value in tensors.items():
        if name not in header:
            shape = [n // 32 * size if n in (32, 6 * 32) else n for n in value.shape]
            begin, end = end, end + 4 * int(np.prod(shape))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(text) + end)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_size_per_layer_input": size}))


def _silent(what: str, done: int, total: int) -> None:
    pass
