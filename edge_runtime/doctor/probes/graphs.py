"""ONNX graphs of a few nodes, as bytes. Knows the messages of ONNX; nothing of engines and of what is computed.

Field numbers are those of onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto); a test holds what is
written here against the onnx package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...wire import Field, decode, encode, fixed32, unpacked

_IR_VERSION = 10
OPSET = 21
"""The first with 4-bit integers in blocks; what TensorRT 10.3 reads."""
_INT4 = 22
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "float16": 10}
_NAMES = {number: name for name, number in _TYPES.items()} | {_INT4: "int4"}
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT = 1, 2
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int | float]
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Constant:
    name: str
    values: NDArray[np.generic]
    """4-bit integers: uint8 [count / 2], the first of two in the low half."""
    int4_shape: tuple[int, ...] | None = None
    """Of 4-bit integers."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An input or output of the graph."""

    name: str
    dtype: str
    """As numpy has it; empty: to be inferred."""
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class TensorHead:
    """A constant without its values."""

    name: str
    dtype: str
    """Empty: one that is not known here."""
    shape: tuple[int, ...]


def model(
    nodes: Sequence[Node], constants: Sequence[Constant], inputs: Sequence[Edge], outputs: Sequence[Edge]
) -> bytes:
    """A ModelProto."""
    graph: list[Field] = [(1, _node(node, f"n{index}")) for index, node in enumerate(nodes)]
    graph += [(2, b"probe"), *((5, _tensor(constant)) for constant in constants)]
    graph += [(11, edge_bytes(one)) for one in inputs]
    graph += [(12, edge_bytes(one)) for one in outputs]
    domains = {"": OPSET} | ({MICROSOFT: 1} if any(node.domain for node in nodes) else {})
    opsets: list[Field] = [(8, encode([(1, name.encode()), (2, version)])) for name, version in domains.items()]
    return encode([(1, _IR_VERSION), (2, b"edge-runtime doctor"), (7, encode(graph)), *opsets])


def _node(node: Node, name: str) -> bytes:
    fields: list[Field] = [(1, one.encode()) for one in node.inputs]
    fields += [(2, node.output.encode()), (3, name.encode()), (4, node.kind.encode())]
    for key, value in node.attributes.items():
        said: Field = (2, fixed32(value)) if isinstance(value, float) else (3, value)
        kind = _ATTRIBUTE_FLOAT if isinstance(value, float) else _ATTRIBUTE_INT
        fields.append((5, encode([(1, key.encode()), said, (20, kind)])))
    return encode([*fields, (7, node.domain.encode())])


def _tensor(constant: Constant) -> bytes:
    values, four_bits = constant.values, constant.int4_shape
    kind = _TYPES[values.dtype.name] if four_bits is None else _INT4
    dims: list[Field] = [(1, size) for size in (values.shape if four_bits is None else four_bits)]
    return encode([*dims, (2, kind), (8, constant.name.encode()), (9, np.ascontiguousarray(values).tobytes())])


def edge_bytes(edge: Edge) -> bytes:
    """A ValueInfoProto."""
    if not edge.dtype:
        return encode([(1, edge.name.encode())])
    dims = [encode([(1, size) if isinstance(size, int) else (2, size.encode())]) for size in edge.shape]
    shape = encode([(1, dim) for dim in dims])
    return encode([(1, edge.name.encode()), (2, encode([(1, encode([(1, _TYPES[edge.dtype]), (2, shape)]))]))])


def edge_of(data: bytes) -> Edge:
    """The reverse. A dimension of which nothing is said is an empty string."""
    fields = dict(decode(data))
    tensor = dict(decode(_bytes(dict(decode(_bytes(fields.get(2, b"")))).get(1, b""))))
    shape: list[int | str] = []
    for _, dim in decode(_bytes(tensor.get(2, b""))):
        said = dict(decode(_bytes(dim)))
        size, name = said.get(1), said.get(2)
        shape.append(size if isinstance(size, int) else _bytes(name or b"").decode())
    kind = tensor.get(1, 0)
    return Edge(_bytes(fields[1]).decode(), _NAMES.get(kind, "") if isinstance(kind, int) else "", tuple(shape))


def tensor_head(data: bytes) -> TensorHead:
    """Of a TensorProto, whether its values are in it or in a file. Raises ``KeyError`` where it has no name."""
    fields = list(decode(data))
    last = dict(fields)
    dims: list[int] = []
    for number, value in fields:
        if number != 1:
            continue
        if isinstance(value, int):
            dims.append(value)
        else:  # packed
            dims += unpacked(value)
    kind = last.get(2, 0)
    return TensorHead(_bytes(last[8]).decode(), _NAMES.get(kind, "") if isinstance(kind, int) else "", tuple(dims))


def attributes_of(node: bytes) -> dict[str, int]:
    """The integers among a NodeProto's attributes."""
    found = {}
    for number, value in decode(node):
        if number == 5 and isinstance(value, bytes):
            said = dict(decode(value))
            if said.get(20) == _ATTRIBUTE_INT and isinstance(whole := said.get(3, 0), int):
                found[_bytes(said[1]).decode()] = whole
    return found


def with_attribute(node: bytes, name: str, value: int) -> bytes:
    """A NodeProto with another integer in the place of one that it has."""
    fields: list[Field] = []
    for number, data in decode(node):
        if number == 5 and isinstance(data, bytes) and dict(decode(data)).get(1) == name.encode():
            data = encode([(1, name.encode()), (3, value), (20, _ATTRIBUTE_INT)])
        fields.append((number, data))
    return encode(fields)


def _bytes(value: int | bytes) -> bytes:
    """Raises ``ValueError``."""
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value
