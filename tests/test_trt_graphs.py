"""Graphs for TensorRT on ONNX Runtime's CPU provider: the numbers of the other dialect, with the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tiny_bundle
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tiny_drafters import Oracle, random_drafter, save
from tiny_models import TinyConfig, export_tiny, run_in_chunks, save_tiny

from edge_runtime.bundle import MTP, SELF, TARGET, Manifest, read_manifest
from edge_runtime.engines.opening import open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, Ids, StepInput
from edge_runtime.errors import BundleError, ConfigError
from edge_runtime.schema import structure
from edge_runtime.soundness import refuse_unsound
from export.__main__ import main
from export.activations import largest_activations
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.dialects.trt import HEADROOM
from export.recipe import DraftRecipe, ExportRecipe, SelfDraftRecipe
from export.twin import write_twin
from export.twin_parity import TwinParity, compare_twins, twin_rows

CONFIGS = {
    "gemma3-gqa2": TinyConfig(),
    "gemma3-mha": TinyConfig(kv_heads=4, layers=1),
    "gemma3-scaled-rope": TinyConfig(rope_factor=8.0, kv_heads=1),
    "gemma2-gqa2": TinyConfig("gemma2", layers=4),
    "gemma2-mqa": TinyConfig("gemma2", layers=2, kv_heads=1),
}


@pytest.fixture(scope="module", params=CONFIGS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp(request.param), CONFIGS[request.param])


def some_ids(count: int = 48) -> Ids:
    """Past four windows."""
    return np.random.default_rng(7).integers(3, 500, count).astype(np.int64)


def opened(
    directory: Path, manifest: Manifest, role: str = TARGET, target: Engine | None = None, **settings: Any
) -> Engine:
    backend = "reference" if manifest.models[role].dialect == "tensorrt" else "onnxruntime"
    given = {"capacity": 100, "threads": 1, "max_rows": 48, "max_head_rows": 48, **settings}
    return open_engine(directory, manifest, role, backend, OrtSettings(**given), target)  # type: ignore[arg-type]


def test_fp32_equals_the_other_dialect_in_chunks_of_any_size(tiny: Path, tmp_path: Path) -> None:
    ids = some_ids()
    wanted = run_in_chunks(opened(*export_tiny(tmp_path / "ort", tiny, precision="fp32")), ids, [48])
    engine = opened(*export_tiny(tmp_path / "trt", tiny, engine="tensorrt", precision="fp32"))
    for sizes in ([48], [1], [5, 1, 3, 7, 2, 11]):
        found = run_in_chunks(engine, ids, sizes)
        assert np.abs(found - wanted).max() <= 1e-3
        assert (found.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert np.std(wanted) > 0.05, "a model whose logits are all alike proves nothing"


@pytest.mark.parametrize(
    ("family", "precision", "head", "block"),
    [
        ("gemma3", "fp16", "fp16", 64),
        ("gemma2", "fp16", "fp16", 64),
        ("gemma2", "int4", "fp16", 64),
        ("gemma3", "int4", "int4", 128),
    ],
)
def test_half_equals_the_twin_of_the_same_weights(
    family: str, precision: str, head: str, block: int, tmp_path: Path
) -> None:
    # Widths that divide by the largest block.
    config = TinyConfig(family, layers=2 if family == "gemma2" else 6, hidden=128)
    source = save_tiny(tmp_path / "checkpoint", config)
    recipe = {"engine": "tensorrt", "precision": precision, "block_size": block, "head_precision": head}
    directory, manifest = export_tiny(tmp_path / "trt", source, **recipe)
    (tmp_path / "twin").mkdir()
    twin = write_twin(tmp_path / "twin", directory, manifest, open_checkpoint(source))
    assert twin.models[TARGET].dialect == "ort"
    found = compare_twins(directory, manifest, tmp_path / "twin", twin, some_ids())
    assert found.agrees and found.tolerance == 2e-2, found
    assert found.top1_agreement == 1.0 and found.tokens == 48
    assert found.activations.narrow is not None and 0 < found.activations.narrow.magnitude < 65504


def test_a_twin_of_other_weights_is_noticed(tmp_path: Path) -> None:
    sources = [save_tiny(tmp_path / f"checkpoint-{seed}", TinyConfig(layers=1), seed) for seed in (0, 1)]
    directory, manifest = export_tiny(tmp_path / "trt", sources[0], engine="tensorrt", precision="fp16")
    other, theirs = export_tiny(tmp_path / "ort", sources[1], precision="fp32")
    found = compare_twins(directory, manifest, other, theirs, some_ids(8))
    assert not found.agrees and found.max_abs_logit_error > 0.1


def test_sums_beyond_float16_stay_finite(tmp_path: Path) -> None:
    """Ten thousand times the last product of each layer, which its norm takes out again."""
    source = save_tiny(tmp_path / "checkpoint", TinyConfig(layers=2))
    (file,) = source.glob("*.safetensors")
    weights = load_file(file)
    for name in weights:
        if name.endswith("down_proj.weight"):
            weights[name] *= 1e4
    save_file(weights, file, metadata={"format": "pt"})
    wanted = run_in_chunks(opened(*export_tiny(tmp_path / "ort", source, precision="fp32")), some_ids(), [48])
    directory, manifest = export_tiny(tmp_path / "trt", source, engine="tensorrt", precision="fp16")
    found = run_in_chunks(opened(directory, manifest), some_ids(), [48])
    assert np.abs(found - wanted).max() <= 0.1 * np.std(wanted)
    largest = largest_activations(directory, manifest.models[TARGET], np.ones((16, 64), np.float32)).narrow
    assert largest is not None and 65504 / HEADROOM < largest.magnitude < 65504


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_rollback_is_exact(precision: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "checkpoint", TinyConfig(layers=2))
    engine = opened(*export_tiny(tmp_path / "trt", source, engine="tensorrt", precision=precision))
    ids = some_ids()
    wanted = run_in_chunks(engine, ids, [20, 4])
    engine.forward(StepInput(0, ids[:20], 0, None))
    engine.forward(StepInput(0, np.full(12, 5, np.int64), 20, None))  # a draft that is rejected whole
    for start in range(20, 48, 4):
        engine.forward(StepInput(0, ids[start : start + 4], start, HeadRequest(0, 4)))
        for row in range(4):
            assert np.array_equal(engine.logits(row), wanted[start + row])


@pytest.mark.parametrize("family", ["gemma3", "gemma2"])
def test_what_lies_behind_the_first_position_does_not_matter(family: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "checkpoint", TinyConfig(family, layers=2))
    directory, manifest = export_tiny(tmp_path / "trt", source, engine="tensorrt", precision="fp16")
    model = manifest.models[TARGET]
    session = onnxruntime.InferenceSession(str(directory / model.body), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    feeds = {"embeddings": random.standard_normal((1, 5, 64)).astype(np.float32)}
    feeds["positions"] = np.arange(9, 14, dtype=np.int32)
    for i, kv in enumerate(model.layers):
        for part in ("key", "value"):
            feeds[f"past_{part}_{i}"] = random.standard_normal((1, kv.kv_heads, 40, kv.head_dim)).astype(np.float16)
    before = session.run(None, feeds)
    for name, past in feeds.items():
        if name.startswith("past_"):
            past[:, :, 9:] = 60000.0
    for one, other in zip(before, session.run(None, feeds), strict=True):
        assert np.isfinite(one.astype(np.float32)).all() and np.array_equal(one, other)
    feeds["past_value_1"][:, :, 8] += 1.0
    assert not np.array_equal(before[0], session.run(None, feeds)[0]), "what stands before it must matter"


@pytest.mark.parametrize("candidates", [4, 64], ids=["in groups", "all at once"])
def test_a_head_says_what_its_logits_say(candidates: int, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "checkpoint", TinyConfig("gemma2", layers=1))
    recipe = {"engine": "tensorrt", "precision": "fp32", "candidates": candidates}
    engine = opened(*export_tiny(tmp_path / "trt", source, **recipe))
    ids, wanted = some_ids(12), some_ids(12)[::-1].copy()
    head = engine.forward(StepInput(0, ids, 0, HeadRequest(0, 12, 0.7, wanted))).head
    assert head is not None and head.gathered is not None and head.candidate_ids.shape == (12, candidates)
    for row in range(12):
        logits = engine.logits(row).astype(np.float64)
        order = np.argsort(-logits, kind="stable")[:candidates]
        assert head.argmax[row] == order[0]
        assert np.allclose(head.candidate_logits[row], logits[order], atol=0)
        assert np.array_equal(logits[head.candidate_ids[row]], logits[order])
        assert len(set(head.candidate_ids[row].tolist())) == candidates
        assert abs(np.log(np.exp(logits * 0.7).sum()) - head.logsumexp[row]) < 1e-5
        assert head.gathered[row] == np.float32(logits[wanted[row]])


# --- whole bundles


def silent(what: str, done: int, total: int) -> None:
    pass


def wanted_recipe(output: Path, **keys: Any) -> ExportRecipe:
    fixed = {"source": str(tiny_bundle.checkpoint()), "output": str(output), "engine": "tensorrt", "max_context": 128}
    return ExportRecipe(**{**fixed, **keys})


@cache
def checkpoint() -> Any:
    return open_checkpoint(tiny_bundle.checkpoint())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In fp32, with a reduced draft, the same layers as a self-draft, and a multi-token drafter of its own width."""
    folder = tmp_path_factory.mktemp("bundles")
    drafter = save(folder / "mtp", random_drafter(checkpoint(), width=96))
    draft = DraftRecipe(layers=2, vocab_rows=128)
    stem = SelfDraftRecipe(layers=2, vocab_rows=128)
    keys = {"precision": "fp32", "mtp": str(drafter), "draft": draft, "self_draft": stem}
    build_bundle(wanted_recipe(folder / "b", **keys), silent)
    return folder / "b"


def test_a_bundle_says_what_it_is(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    target, draft, mtp = (manifest.models[role] for role in (TARGET, "draft", MTP))
    assert {model.dialect for model in manifest.models.values()} == {"tensorrt"}
    assert (target.readout, target.screen, target.table) == ("", None, ())
    table = target.embedding
    assert table is not None and (table.file, table.dtype, table.columns) == ("target.weights", "float32", 64)
    assert draft.embedding == table == mtp.embedding, "one table for all of them"
    assert (draft.vocab_size, draft.token_ids, mtp.hidden_input) == (128, "draft.token_ids", 64)
    names = {(line.graph, line.direction, line.name): line for line in target.io}
    assert names["body", "in", "past_key_0"].shape == (1, 2, "capacity", 32)
    assert names["body", "out", "new_value_5"].shape == (1, 2, "rows", 32)
    assert names["body", "in", "positions"].dtype == names["head", "out", "candidate_ids"].dtype == "int32"
    body, head = target.graphs
    assert body.attention_heads == 4 and head.products[0].values == 512 * 64
    assert all(line.dtype in ("float32", "int32") for line in target.io)


def test_a_drafter_of_its_own_width_equals_numpy(bundle: Path) -> None:
    manifest, drafter, oracle = read_manifest(bundle), random_drafter(checkpoint(), width=96), Oracle(checkpoint())
    engine = opened(bundle, manifest, MTP)
    ids = some_ids(13)
    hidden = np.random.default_rng(5).standard_normal((12, 64)).astype(np.float32)
    _, wanted = oracle.entries(drafter, ids, hidden)
    for start, stop in ((0, 5), (5, 11), (11, 12)):
        step = StepInput(0, ids[start + 1 : stop + 1], start, HeadRequest(0, stop - start), hidden[start:stop])
        output = engine.forward(step)
    assert output.feed is not None and output.head is not None
    assert np.abs(output.feed[-1] - wanted.feed).max() <= 1e-4
    assert np.abs(engine.logits(0) - wanted.logits).max() <= 1e-4
    assert output.head.argmax[0] == drafter.token_ids[wanted.logits.argmax()]


def test_a_reduced_draft_names_tokens(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    ids = np.fromfile(bundle / "draft.token_ids", "<i8")
    engine = opened(bundle, manifest, "draft")
    head = engine.forward(StepInput(0, some_ids(6), 0, HeadRequest(0, 6, 1.0, ids[:6]))).head
    assert head is not None and head.gathered is not None
    for row in range(6):
        logits = engine.logits(row)
        assert len(logits) == 128 and head.argmax[row] == ids[logits.argmax()]
        assert head.gathered[row] == logits[row]


def test_a_self_draft_goes_on_from_what_its_target_has_run(bundle: Path) -> None:
    """It says what a pruned draft of the same layers says, which has run all of the text by itself."""
    manifest, ids = read_manifest(bundle), some_ids(12)
    target, draft = opened(bundle, manifest), opened(bundle, manifest, "draft")
    own = opened(bundle, manifest, SELF, target=target)
    target.forward(StepInput(0, ids[:9], 0, None))
    own.forward(StepInput(0, ids[9:], 9, HeadRequest(0, 3)))
    draft.forward(StepInput(0, ids, 0, HeadRequest(9, 12)))
    for row in range(3):
        assert np.abs(own.logits(row) - draft.logits(row)).max() <= 1e-4
    assert "target.weights" in manifest.models[SELF].weights, "its layers are the target's bytes"


def test_parity_prints_what_the_dialect_costs(tmp_path: Path) -> None:
    build_bundle(wanted_recipe(tmp_path / "b", precision="int4", head_precision="int4"), silent)
    table = read_manifest(tmp_path / "b").models[TARGET].embedding
    assert table is not None and (table.dtype, table.block_size, table.scales_dtype) == ("int8", 64, "float32")
    text = tmp_path / "text.txt"
    text.write_text("The licenses for most software are designed to take away your freedom. ")
    common = ["parity", str(tmp_path / "b"), "--reference", str(tiny_bundle.checkpoint()), "--text", str(text)]
    found = CliRunner().invoke(main, [*common, "--no-greedy", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["twin"]["max_abs_logit_error"] <= told["twin"]["tolerance"] == 2e-2
    assert told["nll_bundle"] > 0 and told["twin"]["activations"]["wide"]["magnitude"] > 0
    printed = str(twin_rows(structure(TwinParity, told["twin"], BundleError, "twin")))
    for words in ("tolerance", "within", "rollback", "max |activation| in float16", "top-1 agreement", "max |dlogit|"):
        assert words in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "text.txt"], "the twin is gone"


def test_what_contradicts_itself_is_no_bundle(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    target = manifest.models[TARGET]
    assert target.embedding is not None
    of = target.embedding
    wrong = {
        "there is no table": replace(target, embedding=None),
        "63 columns": replace(target, embedding=replace(of, columns=63)),
        "is no factor": replace(target, embedding=replace(of, scale=float("inf"))),
        "goes with scales": replace(target, embedding=replace(of, dtype="int8")),
        "embedding.offset": replace(target, embedding=replace(of, offset=-1)),
        "embedding.rows": replace(target, embedding=replace(of, rows=0)),
        "elsewhere used but not in the list": replace(target, embedding=replace(of, file="elsewhere")),
        " is used as a graph": replace(target, dialect="ort"),
    }
    for words, model in wrong.items():
        with pytest.raises(BundleError, match=words):
            refuse_unsound(bundle / "bundle.json", replace(manifest, models={**manifest.models, TARGET: model}))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "precision must be fp32, fp16 or int4, not exact"),
        ({"precision": "int8"}, "precision must be fp32, fp16 or int4, not int8"),
        ({"precision": "int4", "head_precision": "int8"}, "head_precision must be fp32, fp16 or int4, not int8"),
        ({"precision": "fp32", "head_precision": "fp16"}, "head_precision: fp16 does not go with precision: fp32"),
        ({"precision": "fp16", "draft": DraftRecipe(precision="fp32")}, "draft.precision: fp32 does not go with"),
        ({"precision": "int4", "drafter_precision": "int8"}, "drafter_precision must be"),
        ({"precision": "int4", "block_size": 32}, "block_size must be 64 or 128, not 32"),
        ({"precision": "fp16", "candidates": 5000}, "candidates: 5000"),
        ({"precision": "fp32", "trees": True}, "trees is not there for it yet"),
        ({"precision": "fp16", "heads": "somewhere"}, "heads is not there for it yet"),
    ],
)
def test_what_it_does_not_take_is_refused_in_one_line(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        ExportRecipe(source="a", output="b", engine="tensorrt", **keys)
    assert str(caught.value).startswith("engine: tensorrt: ") and "\n" not in str(caught.value)
