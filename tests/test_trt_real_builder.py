"""The real parser and builder of TensorRT for RTX, which need no GPU: our build code runs on them as it is.

It is another product, with another set of kernels and newer operators, so what it takes is no proof for 10.3; what it
tells is that our calls, classes that it calls back, and profiles are what a real TensorRT understands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trt as tiny

from edge_runtime.bundle import read_manifest
from edge_runtime.engines.engine_shapes import GRAPHS, graph_file, io_problem, wanted
from edge_runtime.engines.trt_network import BuildTools, Network
from edge_runtime.engines.trt_objects import Cancelling
from edge_runtime.errors import BundleError, DeviceError


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import tensorrt_rtx_bindings

    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt_rtx_bindings)
    yield


def tools(progress: list[str], cancelling: Cancelling | None = None) -> BuildTools:
    # A timing cache would ask for a GPU.
    return BuildTools(
        workspace=1 << 26,
        timing_cache=None,
        progress=lambda phase, done, total: progress.append(phase),
        cancelling=cancelling or Cancelling(),
    )


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_every_graph_becomes_a_plan(precision: str) -> None:
    bundle = tiny.bundle(precision)
    manifest = read_manifest(bundle)
    plans = {one.graph: one for one in wanted(manifest, tiny.OPTIONS)}
    for role, model in manifest.models.items():
        for graph in GRAPHS:
            one = plans[graph_file(model, graph)]
            phases: list[str] = []
            network = Network(bundle / one.graph, tools(phases))
            assert io_problem(model, graph, network.io) is None, (role, graph)
            with network.serialize(one.profiles) as plan:
                assert len(plan) > 1000
            assert "Building engine" in phases or phases


def test_a_profile_that_contradicts_itself_is_refused_by_name() -> None:
    bundle = tiny.bundle("fp16")
    one = next(iter(wanted(read_manifest(bundle), tiny.OPTIONS)))
    first = one.profiles[0]
    shapes = first.inputs["embeddings"]
    wrong = replace(first, inputs={**first.inputs, "embeddings": replace(shapes, least=(1, 9, 64))})
    with pytest.raises(DeviceError) as problem:
        Network(bundle / one.graph, tools([])).serialize([wrong])
    assert problem.value.call in ("set_shape", "add_optimization_profile", "build_serialized_network")


def test_a_build_ends_where_it_is_cancelled() -> None:
    bundle = tiny.bundle("fp16")
    one = next(iter(wanted(read_manifest(bundle), tiny.OPTIONS)))
    with pytest.raises(KeyboardInterrupt):
        Network(bundle / one.graph, tools([], Cancelling(wanted=True))).serialize(one.profiles)


def test_what_is_no_graph_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"bad.onnx: TensorRT [\d.]+ does not take it: ") as problem:
        Network(tmp_path / "bad.onnx", tools([]))
    assert "\n" not in str(problem.value)
    with pytest.raises(BundleError):
        Network(tmp_path / "none.onnx", tools([]))
