"""The real parser and builder of TensorRT for RTX, which need no GPU: our build code runs on them as it is.

It is another product, with another set of kernels and newer operators, so what it takes is no proof for 10.3; what it
tells is that our calls, the classes that it calls back, and our profiles are what a real TensorRT understands.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trt as tiny
from trt_parser import trt as real_trt

from edge_runtime.bundle import Manifest, read_manifest
from edge_runtime.engines.engine_record import Wanted
from edge_runtime.engines.engine_shapes import GRAPHS, graph_file, io_problem, wanted
from edge_runtime.engines.trt_network import BuildTools, Network
from edge_runtime.engines.trt_objects import Cancelling
from edge_runtime.errors import BundleError, DeviceError


@pytest.fixture(autouse=True)
def _real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", real_trt())


def bundle() -> Path:
    """Its draft has one layer: builds of it are quick."""
    return tiny.bundle("int4", draft_layers=1)


def plan_of(manifest: Manifest, name: str) -> Wanted:
    return next(one for one in wanted(manifest, tiny.OPTIONS) if one.graph == name)


def tools(phases: list[str], cancelling: Cancelling | None = None) -> BuildTools:
    # A timing cache would ask for a GPU.
    return BuildTools(
        workspace=1 << 26,
        timing_cache=None,
        progress=lambda phase, done, total: phases.append(f"{phase} {done}/{total}"),
        cancelling=cancelling or Cancelling(),
    )


def test_a_graph_becomes_a_plan_of_two_profiles() -> None:
    """A head, which is built in a second; bodies are built in test_trt_parser."""
    one = plan_of(read_manifest(bundle()), "draft.head.onnx")
    wider = replace(tiny.OPTIONS, draft_length=9)
    other = next(of for of in wanted(read_manifest(bundle()), wider) if of.graph == one.graph)
    phases: list[str] = []
    with Network(bundle() / one.graph, tools(phases)).serialize([*one.profiles, *other.profiles]) as plan:
        assert len(plan) > 1000
    assert any(phase.startswith("Building engine") for phase in phases), phases


def test_inputs_and_outputs_of_every_graph_are_those_of_the_manifest() -> None:
    manifest = read_manifest(bundle())
    for model in manifest.models.values():
        for graph in GRAPHS:
            assert io_problem(model, graph, Network(bundle() / graph_file(model, graph), tools([])).io) is None


def test_a_profile_that_contradicts_itself_is_refused_by_name() -> None:
    one = plan_of(read_manifest(bundle()), "draft.head.onnx")
    shapes = one.profiles[0].inputs["hidden"]
    wrong = replace(one.profiles[0], inputs={**one.profiles[0].inputs, "hidden": replace(shapes, least=(9, 64))})
    with pytest.raises(DeviceError) as problem:
        Network(bundle() / one.graph, tools([])).serialize([wrong])
    assert problem.value.call in ("set_shape", "add_optimization_profile") and "profile head" in str(problem.value)
    assert len(str(problem.value)) > 60, "and why"


def test_a_build_ends_where_it_is_cancelled() -> None:
    one = plan_of(read_manifest(bundle()), "draft.head.onnx")
    whole: list[str] = []
    Network(bundle() / one.graph, tools(whole)).serialize(one.profiles).release()
    phases: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Network(bundle() / one.graph, tools(phases, Cancelling(wanted=True))).serialize(one.profiles)
    assert len(phases) < len(whole)


def test_what_a_callback_raises_comes_out_of_the_build() -> None:
    """TensorRT would print it and go on, or end the process."""
    one = plan_of(read_manifest(bundle()), "draft.head.onnx")

    def fails(phase: str, done: int, total: int) -> None:
        raise BrokenPipeError(32, "who watched has left")

    given = replace(tools([]), progress=fails)
    with pytest.raises(BrokenPipeError):
        Network(bundle() / one.graph, given).serialize(one.profiles)


def test_what_is_no_graph_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"bad.onnx: TensorRT [\d.]+ does not take it: .") as problem:
        Network(tmp_path / "bad.onnx", tools([]))
    assert "\n" not in str(problem.value)
    with pytest.raises(BundleError, match=r"none.onnx: TensorRT .* does not take it: ."):
        Network(tmp_path / "none.onnx", tools([]))
