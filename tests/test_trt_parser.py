"""Every kind of graph that is exported for TensorRT passes a real parser and builder; what must not pass does not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny_bundle
from onnx import TensorProto, helper, numpy_helper
from tiny_drafters import random_drafter
from tiny_models import TinyConfig, export_tiny, save_tiny
from trt_parser import Parsed, body_profiles

from edge_runtime.bundle import MTP, TARGET, Model
from export.checkpoint import Checkpoint, open_checkpoint
from export.dialects.trt_allowed import violations
from export.model_writer import ModelPlan
from export.multi_token import describe_multi_token, drafter_checkpoint
from export.recipe import ExportRecipe
from export.writing import write_model

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
ROWS = ((1, 5), (16, 16))
"""Of a decode step and of a prefill chunk."""

GRAPHS: dict[str, tuple[TinyConfig, dict[str, Any]]] = {
    # A window and none, softcaps, several queries to a key.
    "gemma2-fp16": (TinyConfig("gemma2", layers=2), {"precision": "fp16"}),
    "gemma3-int4": (TinyConfig(layers=1), {"precision": "int4", "head_precision": "int4"}),
    "gemma3-int4-128": (TinyConfig(layers=1, hidden=128, kv_heads=1), {"precision": "int4", "block_size": 128}),
    "gemma3-fp32": (TinyConfig(layers=1, kv_heads=4), {"precision": "fp32"}),
}


@pytest.fixture(scope="module", params=GRAPHS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    config, recipe = GRAPHS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    if recipe["precision"] == "int4":
        recipe = {"head_precision": "fp16", **recipe}
    source = save_tiny(folder / "checkpoint", config)
    directory, manifest = export_tiny(folder / "b", source, engine="tensorrt", candidates=4, **recipe)
    return directory, manifest.models[TARGET]


def build(path: Path, rows: tuple[tuple[int, int], ...], capacity: int = 64) -> None:
    parsed = Parsed(path)
    assert parsed.accepted, parsed.errors
    proto = onnx.load(path, load_external_data=False)
    assert parsed.build(body_profiles(proto, capacity, rows)) > 0, parsed.complaints
    assert not parsed.complaints


def test_bodies_are_built_for_decoding_and_for_prefill(exported: tuple[Path, Model]) -> None:
    directory, model = exported
    # float32 is for comparing with: to take it is enough.
    build(directory / model.body, ROWS if model.precision != "fp32" else ROWS[:1])


def test_heads_are_built(exported: tuple[Path, Model]) -> None:
    directory, model = exported
    build(directory / model.head, ROWS[:1])


@cache
def target() -> Checkpoint:
    return open_checkpoint(tiny_bundle.checkpoint())


def test_a_multi_token_drafter_is_built(tmp_path: Path) -> None:
    drafter = random_drafter(target(), width=96)
    own = drafter_checkpoint(drafter, tmp_path, target())
    recipe = ExportRecipe(source="", output="", engine="tensorrt", precision="fp16", max_context=128, candidates=4)
    ids = drafter.token_ids
    plan = ModelPlan(MTP, own, 1, len(ids), ids, "fp16", "fp16", graph=describe_multi_token(own))
    model = write_model(tmp_path, plan, recipe, lambda what, done, total: None).model
    build(tmp_path / model.body, ROWS)
    build(tmp_path / model.head, ROWS[:1])


def test_six_layers_are_parsed(tmp_path: Path) -> None:
    """Both kinds of layers and of angles side by side."""
    source = save_tiny(tmp_path / "checkpoint", TinyConfig())
    recipe = {"engine": "tensorrt", "precision": "int4", "head_precision": "fp16"}
    directory, manifest = export_tiny(tmp_path / "b", source, **recipe)
    parsed = Parsed(directory / manifest.models[TARGET].body)
    assert parsed.accepted, parsed.errors
    assert parsed.network.num_inputs == 2 + 12 and parsed.network.num_outputs == 1 + 12


# --- what must not pass


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def graph(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = 21,
    contrib: bool = False,
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid("com.microsoft", 1)] * contrib
    made = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def four_bits(name: str, *shape: int) -> onnx.TensorProto:
    count = int(np.prod(shape)) // 2
    return TensorProto(name=name, data_type=TensorProto.INT4, dims=shape, raw_data=bytes(range(256)) * (count // 256))


def halves(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.01, np.float16), name)


def with_zero_points() -> onnx.ModelProto:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=0, block_size=64),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    zeros = TensorProto(name="z", data_type=TensorProto.INT4, dims=(2, 64), raw_data=bytes([0x11]) * 64)
    constants = [four_bits("q", 128, 64), halves("s", 2, 64), zeros]
    return graph(nodes, [value("x", F16, "rows", 128)], [value("y", F16, "rows", 64)], constants)


def with_matmulnbits() -> onnx.ModelProto:
    node = helper.make_node(
        "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", K=128, N=64, bits=4, block_size=64
    )
    quants = numpy_helper.from_array(np.zeros((64, 2, 32), np.uint8), "q")
    constants = [quants, halves("s", 128)]
    return graph([node], [value("x", F16, "rows", 128)], [value("y", F16, "rows", 64)], constants, contrib=True)


def with_softcap() -> onnx.ModelProto:
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=0.1, softcap=50.0)
    inputs = [value("q", F16, 1, 4, "rows", 64), value("k", F16, 1, 2, 32, 64), value("v", F16, 1, 2, 32, 64)]
    return graph([node], inputs, [value("y", F16, 1, 4, "rows", 64)], opset=23)


def with_two_types() -> onnx.ModelProto:
    node = helper.make_node("Add", ["x", "w"], ["y"])
    constants = [numpy_helper.from_array(np.ones(64, np.float32), "w")]
    return graph([node], [value("x", F16, "rows", 64)], [value("y", F16, "rows", 64)], constants)


@pytest.mark.parametrize("made", [with_zero_points, with_matmulnbits, with_softcap, with_two_types])
def test_the_parser_refuses_what_the_list_refuses(made: Any) -> None:
    proto = made()
    assert violations(proto)
    parsed = Parsed(proto)
    assert not parsed.accepted and parsed.errors


def test_rows_of_a_coded_table_cannot_be_gathered() -> None:
    """Why a body takes embeddings: such a graph parses, and no engine can be built of it."""
    node = helper.make_node("Gather", ["q", "ids"], ["rows"], axis=0)
    cast = helper.make_node("Cast", ["rows"], ["y"], to=F16)
    table = numpy_helper.from_array(np.ones((256, 64), np.int8), "q")
    ids, out = value("ids", TensorProto.INT32, "rows"), value("y", F16, "rows", 64)
    proto = graph([node, cast], [ids], [out], [table])
    assert violations(proto)
    parsed = Parsed(proto)
    built = parsed.accepted and parsed.build([{"ids": ((1,), (2,), (4,))}])
    assert not built


def test_graphs_of_the_other_dialect_are_refused(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "checkpoint", TinyConfig(layers=1))
    directory, manifest = export_tiny(tmp_path / "b", source, precision="fp32")
    path = directory / manifest.models[TARGET].body
    assert violations(onnx.load(path, load_external_data=False))
    assert not Parsed(path).accepted
