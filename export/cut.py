"""A body in two: the first layers, which a self-draft runs alone, and the rest. Knows no engine and no weight values.

Two graphs that hand each other buffers cost microseconds; a second session over the same layers would hold the same
weights a second time, packed as its kernels want them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from .graph import Attention, Graph, Op, RmsNorm

_FINAL_NORM = "final_norm"


def cut_graph(graph: Graph, layers: int) -> tuple[Graph, Graph] | None:
    """(stem, rest), or ``None`` where more than the residual stream and its norm crosses the cut.

    The stem's ``hidden`` is what the final norm makes of the stream so far: the row of an early exit.
    """
    stream, normed = f"x{layers}", f"a{layers}"
    place = next((i for i, op in enumerate(graph.body) if normed in _outs(op)), None)
    if place is None or graph.lookup:
        return None
    first, rest = graph.body[: place + 1], graph.body[place + 1 :]
    made = {out for op in first for out in _outs(op)}
    crossing = {name for op in rest for name in reads(op) if name in made}
    # A layer that borrows another's keys and values names only its cache.
    whole = all(op.layer < layers for op in first if isinstance(op, Attention))
    whole = whole and all(op.layer >= layers for op in rest if isinstance(op, Attention))
    if crossing != {stream, normed} or not whole:
        return None
    exit_norm = RmsNorm(Graph.BODY_OUT, stream, _FINAL_NORM)
    stem = replace(graph, body=(*first, exit_norm), kv_layers=graph.kv_layers[:layers], hands=(stream, normed))
    return stem, replace(
        graph, body=rest, kv_layers=graph.kv_layers[layers:], first_layer=layers, takes=(stream, normed)
    )


def _outs(op: Op) -> set[str]:
    return {getattr(op, name) for name in ("out", "total") if hasattr(op, name)} | set(getattr(op, "outs", ()))


def reads(op: Op) -> set[str]:
    """Every value or weight that an operation names; weights are nobody's output."""
    found: set[str] = set()
    for field in dataclasses.fields(op):
        if field.name in ("out", "total", "outs"):
            continue
        value = getattr(op, field.name)
        found |= {value} if isinstance(value, str) else set(value) if isinstance(value, tuple) else set()
    return found
