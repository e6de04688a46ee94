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

LANES, SLOTS, ROWS, HEAD_ROWS = 4, 5, 48, 32
Made = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    place = tmp_path_factory.mktemp("lanes")
    found = {}
    for name, precision in (("gemma2", "fp32"), ("gemma3", "int8"), ("gemma3", "int4")):
        checkpoint = place / name if (place / name).exists() else save_random(place / name, name)
        keys = {"precision": precision, "calibration": "none", "lanes": LANES}
        folder = place / f"{name}-{precision}"
        found[folder.name] = folder, export_random(folder, checkpoint, **keys)
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
    """Prompts of other lengths; some slots in any order, ragged; rollbacks (a smaller position); a lone lane."""
    yield [StepInput(slot, ids(length, slot), 0, None) for slot, length in ((0, 9), (2, 5), (3, 12))]
    yield [StepInput(4, ids(7, 10), 0, None)]
    yield [StepInput(0, ids(1, 20), 9, None), StepInput(2, ids(1, 21), 5, None), StepInput(4, ids(1, 22), 7, None)]
    ragged = ((3, 4, 12), (0, 1, 10), (4, 8, 8), (2, 2, 6))
    yield [StepInput(slot, ids(count, 30 + slot), at, None) for slot, count, at in ragged]
    yield [StepInput(slot, ids(n, 40 + slot), at, None) for slot, n, at in ((2, 3, 6), (3, 3, 13))]
    yield [StepInput(3, ids(1, 50), 14, None)]
    yield [StepInput(slot, ids(3, 60 + slot), at, None) for slot, at in ((0, 11), (2, 8), (3, 15), (4, 10))]
    # Beyond 16 keys and then 32, where attention changes its ways: some lanes pass them in this step, some do not.
    yield [StepInput(slot, ids(n, 70 + slot), at, None) for slot, n, at in ((0, 11, 14), (2, 3, 11), (4, 17, 13))]
    yield [StepInput(slot, ids(n, 80 + slot), at, None) for slot, n, at in ((4, 5, 30), (0, 8, 25), (2, 1, 14))]


@pytest.mark.parametrize(
    ("name", "deterministic", "allowed"),
    [
        ("gemma3-int8", True, 0.0),
        ("gemma3-int4", True, 0.0),
        ("gemma2-fp32", True, 0.0),
        ("gemma3-int8", False, 0.25),  # as alone: a lone row's rounding moves a whole step of the 8-bit scale
        ("gemma2-fp32", False, 1e-4),
    ],
)
def test_a_lane_is_the_step_alone(made: dict[str, Made], name: str, deterministic: bool, allowed: float) -> None:
    """Caches too: what a slot was fed in lanes, it goes on from alone, and the other way round."""
    one, many = (opened(made[name], lanes, deterministic) for lanes in (False, True))
    for steps in scenario():
        found = together(many, steps)
        for step, rows in zip(steps, found, strict=True):
            wanted = alone(one, step)
            assert np.abs(rows - wanted).max() <= allowed * wanted.std()
    one.close()
    many.close()


@pytest.mark.parametrize("deterministic", [True, False])
def test_each_lane_is_read_out_as_it_asked(made: dict[str, Made], deterministic: bool) -> None:
    """Its own rows, temperature and ids; a lane that asks for nothing is left out, and a later head finds its rows."""
    one, many = (opened(made["gemma3-int8"], lanes, deterministic) for lanes in (False, True))
    asked = [HeadRequest(0, 1, 0.5, ids(1, 3)), None, HeadRequest(1, 3, 2.0), HeadRequest(2, 3, 1.0, ids(1, 4))]
    steps = [StepInput(slot, ids(3, slot), 0, head) for slot, head in enumerate(asked)]
    output = many.forward_lanes(steps)
    again = [many.logits(row).copy() for row in range(4)]
    for step, found in zip(steps, output.steps, strict=True):
        wanted = one.forward(step)
        np.testing.assert_allclose(found.hidden, wanted.hidden, rtol=0, atol=0 if deterministic else 1e-3)
        assert (found.head is None) == (wanted.head is None)
        if found.head is None or wanted.head is None or step.head is None:
            continue
        close = 0.0 if deterministic else 1e-2
        np.testing.assert_array_equal(found.head.argmax, wanted.head.argmax)
        np.testing.assert_allclose(found.head.logsumexp, wanted.head.logsumexp, atol=close)
        np.testing.assert_allclose(found.head.candidate_logits, wanted.head.candidate_logits, atol=close)
        assert (found.head.gathered is None) == (step.head.gather_ids is None)
        if found.head.gathered is not None and wanted.head.gathered is not None:
            np.testing.assert_allclose(found.head.gathered, wanted.head.gathered, atol=close)
        for row in range(len(found.head.argmax)):
            np.testing.assert_allclose(again.pop(0), one.logits(row), atol=close)
    with pytest.raises(ValueError, match="did not read out"):
        many.logits(4)
    late = many.head(HeadRequest(output.first_rows[1], output.first_rows[1] + 3))
    np.testing.assert_array_equal(late.argmax, one.forward(replace(steps[1], head=HeadRequest(0, 3))).head.argmax)  # type: ignore[union-attr]
    one.close()
    many.close()


def test_what_lanes_may_not_be_asked(made: dict[str, Made]) -> None:
    engine = opened(made["gemma3-int8"], True)
    step = StepInput(0, ids(4, 0), 0, None)
    for steps, why in [
        ((), "all different"),
        ((step, step), "all different"),
        (tuple(replace(step, slot=slot) for slot in range(SLOTS)), f"1 to {LANES} of them"),
        ((step, replace(step, slot=1, tokens=ids(ROWS - 3, 1))), "at most 48"),
        ((step, replace(step, slot=1, head=HeadRequest(0, 5))), "head rows"),
        ((step, replace(step, slot=1, parents=np.array([-1, 0, 0, 1]))), "no trees"),
        ((step, replace(step, slot=1, position=99)), "leave a slot"),
        ((step, replace(step, slot=1, tokens=np.array([9999]))), "outside the"),
    ]:
        with pytest.raises(ValueError, match=why):
            engine.forward_lanes(steps)
    engine.close()
    plain = opened(made["gemma3-int8"], False)
    with pytest.raises(ValueError, match="without lanes"):
        plain.forward_lanes((step,))
    plain.close()


def test_lanes_cost_a_bundle_one_graph(made: dict[str, Made], tmp_path: Path) -> None:
    """No weight is stored twice, and what does not ask for lanes is what it was."""
    folder, manifest = made["gemma3-int8"]
    recipe = {"precision": "int8", "calibration": "none"}
    plain = export_random(tmp_path / "plain", folder.parent / "gemma3", **recipe)
    new = {path.name for path in folder.iterdir()} - {path.name for path in (tmp_path / "plain").iterdir()}
    assert new == {"target.lanes.onnx", "target.lanes.narrow.onnx"}
    for path in (tmp_path / "plain").iterdir():
        assert path.read_bytes() == (folder / path.name).read_bytes()
    model, alone = manifest.model("target"), plain.model("target")
    assert alone.lanes is None and model.lanes is not None and model.lanes.count == LANES
    assert tuple(line for line in model.io if line.graph != "lanes") == alone.io
    with pytest.raises(ConfigError, match="lanes: N"):
        opened((tmp_path / "plain", plain), True)


@pytest.mark.parametrize(
    "keys", [{"lanes": 1}, {"lanes": 17}, {"lanes": 4, "trees": True}, {"lanes": 4, "engine": "tensorrt"}]
)
def test_a_recipe_says_which_lanes_there_are(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="lanes"):
        ExportRecipe(source="a", output="b", **keys)


def test_layers_that_do_not_run_in_lanes_are_refused(made: dict[str, Made]) -> None:
    """More inputs than plain attention has (Gemma 4's E models)."""
    body = onnx.load(made["gemma3-int8"][0] / "target.body.onnx", load_external_data=False)
    body.graph.input.append(onnx.helper.make_tensor_value_info("per_layer", onnx.TensorProto.FLOAT, (1, "rows", 8)))
    with pytest.raises(ConfigError, match="leave it out"):
        with_lanes(body, 2)
