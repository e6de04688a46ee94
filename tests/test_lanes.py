"""Several sessions in one step: is what each gets what it gets alone?

Every lane is compared with the same step on an engine with the plain body, over the whole row of logits: by the bit in
the deterministic mode, and within the tolerance of 8-bit activations where lone rows run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

sys.path.append(str(Path(__file__).parent / "conformance"))

from random_gemma import export_random, save_random

from edge_runtime.bundle import Manifest
from edge_runtime.engines.opening import open_engine
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Floats, HeadRequest, StepInput
from edge_runtime.errors import ConfigError
from export.dialects.ort_lanes import with_lanes
from export.recipe import ExportRecipe

LANES, SLOTS, ROWS, HEAD_ROWS = 4, 5, 48, 24
Made = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    place = tmp_path_factory.mktemp("lanes")
    recipes: dict[str, dict[str, Any]] = {"int8": {"precision": "int8"}, "int4": {"precision": "int4"},
                                          "fp32": {"precision": "fp32"}}  # fmt: skip
    found = {}
    for family in ("gemma2", "gemma3"):
        checkpoint = save_random(place / family, family)
        for name, recipe in recipes.items():
            if family == "gemma2" and name != "fp32":
                continue
            keys = {"calibration": "none", "lanes": LANES, **recipe}
            folder = place / f"{family}-{name}"
            found[f"{family}-{name}"] = folder, export_random(folder, checkpoint, **keys)
    return found


def opened(made: Made, lanes: bool, deterministic: bool = False, **given: Any) -> OrtEngine:
    keys: dict[str, Any] = {"capacity": 100, "slots": SLOTS, "max_rows": ROWS, "max_head_rows": HEAD_ROWS, "threads": 1}
    settings = OrtSettings(**keys | {"lanes": lanes, "deterministic": deterministic} | given)
    engine = open_engine(made[0], made[1], "target", "onnxruntime", settings)
    assert isinstance(engine, OrtEngine)
    return engine


def ids(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(3, 500, count).astype(np.int64)


def alone(engine: OrtEngine, step: StepInput) -> Floats:
    """[T, vocab] of one step on an engine with the plain body."""
    count = len(step.tokens)
    engine.forward(replace(step, head=HeadRequest(0, count)))
    return np.stack([engine.logits(row).copy() for row in range(count)])


def together(engine: OrtEngine, steps: Sequence[StepInput]) -> list[Floats]:
    wanted = [replace(step, head=HeadRequest(0, len(step.tokens))) for step in steps]
    engine.forward_lanes(wanted)
    rows = iter(range(sum(len(step.tokens) for step in steps)))
    return [np.stack([engine.logits(next(rows)).copy() for _ in step.tokens]) for step in steps]


def scenario() -> Iterator[list[StepInput]]:
    """Prompts of other lengths; steps of some slots in any order, ragged; rollbacks (a smaller position); a lone lane."""
    yield [StepInput(slot, ids(length, slot), 0, None) for slot, length in ((0, 9), (2, 5), (3, 12))]
    yield [StepInput(4, ids(7, 10), 0, None)]
    yield [StepInput(0, ids(1, 20), 9, None), StepInput(2, ids(1, 21), 5, None), StepInput(4, ids(1, 22), 7, None)]
    yield [StepInput(slot, ids(n, 30 + slot), at, None) for slot, n, at in ((3, 4, 12), (0, 1, 10), (4, 8, 8), (2, 2, 6))]
    yield [StepInput(slot, ids(n, 40 + slot), at, None) for slot, n, at in ((2, 3, 6), (3, 3, 13))]
    yield [StepInput(3, ids(1, 50), 14, None)]
    yield [StepInput(slot, ids(3, 60 + slot), at, None) for slot, at in ((0, 11), (2, 8), (3, 15), (4, 10))]


@pytest.mark.parametrize("name", ["gemma3-int8", "gemma3-int4", "gemma3-fp32", "gemma2-fp32"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_lane_is_the_step_alone(made: dict[str, Made], name: str, deterministic: bool) -> None:
    one, many = (opened(made[name], lanes, deterministic) for lanes in (False, True))
    worst = 0.0
    for steps in scenario():
        found = together(many, steps)
        for step, rows in zip(steps, found, strict=True):
            wanted = alone(one, step)
            worst = max(worst, float(np.abs(rows - wanted).max() / wanted.std()))
    one.close()
    many.close()
    print(name, deterministic, worst)
