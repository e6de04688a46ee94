"""One body for several sessions at once. Knows how attention is spelt, and no weights.

Everything but attention treats a row by itself, so rows of several sessions run side by side through one body, whose
matrices are then read once for all of them. Attention goes lane by lane: onnxruntime's takes several new rows behind a
past for one session at a time.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_runtime.bundle import lane_input
from edge_runtime.errors import ConfigError

from .ort_nodes import MS, value_info

_PER_LANE = ("seqlens_k", "total_sequence_length")
_INPUTS = ["query", "key", "value", "past_key", "past_value", *_PER_LANE, "cos", "sin"]


def with_lanes(body: onnx.ModelProto, lanes: int) -> onnx.ModelProto:
    """``body`` (``spell_body``) for ``lanes`` sessions of one row or more each.

    Inputs input_ids [1,R] i64, the rows of all lanes one lane behind the other; lane_rows [lanes + 1] i64: how many are
    each lane's, and last how many are nobody's; rows [1] i64 (= R); for each lane, by ``bundle.lane_input``, seqlens_k,
    total_sequence_length and past_*. Outputs hidden [1,R,hidden] and each lane's present_*. Behind the R rows stand
    ``lanes`` rows of zeros: a lane without work, which must be among the last, takes one of these and writes its K/V.

    Raises ``ConfigError`` for a body with more than plain attention (trees, Gemma 4).
    """
    taken = {one.name for one in body.graph.input}
    plain = all(len(node.input) == len(_INPUTS) and all(node.input) for node in _attentions(body))
    if not plain or any("past_" not in name and name not in ("input_ids", *_PER_LANE) for name in taken):
        raise ConfigError("lanes: the layers of this model (Gemma 4) do not run in lanes yet; leave it out")
    twin = onnx.ModelProto()
    twin.CopyFrom(body)
    graph = twin.graph
    for kept in (graph.node, graph.input, graph.output):
        del kept[:]
    for one in body.graph.input:
        graph.input.extend(_of_lanes(one, lanes) if one.name != "input_ids" else [one])
    graph.input.append(value_info("lane_rows", TensorProto.INT64, (lanes + 1,)))
    graph.input.append(value_info("rows", TensorProto.INT64, (1,)))
    for one in body.graph.output:
        graph.output.extend(_of_lanes(one, lanes) if one.name.startswith("present_") else [one])
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "lanes.start"))
    graph.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), "lanes.axis"))
    widths: dict[str, int] = {}
    for node in body.graph.node:
        if node.op_type == "GroupQueryAttention":
            graph.node.extend(_attend(graph, body, node, lanes, widths))
        else:
            graph.node.append(node)
    return twin


def of_first_lane(name: str) -> bool:
    """Whether an input or output is that of all lanes, or of the first."""
    return ".lane" not in name or name.endswith(lane_input("", 0))


def _attentions(body: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in body.graph.node if node.op_type == "GroupQueryAttention"]


def _of_lanes(one: onnx.ValueInfoProto, lanes: int) -> list[onnx.ValueInfoProto]:
    """Each lane its own, whose cache is as long as it likes."""
    found = []
    for lane in range(lanes):
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(one)
        copy.name = lane_input(one.name, lane)
        for dim in copy.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"{dim.dim_param}_{lane}"
        found.append(copy)
    return found


def _attend(
    graph: onnx.GraphProto, body: onnx.ModelProto, node: onnx.NodeProto, lanes: int, widths: dict[str, int]
) -> list[onnx.NodeProto]:
    """Queries, keys and values side by side, as the operator takes them too: they are cut into lanes at one go."""
    out = node.output[0]
    given = dict(zip(_INPUTS, node.input, strict=True))
    padding = _padding(graph, body, node, lanes, widths)
    made = [
        helper.make_node("Concat", [given[part] for part in ("query", "key", "value")], [f"{out}.beside"], axis=-1),
        helper.make_node("Concat", [f"{out}.beside", padding], [f"{out}.padded"], axis=1),
    ]
    parts = [f"{out}.rows{lane}" for lane in range(lanes)]
    made.append(helper.make_node("Split", [f"{out}.padded", "lane_rows"], [*parts, f"{out}.nobody"], axis=1))
    outs = [f"{out}.lane{lane}" for lane in range(lanes)]
    for lane in range(lanes):
        own = [lane_input(given[name], lane) for name in ("past_key", "past_value", *_PER_LANE)]
        inputs = [parts[lane], "", "", *own, given["cos"], given["sin"]]
        presents = [lane_input(name, lane) for name in node.output[1:]]
        attention = helper.make_node("GroupQueryAttention", inputs, [outs[lane], *presents], domain=MS)
        attention.attribute.extend(node.attribute)
        made.append(attention)
    made.append(helper.make_node("Concat", outs, [f"{out}.joined"], axis=1))
    made.append(helper.make_node("Slice", [f"{out}.joined", "lanes.start", "rows", "lanes.axis"], [out]))
    for one in made:
        one.name = next(name for name in one.output if name)
    return made


def _padding(
    graph: onnx.GraphProto, body: onnx.ModelProto, node: onnx.NodeProto, lanes: int, widths: dict[str, int]
) -> str:
    """Rows of zeros for lanes without work, once for each width."""
    attributes = {one.name: one.i for one in node.attribute}
    past = next(one for one in body.graph.input if one.name == node.input[_INPUTS.index("past_key")])
    kind = past.type.tensor_type
    width = (attributes["num_heads"] + 2 * attributes["kv_num_heads"]) * kind.shape.dim[3].dim_value
    name = f"lanes.padding_{width}"
    if name not in widths:
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        graph.initializer.append(numpy_helper.from_array(np.zeros((1, lanes, width), dtype), name))
        widths[name] = width
    return name
