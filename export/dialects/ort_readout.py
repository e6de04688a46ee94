"""The readout graph: logits in, a handful of numbers per row out. Knows no model, only the size of its vocabulary.

Copying [T, 262144] logits to Python costs milliseconds; 64 candidates cost microseconds. The candidates come from an
exact two-stage search: the C largest logits lie in the C groups with the largest maxima, so a vectorised maximum over
groups of 64 leaves 64 x 64 values to a heap (0.1 ms against 0.5 ms a row for a TopK over everything, measured).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from .ort import IR_VERSION, OPSET

_GROUP = 64


def spell_readout(vocab_size: int, candidates: int, token_ids: NDArray[np.int64] | None) -> onnx.ModelProto:
    """Inputs logits [R,V] f32, inverse_temperature [] f32, gather_rows [R,G] i64 (head rows). Outputs argmax [R] i64,
    candidate_ids [R,C] i64 and candidate_logits [R,C] f32 by falling logit, logsumexp [R] f32, gathered [R,G] f32.

    ``token_ids`` [V] maps the rows of a reduced head to token ids; argmax and candidate_ids are token ids.
    """
    graph = _Nodes()
    grouped = _groups(vocab_size) >= candidates
    rows = _grouped_top(graph, vocab_size, candidates) if grouped else _plain_top(graph, candidates)
    if token_ids is not None:
        rows = graph.node("Gather", [graph.constant("token_ids", token_ids), rows], "mapped_rows")
    graph.node("Identity", [rows], "candidate_ids")
    first = graph.slice("candidate_ids", "first_id")
    graph.node("Squeeze", [first, graph.ints("axis1", [1])], "argmax")
    _logsumexp(graph)
    graph.node("GatherElements", ["logits", "gather_rows"], "gathered", axis=1)
    floats, ints, value = TensorProto.FLOAT, TensorProto.INT64, helper.make_tensor_value_info
    inputs = [
        value("logits", floats, ["rows", vocab_size]),
        value("inverse_temperature", floats, []),
        value("gather_rows", ints, ["rows", "gathered"]),
    ]
    outputs = [
        value("argmax", ints, ["rows"]),
        value("candidate_ids", ints, ["rows", candidates]),
        value("candidate_logits", floats, ["rows", candidates]),
        value("logsumexp", floats, ["rows"]),
        value("gathered", floats, ["rows", "gathered"]),
    ]
    body = helper.make_graph(
        graph.nodes,
        "readout",
        inputs,
        outputs,
        list(graph.initializers.values()),
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-export")


class _Nodes:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def node(self, kind: str, inputs: list[str], out: str, more: tuple[str, ...] = (), **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [out, *more], name=out, **attributes))
        return out

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def ints(self, name: str, values: list[int]) -> str:
        return self.constant(name, np.array(values, np.int64))

    def slice(self, x: str, out: str) -> str:
        """[R, n] -> [R, 1]"""
        return self.node("Slice", [x, self.ints("zero", [0]), self.ints("one", [1]), self.ints("axis1", [1])], out)


def _groups(vocab_size: int) -> int:
    return vocab_size // _GROUP if vocab_size % _GROUP == 0 else 0


def _plain_top(graph: _Nodes, candidates: int) -> str:
    graph.node("TopK", ["logits", graph.ints("candidates", [candidates])], "candidate_logits", ("top_rows",), axis=-1)
    return "top_rows"


def _grouped_top(graph: _Nodes, vocab_size: int, candidates: int) -> str:
    groups = _groups(vocab_size)
    count = graph.ints("candidates", [candidates])
    graph.node("Reshape", ["logits", graph.ints("by_group", [0, groups, _GROUP])], "grouped")
    graph.node("ReduceMax", ["grouped", graph.ints("axis2", [2])], "group_max", keepdims=0)
    graph.node("TopK", ["group_max", count], "best_max", ("best_group",), axis=-1)
    graph.node("Unsqueeze", ["best_group", graph.ints("axis2", [2])], "group_index")
    graph.node("Expand", ["group_index", graph.ints("group_shape", [1, 1, _GROUP])], "group_indices")
    graph.node("GatherElements", ["grouped", "group_indices"], "best_values", axis=1)
    graph.node("Reshape", ["best_values", graph.ints("flat", [0, candidates * _GROUP])], "best_flat")
    graph.node("TopK", ["best_flat", count], "candidate_logits", ("flat_index",), axis=-1)
    size = graph.constant("group_size", np.array(_GROUP, np.int64))
    graph.node("Div", ["flat_index", size], "which_group")
    graph.node("Mod", ["flat_index", size], "within_group")
    graph.node("GatherElements", ["best_group", "which_group"], "group_of", axis=1)
    graph.node("Mul", ["group_of", size], "group_start")
    return graph.node("Add", ["group_start", "within_group"], "top_rows")


def _logsumexp(graph: _Nodes) -> None:
    """By the maximum, which the search has found already; ReduceLogSumExp is eight times slower on the CPU."""
    graph.slice("candidate_logits", "max_logit")
    graph.node("Sub", ["logits", "max_logit"], "below_max")
    graph.node("Mul", ["below_max", "inverse_temperature"], "tempered")
    graph.node("Exp", ["tempered"], "weights")
    graph.node("ReduceSum", ["weights", graph.ints("axis1", [1])], "weight_sum", keepdims=0)
    graph.node("Squeeze", ["max_logit", graph.ints("axis1", [1])], "max_row")
    graph.node("Mul", ["max_row", "inverse_temperature"], "tempered_max")
    graph.node("Add", [graph.node("Log", ["weight_sum"], "log_sum"), "tempered_max"], "logsumexp")
