"""The list of what TensorRT 10.3 takes: every exported graph holds to it, and each of its rules can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_models import TinyConfig, export_tiny, save_tiny

from edge_runtime.bundle import TARGET
from export.dialects.trt_allowed import violations

Attack = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    """Body and head in 4 bits, with scales in the graph itself so that they can be attacked."""
    folder = tmp_path_factory.mktemp("allowed")
    source = save_tiny(folder / "checkpoint", TinyConfig("gemma2", layers=2))
    directory, manifest = export_tiny(folder / "b", source, engine="tensorrt", precision="int4", candidates=4)
    model = manifest.models[TARGET]
    return {
        "body": onnx.load(directory / model.body, load_external_data=False),
        "head": onnx.load(directory / model.head, load_external_data=False),
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_what_is_exported_holds_to_it(family: str, precision: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "checkpoint", TinyConfig(family, layers=2))
    directory, manifest = export_tiny(tmp_path / "b", source, engine="tensorrt", precision=precision)
    for name in (manifest.models[TARGET].body, manifest.models[TARGET].head):
        proto = onnx.load(directory / name, load_external_data=False)
        assert violations(proto) == ()
        onnx.checker.check_model(str(directory / name), full_check=True)


def node(proto: onnx.ModelProto, kind: str, place: int = 0) -> onnx.NodeProto:
    return [one for one in proto.graph.node if one.op_type == kind][place]


def attribute(kind: str, name: str, value: int) -> Attack:
    def attack(proto: onnx.ModelProto) -> None:
        of = node(proto, kind)
        for at in reversed([i for i, one in enumerate(of.attribute) if one.name == name]):
            del of.attribute[at]
        of.attribute.append(helper.make_attribute(name, value))

    return attack


def other_type(name: str, kind: int) -> Attack:
    def attack(proto: onnx.ModelProto) -> None:
        for one in (*proto.graph.input, *proto.graph.output):
            if one.name == name:
                one.type.tensor_type.elem_type = kind

    return attack


def another_operator(proto: onnx.ModelProto) -> None:
    node(proto, "Tanh").op_type = "Sigmoid"


def contrib(proto: onnx.ModelProto) -> None:
    node(proto, "Tanh").domain = "com.microsoft"


def newer_operators(proto: onnx.ModelProto) -> None:
    proto.opset_import[0].version = 23


def contrib_imported(proto: onnx.ModelProto) -> None:
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def narrow_softmax(proto: onnx.ModelProto) -> None:
    """Straight on what the products gave, without the cast to float32."""
    for one in proto.graph.node:
        if one.op_type == "Cast" and one.output[0].endswith(".scores"):
            one.attribute[0].i = TensorProto.FLOAT16


def zero_points(proto: onnx.ModelProto) -> None:
    of = node(proto, "DequantizeLinear")
    scales = next(one for one in proto.graph.initializer if one.name == of.input[1])
    count = int(np.prod(scales.dims)) // 2
    proto.graph.initializer.append(
        TensorProto(name="z", data_type=TensorProto.INT4, dims=scales.dims, raw_data=bytes(count))
    )
    of.input.append("z")


def wide_scales(proto: onnx.ModelProto) -> None:
    name = node(proto, "DequantizeLinear").input[1]
    next(one for one in proto.graph.initializer if one.name == name).data_type = TensorProto.FLOAT


def no_scale(proto: onnx.ModelProto) -> None:
    name = node(proto, "DequantizeLinear").input[1]
    of = next(one for one in proto.graph.initializer if one.name == name)
    values = np.full(tuple(of.dims), 0.5, np.float16)
    values[0, 3] = 0.0
    of.CopyFrom(numpy_helper.from_array(values, name))


def read_twice(proto: onnx.ModelProto) -> None:
    name = node(proto, "DequantizeLinear").output[0]
    proto.graph.node.append(helper.make_node("Transpose", [name], ["turned"], name="turned", perm=[1, 0]))


def coded_and_not_decoded(proto: onnx.ModelProto) -> None:
    name = node(proto, "DequantizeLinear").input[0]
    proto.graph.node.append(helper.make_node("Identity", [name], ["raw"], name="raw"))


def three_dimensions(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 64, 2), np.float16), "deep"))
    of = next(one for one in proto.graph.node if one.op_type == "MatMul")
    proto.graph.node.append(helper.make_node("MatMul", [of.input[0], "deep"], ["deeper"], name="deeper"))


def wide_indices(proto: onnx.ModelProto) -> None:
    """What the search found, without the cast to 32 bits."""
    proto.graph.node.append(helper.make_node("Add", ["best_index", "best_index"], ["more"], name="more"))


def wide_arithmetic(proto: onnx.ModelProto) -> None:
    proto.graph.node.append(helper.make_node("Add", ["past_length", "past_length"], ["twice"], name="twice"))


def shape_in_numbers(proto: onnx.ModelProto) -> None:
    cast = helper.make_node("Cast", ["past_length"], ["length"], name="length", to=TensorProto.INT32)
    proto.graph.node.append(cast)


def too_many(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.array([3841], np.int64), "many"))
    node(proto, "TopK").input[1] = "many"


def a_shape_from_elsewhere(proto: onnx.ModelProto) -> None:
    proto.graph.input.append(helper.make_tensor_value_info("wanted", TensorProto.INT64, [3]))
    node(proto, "Reshape").input[1] = "wanted"


def a_table_that_is_made(proto: onnx.ModelProto) -> None:
    of = node(proto, "Gather")
    proto.graph.node.insert(0, helper.make_node("Identity", [of.input[0]], ["made"], name="made"))
    of.input[0] = "made"


ATTACKS: dict[str, tuple[str, Attack, str]] = {
    "operator": ("body", another_operator, "not an operator of this dialect"),
    "domain": ("body", contrib, "domain com.microsoft"),
    "opset": ("body", newer_operators, "operator sets"),
    "contrib": ("body", contrib_imported, "operator sets"),
    "attribute": ("body", attribute("Softmax", "beta", 1), "attribute beta"),
    "split by count": ("body", attribute("Split", "num_outputs", 3), "num_outputs"),
    "softmax in half": ("body", narrow_softmax, "float16"),
    "axis of softmax": ("body", attribute("Softmax", "axis", 1), "not the last"),
    "zero points": ("body", zero_points, "zero points"),
    "float32 scales": ("body", wide_scales, "int4 with scales in float"),
    "a scale of zero": ("body", no_scale, "above zero"),
    "blocks of 32": ("body", attribute("DequantizeLinear", "block_size", 32), "blocks of 32"),
    "along the other axis": ("body", attribute("DequantizeLinear", "axis", 1), "along axis 1"),
    "weights read twice": ("body", read_twice, "second factor of a product"),
    "weights not decoded": ("body", coded_and_not_decoded, "not dequantised"),
    "three dimensions": ("body", three_dimensions, "3 dimensions, not 2"),
    "64-bit indices": ("head", wide_indices, "int64"),
    "64-bit sums": ("body", wide_arithmetic, "int64"),
    "64-bit casts": ("body", shape_in_numbers, "64-bit integers on the device"),
    "64-bit input": ("head", other_type("gather_ids", TensorProto.INT64), "int64"),
    "double output": ("head", other_type("logsumexp", TensorProto.DOUBLE), "do not agree"),
    "K": ("head", too_many, "K = 3841"),
    "open shape": ("body", a_shape_from_elsewhere, "the shape must be a constant"),
    "gathered rows": ("body", a_table_that_is_made, "constant table alone"),
    "mixed types": ("body", other_type("past_key_0", TensorProto.FLOAT), "do not agree"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_each_rule_can_fail(name: str, graphs: dict[str, onnx.ModelProto]) -> None:
    which, attack, words = ATTACKS[name]
    attacked = onnx.ModelProto()
    attacked.CopyFrom(graphs[which])
    assert violations(attacked) == ()
    attack(attacked)
    found = violations(attacked)
    assert any(words in line for line in found), found
    assert all("\n" not in line for line in found)
