"""NF4: the blocks as bitsandbytes makes them, the engine as transformers computes, and what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bitsandbytes
import numpy as np
import pytest
import safetensors
import tiny_bundle as tiny
import torch
from tiny_models import TinyConfig, run_in_chunks, save_tiny

from edge_runtime.bundle import Manifest, MemoryNeeds, TokenizerEntry, read_manifest
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.torch_nf4 import Nf4Engine
from edge_runtime.engines.torch_nf4_model import _Product, try_product
from edge_runtime.errors import BundleError, CheckpointError, ConfigError
from edge_runtime.loading import LoadSettings, load_bundle, load_of
from edge_runtime.needs import needs
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.model_writer import ModelPlan
from export.nf4 import NF4_LEVELS, nf4
from export.nf4_file import write_nf4_model
from export.recipe import DraftRecipe, ExportRecipe
from export.reference import Reference

CONFIGS = {"gemma2": TinyConfig("gemma2", layers=4), "gemma3": TinyConfig(), "scaled": TinyConfig(rope_factor=8.0)}
SETTINGS = OrtSettings(capacity=100, max_rows=48, max_head_rows=48, threads=0)
Bundle = tuple[Path, Manifest]


def silent(what: str, done: int, total: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("nf4")
    return {name: save_tiny(place / name, config) for name, config in CONFIGS.items()}


def exported(directory: Path, source: Path) -> Bundle:
    checkpoint = open_checkpoint(source)
    recipe = ExportRecipe(source=str(source), output=str(directory), engine="nf4", max_context=128)
    config = checkpoint.config
    plan = ModelPlan("target", checkpoint, config.num_layers, config.vocab_size, None, "exact", "exact")
    directory.mkdir()
    model = write_nf4_model(directory, plan, recipe, silent).model
    manifest = Manifest(
        schema_version=1, name="tiny", family=config.family, models={"target": model},
        tokenizer=TokenizerEntry("tokenizer.model", config.vocab_size, 2, (1,), ""), chat_template=None,
        memory=MemoryNeeds(0, 0, 0), sources=(), recipe={}, notes=(), licence="", licence_file="", exporter="",
        files=(),
    )  # fmt: skip
    return directory, manifest


@pytest.fixture(scope="module")
def bundle(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(tmp_path_factory.mktemp("exported") / "b", sources["gemma3"])


@pytest.mark.parametrize("shape", [(1, 64), (33, 640), (128, 1024)])
def test_blocks_are_those_of_bitsandbytes_bit_for_bit(shape: tuple[int, int]) -> None:
    rows = (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(np.float32)
    rows[0, :32] = 0.0
    rows[-1, :64] = 1e-30
    packed, state = bitsandbytes.functional.quantize_4bit(torch.from_numpy(rows), quant_type="nf4", blocksize=64)
    found = nf4(rows)
    assert np.array_equal(NF4_LEVELS, state.code.numpy())
    assert np.array_equal(found.packed.ravel(), packed.numpy().ravel())
    assert np.array_equal(found.scales.ravel(), state.absmax.numpy())
    assert np.array_equal(found.dequantise(), bitsandbytes.functional.dequantize_4bit(packed, state).numpy())


def test_blocks_of_zeros_and_what_does_not_divide() -> None:
    assert np.array_equal(nf4(np.zeros((2, 128), np.float32)).dequantise(), np.zeros((2, 128)))
    with pytest.raises(CheckpointError, match="do not divide into blocks of 64"):
        nf4(np.zeros((2, 96), np.float32))
    with pytest.raises(CheckpointError, match="not finite"):
        nf4(np.full((1, 64), np.nan, np.float32))


@pytest.mark.parametrize("family", CONFIGS)
def test_the_engine_is_transformers_with_the_rounded_weights(
    sources: dict[str, Path], tmp_path: Path, family: str
) -> None:
    """Past the window, in chunks; caches and table are float16, the products here float32."""
    source, config = sources[family], CONFIGS[family]
    checkpoint, reference = open_checkpoint(source), Reference(open_checkpoint(source))
    for layer in range(config.layers):
        for part in ("q", "k", "v", "o", "gate", "up", "down"):
            name = f"layers.{layer}.{part}"
            rows = checkpoint.tensor(name)
            reference.set_matrix(name, nf4(rows.rows(0, rows.shape[0])).dequantise())
    with torch.no_grad():
        table = reference.model.get_input_embeddings().weight
        table.copy_(table.half().float())
    ids = np.random.default_rng(7).integers(3, config.vocab, 48).astype(np.int64)
    wanted = reference.logits(ids)
    engine = Nf4Engine(*exported(tmp_path / "b", source), "target", SETTINGS)
    for sizes in ([48], [1], [5, 1, 3, 7, 2, 11]):
        found = run_in_chunks(engine, ids, sizes)
        assert np.abs(found - wanted).max() <= 1e-2 * wanted.std(), sizes
    unrounded = Reference(checkpoint).logits(ids)
    assert np.abs(unrounded - wanted).std() > 0.02 * wanted.std(), "the rounding must show"
    engine.close()


def test_float16_products_of_what_passes_float16() -> None:
    """A Gemma 3's activations do: scaled ahead of the product, and back behind it."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((64, 128)) * 0.05).astype(np.float32)
    blocks = nf4(rows)
    packed, scales = torch.from_numpy(blocks.packed), torch.from_numpy(blocks.scales)
    x = torch.from_numpy((rng.standard_normal((3, 128)) * 1e6).astype(np.float32))
    wanted = x @ torch.from_numpy(blocks.dequantise()).T
    plain = _Product(packed, scales, (64, 128), torch.float16, guarded=False)(x)
    assert not torch.isfinite(plain).all()
    found = _Product(packed, scales, (64, 128), torch.float16, guarded=True)(x)
    assert (found - wanted).abs().max() < 5e-3 * wanted.abs().max()


def test_the_file_says_what_it_is(bundle: Bundle) -> None:
    path = bundle[0] / "target.nf4.safetensors"
    with safetensors.safe_open(str(path), framework="numpy") as file:
        assert file.metadata()["format"] == "edge-runtime nf4 1"
        assert json.loads(file.metadata()["config"])["model_type"] == "gemma3_text"
        names = set(file.keys())
        packed = file.get_tensor("layers.0.mlp.down_proj.packed")
        assert packed.dtype == np.uint8 and packed.shape == (64, 64)
        assert file.get_tensor("embed_tokens.weight").dtype == np.float16
    assert {"norm.weight", "layers.5.self_attn.q_proj.scales", "layers.0.self_attn.q_norm.weight"} <= names


def test_a_bundle_by_a_recipe_with_a_draft_of_its_own(tmp_path: Path) -> None:
    draft = DraftRecipe(layers=4, vocab_rows=448)
    recipe = ExportRecipe(
        source=str(tiny.checkpoint()), output=str(tmp_path / "b"), engine="nf4", max_context=256, draft=draft
    )
    build_bundle(recipe, silent)
    manifest = read_manifest(tmp_path / "b")
    assert [model.dialect for model in manifest.models.values()] == ["nf4", "nf4"]
    settings = LoadSettings(context=128, drafter="draft", max_draft_tokens=3)
    planned = needs(manifest, load_of(manifest, settings))
    assert planned.models[0].weights == manifest.models["target"].graphs[0].stored
    loaded = load_bundle(tmp_path / "b", settings)
    try:
        assert loaded.drafting["draft"].info.vocab_size == 448
        texts = []
        for drafter in ("none", "draft"):
            decoder = loaded.decoder(drafter)  # type: ignore[arg-type]
            params = SamplingParams(temperature=0.0)
            ids = np.array(loaded.tokenizer.encode("The licence says"), np.int64)
            session = Session(loaded.target.info, ids, params, max_tokens=24)
            decode(decoder, session)
            texts.append(session.tokens.tolist())
        assert len(texts[0]) == len(texts[1]) == len(ids) + 24
    finally:
        loaded.close()
    with pytest.raises(ConfigError, match="is for backend nf4, not onnxruntime"):
        load_bundle(tmp_path / "b", replace(settings, backend="onnxruntime"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"precision": "int4"}, "precisions of its own"),
        ({"half": True}, "precisions of its own"),
        ({"head_precision": "int8"}, "precisions of its own"),
        ({"draft": DraftRecipe(layers=2, precision="int8")}, "precisions of its own"),
        ({"mtp": "x"}, "no self_draft, mtp or heads"),
    ],
)
def test_a_recipe_ignores_nothing_in_silence(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ExportRecipe(source="x", output="y", engine="nf4", **keys)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(SETTINGS, deterministic=True), "no deterministic mode"),
        (replace(SETTINGS, capacity=129), "holds 1 to 128"),
        (replace(SETTINGS, device="cuda"), "this torch has no CUDA device"),
    ],
)
def test_settings_that_it_cannot_hold(bundle: Bundle, settings: OrtSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Nf4Engine(*bundle, "target", settings)


def test_without_its_packages_it_says_which(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"pip install 'edge-runtime\[nf4\]'"):
        Nf4Engine(*bundle, "target", SETTINGS)


def test_a_library_without_kernels_is_found_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    try_product("cpu")

    def broken(*given: Any) -> Any:
        raise RuntimeError("no kernel image is available\nmore")

    monkeypatch.setattr(bitsandbytes.functional, "dequantize_4bit", broken)
    with pytest.raises(ConfigError, match=r"runs no 4-bit product on cpu: no kernel image is available$"):
        try_product("cpu")
    monkeypatch.setattr(bitsandbytes.functional, "dequantize_4bit", lambda packed, state: torch.zeros(64, 64))
    with pytest.raises(ConfigError, match="wrongly"):
        try_product("cpu")


def test_a_damaged_file_is_one_line(bundle: Bundle, tmp_path: Path) -> None:
    directory, manifest = bundle
    name = "target.nf4.safetensors"
    whole = (directory / name).read_bytes()
    other = b"x" * len(b"edge-runtime nf4 1")
    for data, words in (
        (whole[: len(whole) // 2], "does not load"),
        (whole.replace(b"edge-runtime nf4 1", other, 1), "export the bundle again"),
        (whole.replace(b"layers.0.mlp.up_proj.scales", b"layers.0.mlp.up_prox.scales", 1), "does not load"),
        (whole.replace(b"layers.0.input_layernorm", b"layers.0.inputtlayernorm", 1), "does not load"),
        (b"", "does not load"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BundleError, match=words) as caught:
            Nf4Engine(tmp_path, manifest, "target", SETTINGS)
        assert "\n" not in str(caught.value)
    layers = manifest.models["target"].layers[:-1]
    model = replace(manifest.models["target"], layers=layers)
    with pytest.raises(BundleError, match="and the manifest says"):
        Nf4Engine(directory, replace(manifest, models={"target": model}), "target", SETTINGS)


def test_settings_that_no_model_has_are_one_line(bundle: Bundle, tmp_path: Path) -> None:
    directory, manifest = bundle
    name = "target.nf4.safetensors"
    whole = (directory / name).read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + size]), whole[8 + size :]
    settings = json.loads(header["__metadata__"]["config"])
    edits: list[Any] = [[], {"model_type": ["gemma2"]}, {"model_type": {}}]
    edits += [settings | {"num_hidden_layers": count} for count in (0, 1 << 40, "two", None)]
    edits += [settings | {key: given} for key in ("hidden_size", "num_attention_heads", "head_dim", "layer_types")
              for given in (0, -1, 1 << 62, "x", [], {})]  # fmt: skip
    for edit in (*(json.dumps(one) for one in edits), "[" * 100_000):
        header["__metadata__"]["config"] = edit
        text = json.dumps(header).encode()
        (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text + data)
        with pytest.raises(BundleError) as caught:
            Nf4Engine(tmp_path, manifest, "target", SETTINGS)
        assert str(caught.value).isprintable()
