"""Bundles for TensorRT on the reference engine: loaded, drafted with, and told apart from what needs a board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle
from click.testing import CliRunner
from tiny_drafters import random_drafter, save

from edge_runtime.bundle import DRAFT, MTP
from edge_runtime.cli import main
from edge_runtime.engines.delta import DeltaEngine
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
    """In float16, as a board has it, with a draft that is the whole target."""
    folder = tmp_path_factory.mktemp("trt") / "bundle"
    return exported(folder, drafter, engine="tensorrt", precision="fp16", draft=DraftRecipe(layers=6))


def loaded(bundle: Path, **settings: Any) -> LoadedBundle:
    return load_bundle(bundle, LoadSettings(**{"backend": "reference", "threads": 1, "context": 100, **settings}))


def test_it_drafts_with_all_that_the_bundle_has(built: Path) -> None:
    bundle = loaded(built)
    try:
        assert isinstance(bundle.target, DeltaEngine) and set(bundle.drafting) == {DRAFT, MTP}
        assert bundle.target.info.keeps_hidden
        prompt = bundle.tokenizer.encode("What a board would say")
        texts, accepted = {}, {}
        for name in ("none", "lookup", "draft", "mtp"):
            session = Session(bundle.target.info, prompt, SamplingParams(temperature=0.0), max_tokens=COUNT)
            decode(bundle.decoder(name, length_policy("3")), session)  # type: ignore[arg-type]
            texts[name], accepted[name] = session.generated.tolist(), session.totals
        assert texts["lookup"] == texts["draft"] == texts["mtp"] == texts["none"]
        # A draft that is the target has everything accepted, but for a near-tie.
        assert accepted["draft"].accepted >= 0.9 * accepted["draft"].drafted > 10
    finally:
        bundle.close()
        bundle.close()


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
