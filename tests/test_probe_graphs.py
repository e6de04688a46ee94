"""Graphs that are written and cut byte by byte, against the onnx package; matrices, against naive unpacking."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny_bundle as tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edge_runtime.bundle import TARGET, read_manifest
from edge_runtime.doctor.probes.cut import Layer, NoLayer, cut_layer, with_level, with_output
from edge_runtime.doctor.probes.graphs import (
    MICROSOFT,
    Constant,
    Edge,
    Node,
    attributes_of,
    edge_bytes,
    edge_of,
    model,
    tensor_head,
    with_attribute,
)
from edge_runtime.doctor.probes.layers import bundle_shapes, feeds_of, fitting, made_up_layer
from edge_runtime.doctor.probes.matrices import block_matrix, difference, float_matrix, int4_matrix, rows_of
from edge_runtime.wire import Field, Fixed, decode, encode, fixed32, texts


def small_graph() -> bytes:
    nodes = [
        Node("MatMul", ("x", "w"), "h", {}),
        Node("LeakyRelu", ("h",), "y", {"alpha": 0.25}),
        Node("MatMulNBits", ("y", "q", "s"), "z", {"K": 32, "N": 4, "bits": 4, "block_size": 32}, MICROSOFT),
    ]
    constants = [
        Constant("w", np.arange(32 * 32, dtype=np.float32).reshape(32, 32)),
        Constant("q", np.arange(64, dtype=np.uint8).reshape(4, 1, 16)),
        Constant("s", np.ones((4, 1), np.float32)),
        Constant("i", np.arange(6, dtype=np.uint8).reshape(2, 3), (2, 6)),
        Constant("n", np.array([-1, 1 << 40], np.int64)),
    ]
    return model(nodes, constants, [Edge("x", "float32", ("rows", 32))], [Edge("z", "float32", ("rows", 4))])


def test_a_graph_is_what_the_onnx_package_reads() -> None:
    data = small_graph()
    read = onnx.load_from_string(data)
    onnx.checker.check_model(read)
    assert [(one.domain, one.version) for one in read.opset_import] == [("", 21), (MICROSOFT, 1)]
    assert [node.op_type for node in read.graph.node] == ["MatMul", "LeakyRelu", "MatMulNBits"]
    assert read.graph.node[1].attribute[0].f == 0.25 and read.graph.node[2].attribute[0].i == 32
    w, q, _, four_bits, numbers = read.graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(w), np.arange(1024).reshape(32, 32)) and list(q.dims) == [4, 1, 16]
    assert four_bits.data_type == TensorProto.INT4 and list(four_bits.dims) == [2, 6]
    assert onnx.numpy_helper.to_array(numbers).tolist() == [-1, 1 << 40]
    dims = read.graph.input[0].type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == ("rows", 32)
    # The same fields in the same words, whoever writes them.
    assert onnx.load_from_string(encode(list(decode(data)))) == read


def test_a_graph_without_foreign_operators_names_no_foreign_domain() -> None:
    edges = [Edge(name, "uint8", ("n",)) for name in ("x", "y")]
    read = onnx.load_from_string(model([Node("Identity", ("x",), "y", {})], [], edges[:1], edges[1:]))
    onnx.checker.check_model(read, full_check=True)
    assert [one.domain for one in read.opset_import] == [""]


def test_what_the_onnx_package_writes_is_read() -> None:
    edge = helper.make_tensor_value_info("past", TensorProto.FLOAT16, [1, "capacity", None, 64])
    assert edge_of(edge.SerializeToString()) == Edge("past", "float16", (1, "capacity", "", 64))
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2, 300], np.zeros(600))
    head = tensor_head(tensor.SerializeToString())
    assert (head.name, head.dtype, head.shape) == ("w", "float32", (2, 300))
    node = helper.make_node("MatMulNBits", ["x"], ["y"], K=640, N=-1, accuracy_level=4, note="a", scale=1.5)
    data = node.SerializeToString()
    assert attributes_of(data)["K"] == 640 and attributes_of(data)["accuracy_level"] == 4
    changed = onnx.NodeProto.FromString(with_attribute(data, "accuracy_level", 1))
    assert {one.name: helper.get_attribute_value(one) for one in changed.attribute} == {
        "K": 640, "N": -1, "accuracy_level": 1, "note": b"a", "scale": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(), (3,), ("rows", 4), (1, "rows", 1 << 33)])
def test_an_edge_comes_back(shape: tuple[int | str, ...]) -> None:
    assert edge_of(edge_bytes(Edge("x", "int32", shape))) == Edge("x", "int32", shape)
    assert edge_of(edge_bytes(Edge("x", "", shape))) == Edge("x", "", ())


_FIELDS = st.lists(
    st.tuples(
        st.integers(1, 5000),
        st.integers(0, (1 << 64) - 1) | st.binary(max_size=300) | st.binary(min_size=4, max_size=4).map(Fixed)
        | st.binary(min_size=8, max_size=8).map(Fixed),
    )
)  # fmt: skip


@settings(max_examples=40)
@given(_FIELDS)
def test_messages_come_back(fields: list[Field]) -> None:
    back = list(decode(encode(fields)))
    assert back == fields and [type(value) for _, value in back] == [type(value) for _, value in fields]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    try:
        fields = list(decode(data))
    except ValueError:
        return
    assert all(isinstance(number, int) for number, _ in fields)


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\x0b\x00", b"\x80" * 20, b"\x0d\x00\x00"])
def test_a_message_that_is_cut_off_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|wire type"):
        list(decode(data))


def test_floats_and_texts() -> None:
    assert fixed32(1.5) == struct.pack("<f", 1.5)
    assert texts(encode([(1, b"a"), (2, b"b"), (1, b"c"), (1, 7)]), 1) == ("a", "c")


def body() -> bytes:
    return (tiny.bundle() / "target.body.onnx").read_bytes()


def cut() -> Layer:
    return cut_layer(body(), read_manifest(tiny.bundle()).model(TARGET).hidden_size)


def run(graph: bytes, feeds: dict[str, Any], folder: str | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_a_layer_that_is_cut_out_computes_what_it_does_inside_of_its_model() -> None:
    layer, folder = cut(), str(tiny.bundle())
    assert (layer.start, layer.end) == ("x0", "a1")
    feeds = feeds_of(layer.inputs, 3)
    (alone,) = run(layer.graph, feeds, folder)
    # The whole model again, with the rows that enter the layer and those that leave it as outputs of their own.
    whole = onnx.load_from_string(body())
    for name in (layer.start, layer.end):
        whole.graph.output.append(helper.make_empty_tensor_value_info(name))
    target = read_manifest(tiny.bundle()).model(TARGET)
    ids = np.array([[5, 300, 7]], np.int64)
    given = {name: values for name, values in feeds.items() if name != layer.start} | {"input_ids": ids}
    for index, kv in enumerate(target.layers[1:], 1):
        shape = (1, kv.kv_heads, feeds["past_key_0"].shape[2], kv.head_dim)
        given |= {f"past_{part}_{index}": np.zeros(shape, np.float32) for part in ("key", "value")}
    *_, entered, left = run(whole.SerializeToString(), given, folder)
    (again,) = run(layer.graph, feeds | {layer.start: entered}, folder)
    assert again.tobytes() == left.tobytes() and again.shape == alone.shape and not np.array_equal(again, alone)


def test_a_layer_holds_its_own_weights_alone() -> None:
    layer = cut()
    read = onnx.load_from_string(layer.graph)
    names = {one.name for one in read.graph.initializer}
    assert "embed" not in names and not any(name.startswith("layers.1.") for name in names - {"layers.1.attn_norm"})
    assert len(layer.graph) < len(body()) / 2
    assert {one.name for one in layer.inputs} == {one.name for one in read.graph.input} >= {"x0", "past_key_0"}
    manifest = read_manifest(tiny.bundle())
    hidden = manifest.model(TARGET).hidden_size
    assert len(layer.products) == 4 and layer.products[0][0] == layer.products[2][0] == hidden
    shapes = bundle_shapes(tiny.bundle(), manifest, 2, 1 << 20)
    assert set(shapes) <= set(layer.products) and all(inner % 64 == 0 for inner, _ in shapes)


def test_another_accuracy_level_changes_every_block_product_and_nothing_else() -> None:
    layer = cut()
    before, after = onnx.load_from_string(layer.graph), onnx.load_from_string(with_level(layer.graph, 1))
    levels = [one.i for node in after.graph.node for one in node.attribute if one.name == "accuracy_level"]
    assert levels == [1] * 4
    for node in after.graph.node:
        for one in node.attribute:
            if one.name == "accuracy_level":
                one.i = 4
    assert after == before


def test_the_output_can_be_given_a_type() -> None:
    read = onnx.load_from_string(with_output(cut().graph, Edge("a1", "float32", (1, "rows", 64))))
    assert read.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.parametrize(
    "data", [b"", b"\x0a\x05ab", b"no graph at all", small_graph(), encode([(7, encode([(1, b"\xff\xff")]))])]
)
def test_what_holds_no_such_layer_is_refused(data: bytes) -> None:
    with pytest.raises(NoLayer):
        cut_layer(data, 64)


def test_inputs_of_both_dialects() -> None:
    edges = (
        Edge("embeddings", "float32", (1, "rows", 8)),
        Edge("positions", "int32", ("rows",)),
        Edge("past_key_0", "float16", (1, 1, 32, 4)),
        Edge("attention_bias", "float32", (1, 1, "rows", "total")),
        Edge("seqlens_k", "int32", (1,)),
        Edge("total_sequence_length", "int32", (1,)),
    )
    feeds = feeds_of(edges, 3)
    past = int(feeds["positions"][0])
    assert feeds["positions"].tolist() == [past, past + 1, past + 2] and past < 32
    assert feeds["total_sequence_length"].tolist() == [past + 3] and feeds["seqlens_k"].tolist() == [past + 2]
    assert np.array_equal(feeds["attention_bias"][0, 0, :, -3:] == 0.0, np.tril(np.ones((3, 3), bool)))
    assert feeds["past_key_0"].dtype == np.float16 and feeds["embeddings"].shape == (1, 3, 8)


@pytest.mark.parametrize(
    "edge", [Edge("ids", "int64", (1, "rows")), Edge("x", "float32", ("batch", 4)), Edge("y", "", ())]
)
def test_an_unknown_input_is_refused_by_name(edge: Edge) -> None:
    with pytest.raises(NoLayer, match=edge.name):
        feeds_of((edge,), 2)


def test_large_products_are_cut_to_fewer_columns() -> None:
    assert fitting((2304, 9216), 1 << 25) == (2304, 9216)
    assert fitting((2304, 18432), 24 << 20) == (2304, 9216)
    assert fitting((7, 999), 100) == (7, 14)


@pytest.mark.parametrize("bits", [4, 8])
def test_block_matrices_unpack_to_what_is_checked(bits: int) -> None:
    matrix = block_matrix(1, 64, 300, bits, 32, "float32")
    stored, scales = matrix.stored
    for place, column in enumerate(matrix.columns[[0, 5, 200, -1]].tolist()):
        expected = []
        for block in range(2):
            for value in stored[column, block].tolist():
                parts = [value & 15, value >> 4] if bits == 4 else [value]
                expected += [(one - (1 << bits - 1)) * float(scales[column, block]) for one in parts]
        index = [0, 5, 200, 255][place]
        assert np.allclose(matrix.checked[:, index], expected, rtol=1e-6)
    assert matrix.columns[-1] == 299 and len(matrix.columns) == 256


def test_int4_matrices_are_what_onnx_unpacks() -> None:
    matrix = int4_matrix(1, 64, 6, 32)
    constants = [Constant("q", matrix.stored[0], (64, 6)), Constant("s", matrix.stored[1])]
    nodes = [Node("DequantizeLinear", ("q", "s"), "w", {"axis": 0, "block_size": 32})]
    (unpacked,) = run(model(nodes, constants, [], [Edge("w", "float16", (64, 6))]), {})
    assert np.allclose(unpacked.astype(np.float32), matrix.checked, rtol=1e-3)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "int4"])
def test_products_are_near_one_and_a_wrong_one_is_seen(kind: str) -> None:
    bits = {"int8": 8, "int4": 4}.get(kind)
    matrix = float_matrix(2, 512, 200, kind) if bits is None else block_matrix(2, 512, 200, bits, 64, "float32")
    rows = rows_of(3, 4, 512)
    right = rows @ matrix.checked
    assert 0.5 < np.std(right) < 2.0
    exact = difference(matrix, rows, right)
    assert exact is not None and exact < 1e-5
    wrong = right.copy()
    wrong[2, -1] += 5.0
    assert difference(matrix, rows, wrong) > 0.5  # type: ignore[operator]
    wrong[0, 0] = np.nan
    assert difference(matrix, rows, wrong) is None


def test_one_run_reads_more_than_a_cache_holds() -> None:
    assert int4_matrix(1, 2304, 1024, 64).copies * int4_matrix(1, 2304, 1024, 64).weight_bytes >= 40 << 20
    assert float_matrix(1, 64, 64, "float32").copies == 64


@pytest.mark.parametrize("style", ["ort", "tensorrt"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_layer_that_is_made_up_gives_what_it_expects(style: str, dtype: str) -> None:
    case = made_up_layer(style, dtype)
    read = onnx.load_from_string(case.graph)
    onnx.checker.check_model(read)
    feeds = case.feeds(3)
    (result,) = run(with_level(case.graph, 1), feeds)
    assert case.expected is not None
    expected = case.expected(feeds)
    assert np.max(np.abs(result - expected)) < 0.02 * np.max(np.abs(expected))


@pytest.mark.parametrize("body", ["", "target.nf4"])
def test_a_bundle_without_a_graph_has_no_layer(body: str) -> None:
    manifest = read_manifest(tiny.bundle())
    alone = replace(manifest.model(TARGET), stem=None, body=body)
    with pytest.raises(NoLayer, match="no graph"):
        bundle_shapes(tiny.bundle(), replace(manifest, models={TARGET: alone}), 2, 1 << 20)
