"""Bundles for TensorRT on the reference engine: loaded, drafted with, and told apart from what needs a board."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bundle
from click.testing import CliRunner
from tiny_drafters import random_drafter, save

from edge_runtime.bundle import DRAFT, MTP, TARGET, read_manifest
from edge_runtime.cli import main
from edge_runtime.engines.delta import DeltaEngine
from edge_runtime.engines.opening import Backend, open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.loading import LoadedBundle, LoadSettings, length_policy, load_bundle
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.recipe import DraftRecipe, ExportRecipe

COUNT = 32


def exported(output: Path, drafter: Path, **keys: Any) -> Path:
    recipe = ExportRecipe(
        source=str(tiny_bundle.checkpoint()), output=str(output), max_context=128, mtp=str(drafter), **keys
    )
    build_bundle(recipe, lambda what, done, total: None)
    return output


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("mtp") / "mtp", random_drafter(open_checkpoint(tiny_bundle.checkpoint())))


@pytest.fixture(scope="module")
def built(drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float16, as a board has it, with a draft that is the whole target, and heads of fewer tokens."""
    folder = tmp_path_factory.mktemp("trt") / "bundle"
    draft = DraftRecipe(layers=6, vocab_rows=448)
    return exported(folder, drafter, engine="tensorrt", precision="fp16", draft=draft)


def loaded(bundle: Path, **settings: Any) -> LoadedBundle:
    return load_bundle(bundle, LoadSettings(**{"backend": "reference", "threads": 1, "context": 100, **settings}))


def test_it_drafts_with_all_that_the_bundle_has(built: Path) -> None:
    bundle = loaded(built)
    try:
        assert isinstance(bundle.target, DeltaEngine) and set(bundle.drafting) == {DRAFT, MTP}
        assert bundle.target.info.keeps_hidden and bundle.drafting[DRAFT].info.vocab_size == 448
        prompt = bundle.tokenizer.encode("What a board would say")
        texts, accepted = {}, {}
        for name in ("none", "lookup", "draft", "mtp"):
            session = Session(bundle.target.info, prompt, SamplingParams(temperature=0.0), max_tokens=COUNT)
            decode(bundle.decoder(name, length_policy("3")), session)  # type: ignore[arg-type]
            texts[name], accepted[name] = session.generated.tolist(), session.totals
        assert texts["lookup"] == texts["draft"] == texts["mtp"] == texts["none"]
        # A draft that is the target has everything accepted but what its head lacks.
        assert accepted["draft"].accepted >= 0.9 * accepted["draft"].drafted > 10
    finally:
        bundle.close()
        bundle.close()


def test_a_drafter_says_what_it_says_on_onnxruntime(drafter: Path, tmp_path: Path) -> None:
    """The same weights in both dialects, in float32: rows, logits, and what it would feed itself."""
    engines: list[tuple[Engine, Engine]] = []
    for engine, backend in (("onnxruntime", "onnxruntime"), ("tensorrt", "reference")):
        bundle = exported(tmp_path / engine, drafter, engine=engine, precision="fp32")
        manifest, settings = read_manifest(bundle), OrtSettings(capacity=64, threads=1, keeps_hidden=True)
        known: Backend = "onnxruntime" if backend == "onnxruntime" else "reference"
        target = open_engine(bundle, manifest, TARGET, known, settings)
        own = replace(settings, keeps_hidden=False)
        engines.append((target, open_engine(bundle, manifest, MTP, known, own, target)))
    ids = np.arange(300, 320)
    said: list[dict[str, np.ndarray]] = []
    for target, mtp in engines:
        for start, stop in ((0, 12), (12, 13), (13, 20)):
            target.forward(StepInput(0, ids[start:stop], start, None))
        hidden = target.hidden_rows(0)[:19].copy()
        first = mtp.forward(StepInput(0, ids[1:13], 0, None, hidden[:12]))
        assert first.feed is not None
        one = mtp.forward(StepInput(0, ids[13:14], 12, HeadRequest(0, 1, 1.0, mtp_ids(mtp)), first.feed[-1:].copy()))
        said.append({"hidden": hidden, "rows": one.hidden.copy(), "logits": mtp.logits(0).copy()})
        assert one.feed is not None and one.head is not None and one.head.gathered is not None
        said[-1] |= {"feed": one.feed.copy(), "best": one.head.candidate_ids[0, :8].copy()}
        said[-1] |= {"gathered": one.head.gathered.copy(), "mass": one.head.logsumexp.copy()}
    for name, wanted in said[0].items():
        assert np.abs(said[1][name] - wanted).max() <= 1e-3 * max(1.0, float(np.abs(wanted).max())), name
    for target, mtp in engines:
        mtp.close()
        target.close()


def mtp_ids(engine: Engine) -> np.ndarray:
    """A token that its head knows."""
    ids = engine.info.token_ids
    assert ids is not None
    return ids[5:6]


def test_without_a_board_the_command_line_says_what_there_is_to_do(built: Path) -> None:
    def run(*options: str) -> Any:
        wanted = ["generate", "--bundle", str(built), "--prompt", "Hi", "--max-tokens", "8", "--context", "64"]
        return CliRunner().invoke(main, [*wanted, *options, "--threads", "1", "--json"])

    ran = run("--backend", "reference", "--drafter", "draft", "--k", "2")
    assert ran.exit_code == 0 and json.loads(ran.stdout)["tokens"]
    for backend in ("auto", "onnxruntime"):
        refused = run("--backend", backend)
        assert refused.exit_code == 2 and refused.stdout == ""
        (line,) = refused.stderr.strip().splitlines()
        assert f"edge-runtime build {built}" in line and "Traceback" not in line
