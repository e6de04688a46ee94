"""The first layer out of a bundle's body, so that it can be run alone. Knows the messages of ONNX; runs nothing.

Nodes and constants are handed on byte by byte; what is cut off is everything before the rows that enter the layer, the
embedding among it, and everything behind it. Weights stay in the bundle's file: the graph goes on naming their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...wire import Field, decode, encode, texts
from .graphs import Edge, TensorHead, attributes_of, edge_bytes, edge_of, tensor_head, with_attribute

EMBEDDINGS = "embeddings"
"""Input of bodies for TensorRT, which take no token ids."""
STARTS = (EMBEDDINGS, "x0")
"""Rows that enter the first layer: an input of the graph, or what the embedding hands out."""
ENDS = ("a1", "x1", "hidden")
"""Rows that leave it: normed for the next layer, as they are, or (of a single layer) as the model hands them out."""
_GRAPH, _NODES, _NAME, _CONSTANTS, _INPUTS, _OUTPUTS = 7, 1, 2, 5, 11, 12
_LEVEL = "accuracy_level"
_FLOATS = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Layer:
    graph: bytes
    start: str
    end: str
    inputs: tuple[Edge, ...]
    products: tuple[tuple[int, int], ...]
    """(inner, outer) of the matrices that it multiplies by, in their order."""


class NoLayer(ValueError):
    """The graph has no layer that can be cut out; the text says why."""


@dataclass(frozen=True, slots=True)
class _Node:
    data: bytes
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut_layer(model: bytes, hidden_size: int) -> Layer:
    """``model``: a body as bytes, without its weights. Raises ``NoLayer``."""
    try:
        return _cut(model, hidden_size)
    except NoLayer:
        raise
    except (ValueError, IndexError, KeyError) as problem:
        raise NoLayer(f"its graph cannot be read: {problem!r}") from None


def _cut(model: bytes, hidden_size: int) -> Layer:
    outer = list(decode(model))
    graph = [value for number, value in outer if number == _GRAPH and isinstance(value, bytes)][-1]
    fields = [(number, value) for number, value in decode(graph) if isinstance(value, bytes)]
    nodes = [_node(value) for number, value in fields if number == _NODES]
    constants = {tensor_head(value).name: value for number, value in fields if number == _CONSTANTS}
    inputs = {one.name: one for one in [edge_of(value) for number, value in fields if number == _INPUTS]}
    made = {name for node in nodes for name in node.outputs}
    start = next((name for name in STARTS if name in inputs or name in made), None)
    end = next((name for name in ENDS if name in made), None)
    if start is None or end is None:
        raise NoLayer("its first layer does not begin and end as those of Gemma do")
    heads = {name: tensor_head(value) for name, value in constants.items()}
    kept, needed = _behind(nodes, start, end)
    begins = inputs.get(start) or Edge(start, _entering(start, kept, heads), (1, "rows", hidden_size))
    entering = (begins, *(one for name, one in inputs.items() if name in needed and name != start))
    wanted: list[Field] = [(_NODES, node.data) for node in kept]
    wanted += [(_NAME, b"layer"), *((_CONSTANTS, value) for name, value in constants.items() if name in needed)]
    wanted += [(_INPUTS, edge_bytes(one)) for one in entering]
    wanted.append((_OUTPUTS, edge_bytes(Edge(end, "", ()))))
    rest = [one for one in outer if one[0] != _GRAPH]
    return Layer(encode([*rest, (_GRAPH, encode(wanted))]), start, end, entering, _products(kept, heads))


def with_level(model: bytes, level: int) -> bytes:
    """The same graph whose block products run at another accuracy level (1: float32 activations)."""
    return _changed(model, lambda number, value: _leveled(value, level) if number == _NODES else value)


def with_output(model: bytes, output: Edge) -> bytes:
    """The same graph with its only output's type said."""
    return _changed(model, lambda number, value: edge_bytes(output) if number == _OUTPUTS else value)


def _changed(model: bytes, change: Callable[[int, bytes], bytes]) -> bytes:
    fields: list[Field] = []
    for number, value in decode(model):
        if number == _GRAPH and isinstance(value, bytes):
            value = encode([(n, change(n, v) if isinstance(v, bytes) else v) for n, v in decode(value)])
        fields.append((number, value))
    return encode(fields)


def _leveled(node: bytes, level: int) -> bytes:
    return with_attribute(node, _LEVEL, level) if "MatMulNBits" in texts(node, 4) else node


def _node(data: bytes) -> _Node:
    return _Node(data, texts(data, 4)[0], texts(data, 1), texts(data, 2))


def _behind(nodes: Sequence[_Node], start: str, end: str) -> tuple[list[_Node], set[str]]:
    """What ``end`` hangs on up to ``start``: nodes in their order, and the names that they read."""
    by_output = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    kept: set[int] = set()
    needed, open_names = {end}, [end]
    while open_names:
        name = open_names.pop()
        index = by_output.get(name)
        if name == start or index is None or index in kept:
            continue
        kept.add(index)
        fresh = [one for one in nodes[index].inputs if one and one not in needed]
        needed.update(fresh)
        open_names += fresh
    return [nodes[index] for index in sorted(kept)], needed


def _entering(start: str, nodes: Sequence[_Node], heads: Mapping[str, TensorHead]) -> str:
    """The type of what enters: that of the norm's weights beside it."""
    for node in nodes:
        if start in node.inputs:
            for name in node.inputs:
                if name in heads and heads[name].dtype in _FLOATS:
                    return heads[name].dtype
    raise NoLayer("it cannot be told what type its rows have")


def _products(nodes: Sequence[_Node], heads: Mapping[str, TensorHead]) -> tuple[tuple[int, int], ...]:
    unpacked = {node.outputs[0]: heads[node.inputs[0]] for node in nodes
                if node.kind == "DequantizeLinear" and node.inputs[0] in heads}  # fmt: skip
    found = []
    for node in nodes:
        if node.kind == "MatMulNBits":
            said = attributes_of(node.data)
            found.append((said["K"], said["N"]))
        elif node.kind == "MatMul":
            weights = unpacked.get(node.inputs[1]) or heads.get(node.inputs[1])
            if weights is not None and len(weights.shape) == 2:
                found.append((weights.shape[0], weights.shape[1]))
    return tuple(found)
