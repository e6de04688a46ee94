"""The readout graphs: logits in, a handful of numbers per row out. Know no model, only the size of its vocabulary.

Copying [T, 262144] logits to Python costs milliseconds; 64 candidates cost microseconds. The candidates come from an
exact two-stage search: the C largest logits lie in the C groups with the largest maxima, so a vectorised maximum over
small groups leaves few values to a heap (0.1 ms against 0.5 ms a row for a TopK over everything, measured).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..weights import Blocks
from .ort_nodes import IR_VERSION, MS, OPSET, block_table

GROUP = 64
LANES = 16
"""Floats of the widest vector register."""
SCREENED = 256
"""Rows that a screened head rescores. On 400 rows of text the true argmax ranked 6th at worst in the 4-bit screen and
all of the true best 64 were among 256 (docs/log.md)."""


@dataclass(frozen=True, slots=True)
class Rescore:
    """The exact table behind a screen: [vocab, hidden] block weights, and the softcap of its logits."""

    table: Blocks
    softcap: float | None


def spell_readout(vocab_size: int, candidates: int, token_ids: NDArray[np.int64] | None) -> onnx.ModelProto:
    """Inputs logits [R,V] f32, inverse_temperature [] f32, gather_rows [R,G] i64 (head rows). Outputs argmax [R] i64,
    candidate_ids [R,C] i64 and candidate_logits [R,C] f32 by falling logit, logsumexp [R] f32, gathered [R,G] f32.

    ``token_ids`` [V] maps the rows of a reduced head to token ids; argmax and candidate_ids are token ids.
    """
    graph = ReadoutNodes()
    rows = top_rows(graph, "logits", vocab_size, candidates, "candidate_logits")
    if token_ids is not None:
        rows = graph.node("Gather", [graph.constant("token_ids", token_ids), rows], "mapped_rows")
    graph.node("Identity", [rows], "candidate_ids")
    graph.node("Squeeze", [graph.first("candidate_ids"), graph.ints("axis1", [1])], "argmax")
    total = exp_sum(graph, "logits", "all")
    close_logsumexp(graph, total)
    graph.node("GatherElements", ["logits", "gather_rows"], "gathered", axis=1)
    return graph.model(vocab_size, candidates, [], [])


def screened_rows(vocab_size: int, candidates: int) -> int:
    return min(max(SCREENED, 4 * candidates), vocab_size)


def spell_screened_readout(vocab_size: int, candidates: int, hidden_size: int, rescore: Rescore) -> onnx.ModelProto:
    """As ``spell_readout``, for ``logits`` that a coarse table gave: the best ``SCREENED`` rows of it are scored again
    with the exact table. More inputs: hidden [R,H] f32. More outputs: rescored_rows [R,S] i64 and rescored_logits
    [R,S] f32, which mend a full row; gather_rows is [R,1], and all outputs are of the mended row.
    """
    graph = ReadoutNodes()
    screened = screened_rows(vocab_size, candidates)
    rows = top_rows(graph, "logits", vocab_size, screened, "screen_logits")
    graph.node("Identity", [rows], "rescored_rows")
    quants, *rest_of_table = block_table(graph.add_initializer, "embed", rescore.table)
    graph.node(
        "GatherBlockQuantized", [quants, "rescored_rows", *rest_of_table], "weights_of_rows", domain=MS,
        bits=rescore.table.bits, block_size=rescore.table.block_size, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    # Not a MatMul: how that is cut into threads, and with it the last digit, depends on the number of rows.
    across = graph.node("Unsqueeze", ["hidden", graph.ints("axis1", [1])], "hidden_across")
    terms = graph.node("Mul", ["weights_of_rows", across], "terms")
    scores = "rescored_logits" if rescore.softcap is None else "raw_scores"
    graph.node("ReduceSum", [terms, graph.ints("axis2", [2])], scores, keepdims=0)
    if rescore.softcap is not None:
        cap = graph.constant("cap", np.array(rescore.softcap, np.float32))
        squashed = graph.node("Tanh", [graph.node("Div", [scores, cap], "scaled")], "squashed")
        graph.node("Mul", [squashed, cap], "rescored_logits")
    _mended_gather(graph)
    count = graph.ints("candidates", [candidates])
    graph.node("TopK", ["rescored_logits", count], "candidate_logits", ("best",), axis=-1)
    graph.node("GatherElements", ["rescored_rows", "best"], "candidate_ids", axis=1)
    graph.node("Squeeze", [graph.first("candidate_ids"), graph.ints("axis1", [1])], "argmax")
    # All of the screen, less what was rescored, plus the exact values of that.
    # Both cut off at the least of the rescored: no other logit is above it, so the difference is the same, and at low
    # temperatures a coarse logit above the exact maximum can neither overflow nor drown the rest.
    graph.cut("screen_logits", screened - 1, screened, "least")
    graph.node("Min", ["logits", "least"], "logits.bounded")
    graph.node("Min", ["screen_logits", "least"], "screen.bounded")
    sums = [exp_sum(graph, "logits.bounded", "all"), exp_sum(graph, "screen.bounded", "screen")]
    rest = graph.node("Sub", sums, "rest")
    total = graph.node(
        "Add", [graph.node("Relu", [rest], "rest_sum"), exp_sum(graph, "rescored_logits", "best")], "total"
    )
    close_logsumexp(graph, total)
    value = helper.make_tensor_value_info
    return graph.model(
        vocab_size,
        candidates,
        [value("hidden", TensorProto.FLOAT, ["rows", hidden_size])],
        [
            value("rescored_rows", TensorProto.INT64, ["rows", screened]),
            value("rescored_logits", TensorProto.FLOAT, ["rows", screened]),
        ],
    )


class ReadoutNodes:
    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self.done: set[str] = set()

    def node(
        self, kind: str, inputs: list[str], out: str, more: tuple[str, ...] = (), domain: str = "", **attributes: Any
    ) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [out, *more], name=out, domain=domain, **attributes))
        return out

    def add_initializer(self, tensor: onnx.TensorProto) -> str:
        self._initializers.setdefault(tensor.name, tensor)
        return tensor.name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        return self.add_initializer(numpy_helper.from_array(array, name))

    def ints(self, name: str, values: list[int]) -> str:
        return self.constant(name, np.array(values, np.int64))

    def cut(self, x: str, start: int, stop: int, out: str) -> str:
        """Columns [start, stop)."""
        bounds = [self.ints(f"column_{start}", [start]), self.ints(f"column_{stop}", [stop])]
        return self.node("Slice", [x, *bounds, self.ints("axis1", [1])], out)

    def first(self, x: str) -> str:
        return self.cut(x, 0, 1, f"{x}.first")

    def model(
        self,
        vocab_size: int,
        candidates: int,
        more_inputs: list[onnx.ValueInfoProto],
        more_outputs: list[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
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
        initializers = list(self._initializers.values())
        body = helper.make_graph(self._nodes, "readout", inputs + more_inputs, outputs + more_outputs, initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MS, 1)]
        return helper.make_model(body, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edge-export")


def _mended_gather(graph: ReadoutNodes) -> None:
    """``gathered`` as the mended row has it: exact where the id was rescored, coarse elsewhere.

    Exact everywhere would be closer to the model, and yet wrong: acceptance of a draft and the law that replaces it
    must be of one and the same row.
    """
    graph.node("GatherElements", ["logits", "gather_rows"], "coarse", axis=1)
    same = graph.node("Equal", ["rescored_rows", "gather_rows"], "same_row")
    hit = graph.node("Cast", [same], "hit", to=TensorProto.FLOAT)
    axis = graph.ints("axis1", [1])
    known = graph.node("ReduceMax", [hit, axis], "known", keepdims=1)
    exact = graph.node("ReduceSum", [graph.node("Mul", [hit, "rescored_logits"], "hits"), axis], "exact", keepdims=1)
    change = graph.node("Mul", [known, graph.node("Sub", [exact, "coarse"], "difference")], "change")
    graph.node("Add", ["coarse", change], "gathered")


def top_rows(graph: ReadoutNodes, logits: str, vocab_size: int, count: int, values: str) -> str:
    """The ``count`` largest of each row: their logits as ``values``, and the name of their head rows."""
    wanted = graph.ints(f"count_{count}", [count])
    if vocab_size % GROUP or vocab_size // GROUP < count:
        graph.node("TopK", [logits, wanted], values, ("top_rows",), axis=-1)
        return "top_rows"
    groups = vocab_size // GROUP
    graph.node("Reshape", [logits, graph.ints("by_group", [0, groups, GROUP])], "grouped")
    graph.node("ReduceMax", ["grouped", graph.ints("axis2", [2])], "group_max", keepdims=0)
    graph.node("TopK", ["group_max", wanted], "best_max", ("best_group",), axis=-1)
    graph.node("Unsqueeze", ["best_group", graph.ints("axis2", [2])], "group_index")
    graph.node("Expand", ["group_index", graph.ints("group_shape", [1, 1, GROUP])], "group_indices")
    graph.node("GatherElements", ["grouped", "group_indices"], "best_values", axis=1)
    graph.node("Reshape", ["best_values", graph.ints("flat", [0, count * GROUP])], "best_flat")
    graph.node("TopK", ["best_flat", wanted], values, ("flat_index",), axis=-1)
    size = graph.constant("group_size", np.array(GROUP, np.int64))
    graph.node("Div", ["flat_index", size], "which_group")
    graph.node("Mod", ["flat_index", size], "within_group")
    graph.node("GatherElements", ["best_group", "which_group"], "group_of", axis=1)
    graph.node("Mul", ["group_of", size], "group_start")
    return graph.node("Add", ["group_start", "within_group"], "top_rows")


def exp_sum(graph: ReadoutNodes, values: str, tag: str) -> str:
    """sum exp((values - largest candidate) * inverse_temperature), [R, 1].

    By the maximum, which the search has found already; ReduceLogSumExp is eight times slower on the CPU.
    """
    if "max_logit" not in graph.done:
        graph.done.add("max_logit")
        graph.cut("candidate_logits", 0, 1, "max_logit")
    graph.node("Sub", [values, "max_logit"], f"{tag}.below")
    graph.node("Mul", [f"{tag}.below", "inverse_temperature"], f"{tag}.tempered")
    graph.node("Exp", [f"{tag}.tempered"], f"{tag}.weights")
    return graph.node("ReduceSum", [f"{tag}.weights", graph.ints("axis1", [1])], f"{tag}.sum", keepdims=1)


def close_logsumexp(graph: ReadoutNodes, total: str) -> None:
    graph.node("Mul", ["max_logit", "inverse_temperature"], "tempered_max")
    # Repeated, so that every row goes through the vectorised logarithm: what is left over of a vector goes through
    # another one, whose last digit differs, and a row must not depend on how many are beside it.
    repeated = graph.node("Expand", [total, graph.ints("lanes", [1, LANES])], "total.repeated")
    log_sum = graph.cut(graph.node("Log", [repeated], "log_sums"), 0, 1, "log_sum")
    column = graph.node("Add", [log_sum, "tempered_max"], "logsumexp.column")
    graph.node("Squeeze", [column, graph.ints("axis1", [1])], "logsumexp")
