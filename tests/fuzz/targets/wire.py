"""ONNX graphs as bytes: where they take data from, and their first layer as the doctor cuts it out."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np

from edge_runtime.doctor.probes.cut import Layer, NoLayer, cut_layer, with_level, with_output
from edge_runtime.doctor.probes.graphs import Constant, Edge, Node, model
from edge_runtime.doctor.probes.layers import feeds_of, shapes_of
from edge_runtime.graph_data import locations
from edge_runtime.wire import Field, Fixed, decode, encode

from ..hostile import WORDS, edit_bytes, number
from ..judge import Judge

REFUSAL = NoLayer
NAME = "target.body.onnx"
_MOST_VALUES = 1 << 22


def seeds() -> list[bytes]:
    rows = (1, "rows", 32)
    blocks = [Constant("w", np.zeros((32, 1, 16), np.uint8)), Constant("s", np.ones((32, 1), np.float32)),
              Constant("norm", np.ones(32, np.float32)), Constant("m", np.ones((32, 32), np.float32))]  # fmt: skip
    said = {"K": 32, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": 4}
    nodes = [Node("Gather", ("embed", "ids"), "x0", {}), Node("Mul", ("x0", "norm"), "a0", {"epsilon": 1e-6}),
             Node("MatMulNBits", ("a0", "w", "s"), "h", said, "com.microsoft"), Node("MatMul", ("h", "m"), "x1", {}),
             Node("Add", ("x1", "bias"), "x2", {})]  # fmt: skip
    cache = Edge("past.0", "float32", (1, 1, "capacity", 16))
    inputs = [Edge("ids", "int64", (1, "rows")), cache]
    inner = [Edge("embeddings", "float32", rows), cache, Edge("seqlens_k", "int32", (1,))]
    straight = [Node("Mul", ("embeddings", "norm"), "a0", {}), Node("MatMul", ("a0", "m"), "hidden", {})]
    return [taking_from("target.weights", "../x", "/etc/passwd"),
            model(nodes, blocks, inputs, [Edge("x2", "float32", rows)]),
            model(straight, blocks, inner, [Edge("hidden", "float32", rows)])]  # fmt: skip


def taking_from(*places: str) -> bytes:
    """A model whose tensors lie elsewhere: an initializer, a constant of a node, and one in a branch of a branch."""
    tensors = [encode([(13, encode([(1, b"location"), (2, one.encode())])), (14, 1)]) for one in places]
    plain, constant, branch = (*tensors, b"", b"", b"")[:3]
    inner = encode([(1, encode([(5, encode([(6, encode([(5, branch)]))]))]))])
    graph = encode([(5, plain), (1, encode([(5, encode([(5, constant)]))])), (1, encode([(5, encode([(11, inner)]))]))])
    return encode([(7, graph)])


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_bytes(data, rng) if rng.randrange(4) == 0 else _spoilt(data, rng)


def _spoilt(data: bytes, rng: Random) -> bytes:
    """A message with one field changed, at any depth; lengths around it stay right."""
    try:
        fields = list(decode(data))
    except ValueError:
        return edit_bytes(data, rng)
    if not fields:
        return encode([_field(rng)])
    at = rng.randrange(len(fields))
    number_, value = fields[at]
    choice = rng.randrange(8)
    if isinstance(value, bytes) and not isinstance(value, Fixed) and choice < 6:
        inner = _spoilt(value, rng)
        fields[at] = (number_, rng.choice(WORDS).encode("utf-8", "surrogatepass") if rng.randrange(8) == 0 else inner)
    elif choice == 0:
        del fields[at]
    elif choice == 1:
        fields.insert(at, fields[rng.randrange(len(fields))])
    elif choice == 2:
        fields.insert(at, _field(rng))
    elif choice == 3:
        beyond = number_ + (1 << 29)  # which cut to 32 bits is what it was
        fields[at] = (rng.choice((1, 2, 3, 4, 5, 7, 8, 11, 12, 20, number(rng) % (1 << 29), beyond)), value)
    else:
        fields[at] = (number_, number(rng, value if isinstance(value, int) else 1))
    return encode(fields)


def _field(rng: Random) -> Field:
    kinds: tuple[int | bytes, ...] = (number(rng), Fixed(bytes(4)), Fixed(bytes(8)), b"", rng.randbytes(5))
    return rng.choice((1, 2, 4, 5, 7, 8, 11, 12)), rng.choice(kinds)


def read(judge: Judge, path: Path) -> None:
    data = path.read_bytes()
    judge.attempt(_data_of, data)
    layer = judge.attempt(cut_layer, data, 32)
    if layer is not None:
        judge.attempt(_used, layer)


def _data_of(graph: bytes) -> None:
    """Its only error, by a name of its own: not one of numpy's, say."""
    found = locations(graph)
    try:
        list(found)
    except ValueError as problem:
        raise NoLayer(str(problem)) from None


def _used(layer: Layer) -> None:
    """As the probes do."""
    with_output(with_level(layer.graph, 1), layer.inputs[0])
    for inner, outer in shapes_of(layer.products, 3, _MOST_VALUES):
        assert 0 < inner * outer <= _MOST_VALUES
    feeds_of(layer.inputs, 3)
