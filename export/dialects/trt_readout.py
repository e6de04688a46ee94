"""What follows the logits in a head for TensorRT: a handful of numbers per row. Knows the vocabulary's size alone.

The exact search in two stages of ``ort_readout``: the C largest logits lie in the C groups with the largest maxima.
Indices are cast to 32 bits where they arise, and nothing is divided: each value of a group brings its row along.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..graph import Graph
from .trt_nodes import TrtNodes

GROUP = 64


def spell_readout(nodes: TrtNodes, vocab_size: int, candidates: int) -> None:
    """From ``logits`` [R,V] f32, ``inverse_temperature`` [1] and ``gather_ids`` [R]: argmax, candidate_ids,
    candidate_logits, logsumexp, gathered."""
    logits, one = Graph.HEAD_OUT, nodes.ints(1)
    _top(nodes, vocab_size, candidates)
    best = nodes.node("Slice", ["candidate_ids", nodes.ints(0), one, one], "best_id")
    nodes.node("Squeeze", [best, one], "argmax")
    column = nodes.node("Unsqueeze", ["gather_ids", one], "gather_column")
    nodes.node("Squeeze", [nodes.node("GatherElements", [logits, column], "gathered_column", axis=1), one], "gathered")
    # By the maximum, which the search has found already.
    top = nodes.node("Slice", ["candidate_logits", nodes.ints(0), one, one], "top_logit")
    below = nodes.node("Sub", [logits, top], "below_top")
    weights = nodes.node("Exp", [nodes.node("Mul", [below, "inverse_temperature"], "tempered")], "weights")
    log_sum = nodes.node("Log", [nodes.node("ReduceSum", [weights, one], "weight_sum", keepdims=1)], "log_sum")
    shift = nodes.node("Mul", [top, "inverse_temperature"], "tempered_top")
    nodes.node("Squeeze", [nodes.node("Add", [log_sum, shift], "logsumexp_column"), one], "logsumexp")


def _top(nodes: TrtNodes, vocab_size: int, count: int) -> None:
    """``candidate_ids`` and ``candidate_logits``: the ``count`` largest of each row, falling."""
    logits, wanted = Graph.HEAD_OUT, nodes.ints(count)
    if vocab_size % GROUP or vocab_size // GROUP < count:
        nodes.several("TopK", [logits, wanted], ["candidate_logits", "top_index"], axis=-1)
        nodes.node("Cast", ["top_index"], "candidate_ids", to=TensorProto.INT32)
        return
    last, flat = nodes.ints(2), nodes.ints(0, count * GROUP)
    grouped = nodes.node("Reshape", [logits, nodes.ints(0, vocab_size // GROUP, GROUP)], "grouped")
    largest = nodes.node("ReduceMax", [grouped, last], "group_max", keepdims=0)
    nodes.several("TopK", [largest, wanted], ["best_max", "best_index"], axis=-1)
    group = nodes.node("Cast", ["best_index"], "best_group", to=TensorProto.INT32)
    column = nodes.node("Unsqueeze", [group, last], "group_column")
    members = nodes.node("Expand", [column, nodes.ints(1, 1, GROUP)], "group_members")
    values = nodes.node("GatherElements", [grouped, members], "best_values", axis=1)
    start = nodes.node("Mul", [column, nodes.ints32("group_size", GROUP)], "group_start")
    lanes = nodes.constant("lanes", np.arange(GROUP, dtype=np.int32))
    rows = nodes.node("Reshape", [nodes.node("Add", [start, lanes], "best_rows"), flat], "flat_rows")
    flat_values = nodes.node("Reshape", [values, flat], "flat_values")
    nodes.several("TopK", [flat_values, wanted], ["candidate_logits", "flat_index"], axis=-1)
    place = nodes.node("Cast", ["flat_index"], "flat_place", to=TensorProto.INT32)
    nodes.node("GatherElements", [rows, place], "candidate_ids", axis=1)
