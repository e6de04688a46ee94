"""The readout behind a head of centroids: the tokens of the best groups are scored, and no others. Knows no model.

Dense and then masked, such a head would read the whole table and leave mass on tokens that were never scored. Here the
rows of a group lie one behind the other, so that a step reads a few runs of the table, and the law is one over the
tokens that were scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..weights import Blocks, Dense, Stored
from .ort_nodes import MS, block_table, external_tensor
from .ort_readout import ReadoutNodes, close_logsumexp, exp_sum, top_rows

_BARRED = np.float32(-1e30)
"""Added to the score of what may not be drafted. Finite: a difference of two infinities would be no number."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderedHead:
    token_ids: NDArray[np.int64]
    """[centroids, tokens of a group]"""
    table: Stored
    """Their rows [centroids * tokens of a group, hidden], in that order."""
    best: int
    """Groups of a row whose tokens are scored."""
    tokens: int
    """Ids from here on stand for no text, and are never drafted."""

    @property
    def scored(self) -> int:
        return self.best * int(self.token_ids.shape[1])


def spell_ordered_readout(candidates: int, hidden_size: int, head: OrderedHead) -> onnx.ModelProto:
    """As ``spell_readout``, for ``logits`` [R, centroids]. One more input: hidden [R,H] f32. gather_rows [R,1] are ids
    of tokens; one that was not scored gathers the lowest float."""
    graph = ReadoutNodes()
    centroids = len(head.token_ids)
    best = [graph.ints(f"best_{head.best}", [head.best])]
    graph.node("TopK", ["logits", *best], "best_scores", ("groups",), axis=-1)
    flat = graph.ints("flat", [0, head.scored])
    ids = graph.node("Gather", [graph.constant("token_ids", head.token_ids), "groups"], "grouped_ids")
    ids = graph.node("Reshape", [ids, flat], "ids")
    weights = _gathered_rows(graph, head)
    rows = graph.node("Reshape", [weights, graph.ints("rows", [0, head.scored, hidden_size])], "weights_of_rows")
    column = graph.node("Unsqueeze", ["hidden", graph.ints("axis2", [2])], "hidden_column")
    scores = graph.node("MatMul", [rows, column], "scores_column")
    scores = graph.node("Squeeze", [scores, graph.ints("axis2", [2])], "scores")
    if head.token_ids.max() >= head.tokens:
        barred = np.where(head.token_ids >= head.tokens, _BARRED, np.float32(0.0))
        barred_rows = graph.node("Gather", [graph.constant("barred", barred), "groups"], "grouped_bars")
        scores = graph.node("Add", [scores, graph.node("Reshape", [barred_rows, flat], "bars")], "allowed_scores")
    places = top_rows(graph, scores, head.scored, candidates, "candidate_logits")
    graph.node("GatherElements", [ids, places], "candidate_ids", axis=1)
    graph.node("Squeeze", [graph.first("candidate_ids"), graph.ints("axis1", [1])], "argmax")
    close_logsumexp(graph, exp_sum(graph, scores, "all"))
    hit = graph.node("Equal", [ids, "gather_rows"], "hit")
    lowest = graph.constant("lowest", np.array(np.finfo(np.float32).min, np.float32))
    known = graph.node("Where", [hit, scores, lowest], "known")
    graph.node("ReduceMax", [known, graph.ints("axis1", [1])], "gathered", keepdims=1)
    hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["rows", hidden_size])
    return graph.model(centroids, candidates, [hidden], [])


def _gathered_rows(graph: ReadoutNodes, head: OrderedHead) -> str:
    """[R, best, tokens of a group * hidden] float32"""
    centroids, size = head.token_ids.shape
    if isinstance(head.table, Blocks):
        quants, *rest = block_table(graph.add_initializer, "table", head.table, centroids)
        return graph.node(
            "GatherBlockQuantized", [quants, "groups", *rest], "weights", domain=MS,
            bits=head.table.bits, block_size=head.table.block_size, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
    assert isinstance(head.table, Dense), "columns are for TensorRT"
    data = replace(head.table.data, shape=(centroids, size * head.table.columns))
    rows = graph.node("Gather", [graph.add_initializer(external_tensor("table", data)), "groups"], "stored_weights")
    return graph.node("Cast", [rows], "weights", to=TensorProto.FLOAT)
