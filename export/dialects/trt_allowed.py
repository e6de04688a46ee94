"""Which graphs TensorRT 10.3 takes, as far as a graph alone can say. Pure: a ModelProto in, what is wrong with it out.

A newer parser takes more than the one of JetPack 6.2, so that its consent is a check and no proof: this list holds
what the dialect uses and nothing else, with the limits that the operators had in 10.3 (its support matrix, its release
notes) or that speed hangs on. What is not here is refused: whoever adds an operator looks up what 10.3 does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

OPSET = 21
"""The first with 4-bit blocks."""
BLOCK_SIZES = (64, 128)
MOST_OF_TOPK = 3840
MOST_DIMENSIONS = 8

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
_NUMBERS = _FLOATS | {TensorProto.INT32}
_MOVED = _NUMBERS | {TensorProto.BOOL}
_CONSTANTS = _MOVED | {TensorProto.INT64, TensorProto.INT4}


def violations(model: onnx.ModelProto) -> tuple[str, ...]:
    """One line for each thing that TensorRT 10.3 would refuse, or run slowly; none for a graph of this dialect."""
    return tuple(_problems(model))


def _problems(model: onnx.ModelProto) -> Iterator[str]:
    opsets = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    if opsets != {"ai.onnx": OPSET}:
        yield f"operator sets {opsets}, not that of ONNX in version {OPSET} alone"
        return
    if model.functions or model.graph.sparse_initializer:
        yield "local functions or sparse constants"
    typed, problem = _inferred(model)
    if problem:
        yield f"types or shapes do not agree: {problem}"
    view = _View(typed.graph)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type not in _NUMBERS:
            yield f"{value.name} is neither float32, float16 nor int32"
    for tensor in model.graph.initializer:
        if tensor.data_type not in _CONSTANTS:
            yield f"{tensor.name}: a constant of type {_name(tensor.data_type)}"
        if tensor.data_type == TensorProto.INT4 and view.readers(tensor.name) - {"DequantizeLinear"}:
            yield f"{tensor.name}: 4-bit values that are not dequantised first"
    for node in model.graph.node:
        yield from (f"{node.op_type} {node.name or node.output[0]}: {problem}" for problem in _of_node(view, node))


def _inferred(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """With all types and shapes that can be told, and why not all could be."""
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True), ""
    except onnx.shape_inference.InferenceError as problem:
        told = " ".join(str(problem).split())
    try:
        return onnx.shape_inference.infer_shapes(model), told
    except onnx.shape_inference.InferenceError:
        return model, told


def _of_node(view: _View, node: NodeProto) -> Iterator[str]:
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None:
        yield f"not an operator of this dialect{f' (domain {node.domain})' if node.domain else ''}"
        return
    attributes, check = rule
    for given in node.attribute:
        if given.name not in attributes:
            yield f"attribute {given.name}"
    deepest = max((view.rank(name) or 0 for name in (*node.input, *node.output)), default=0)
    if deepest > MOST_DIMENSIONS:
        yield f"{deepest} dimensions, more than {MOST_DIMENSIONS}"
    yield from check(view, node)


class _View:
    """Types, ranks and constants of a graph whose shapes are inferred."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        values = (*graph.input, *graph.output, *graph.value_info)
        self._types = {value.name: value.type.tensor_type for value in values}
        self._makers = {out: node for node in graph.node for out in node.output}
        self._readers: dict[str, set[str]] = {}
        self._places: dict[str, set[tuple[str, int]]] = {}
        for node in graph.node:
            for place, name in enumerate(node.input):
                self._readers.setdefault(name, set()).add(node.op_type)
                self._places.setdefault(name, set()).add((node.op_type, place))

    def type(self, name: str) -> int:
        if name in self.constants:
            return int(self.constants[name].data_type)
        return int(self._types[name].elem_type) if name in self._types else TensorProto.UNDEFINED

    def rank(self, name: str) -> int | None:
        if name in self.constants:
            return len(self.constants[name].dims)
        known = self._types.get(name)
        return len(known.shape.dim) if known is not None and known.HasField("shape") else None

    def maker(self, name: str) -> str:
        return str(self._makers[name].op_type) if name in self._makers else ""

    def readers(self, name: str) -> set[str]:
        return self._readers.get(name, set())

    def places(self, name: str) -> set[tuple[str, int]]:
        """(operator, which of its inputs) that read it."""
        return self._places.get(name, set())

    def integers(self, name: str) -> list[int] | None:
        """Of a constant that lies in the graph itself."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        return [int(value) for value in numpy_helper.to_array(tensor).reshape(-1)]

    def is_shape(self, name: str) -> bool:
        """Reckoned from shapes, on the host."""
        node = self._makers.get(name)
        if node is None:
            return False
        return node.op_type == "Shape" or (node.op_type == "Slice" and self.is_shape(node.input[0]))


Check = Callable[[_View, NodeProto], Iterator[str]]


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    found = next((entry for entry in node.attribute if entry.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _name(kind: int) -> str:
    return TensorProto.DataType.Name(kind).lower() if kind in TensorProto.DataType.values() else str(kind)


def _types(view: _View, names: Collection[str], allowed: Collection[int]) -> Iterator[str]:
    """One type for all of ``names``, and an ``allowed`` one."""
    kinds = {view.type(name) for name in names}
    if len(kinds) > 1:
        yield "mixes " + " and ".join(sorted(_name(kind) for kind in kinds))
    for kind in sorted(kinds - set(allowed)):
        yield f"takes no {_name(kind)}"


def _constant(view: _View, node: NodeProto, place: int, what: str) -> Iterator[str]:
    if len(node.input) <= place or view.integers(node.input[place]) is None:
        yield f"{what} must be a constant in the graph"


def _same(allowed: Collection[int]) -> Check:
    return lambda view, node: _types(view, node.input, allowed)


def _beside(allowed: Collection[int], place: int, what: str) -> Check:
    """The first input is data of ``allowed`` types, the one at ``place`` a constant."""

    def check(view: _View, node: NodeProto) -> Iterator[str]:
        yield from _types(view, node.input[:1], allowed)
        yield from _constant(view, node, place, what)
        if len(node.input) != place + 1:
            yield f"{len(node.input)} inputs, not {place + 1}"

    return check


def _where(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input[:1], {TensorProto.BOOL})
    yield from _types(view, node.input[1:], _FLOATS)


def _cast(view: _View, node: NodeProto) -> Iterator[str]:
    source = view.type(node.input[0])
    if source == TensorProto.INT64 and view.maker(node.input[0]) != "TopK":
        yield "64-bit integers on the device"
    elif source not in _NUMBERS | {TensorProto.INT64}:
        yield f"takes no {_name(source)}"
    if (to := _attribute(node, "to", 0)) not in _NUMBERS:
        yield f"gives {_name(to)}"


def _slice(view: _View, node: NodeProto) -> Iterator[str]:
    if not view.is_shape(node.input[0]):
        yield from _types(view, node.input[:1], _MOVED)
    if len(node.input) != 4:
        yield f"{len(node.input)} inputs, not 4: the axes are named, and steps are 1"
    for name in node.input[1:3]:
        if view.integers(name) is None and not view.is_shape(name):
            yield f"{name}: bounds are constants or shapes"
    yield from _constant(view, node, 3, "axes")


def _shape(view: _View, node: NodeProto) -> Iterator[str]:
    if view.readers(node.output[0]) - {"Slice"}:
        yield "a shape that is more than cut"


def _reshape(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _beside(_MOVED, 1, "the shape")(view, node)
    if (view.integers(node.input[1]) or []).count(-1) > 1:
        yield "more than one open dimension"


def _gather(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input[:1], _NUMBERS)
    yield from _types(view, node.input[1:], {TensorProto.INT32})
    if _attribute(node, "axis", 0) != 0 or node.input[0] not in view.constants:
        yield "gathers rows of a constant table alone"


def _gather_elements(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input[:1], _NUMBERS)
    yield from _types(view, node.input[1:], {TensorProto.INT32})


def _topk(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input[:1], _FLOATS)
    yield from _constant(view, node, 1, "K")
    for count in view.integers(node.input[1]) or []:
        if not 1 <= count <= MOST_OF_TOPK:
            yield f"K = {count}, beyond {MOST_OF_TOPK}"
    if _attribute(node, "axis", -1) not in (-1, (view.rank(node.input[0]) or 0) - 1):
        yield "an axis that is not the last"
    if view.readers(node.output[1]) - {"Cast"}:
        yield "64-bit indices on the device"


def _softmax(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input, {TensorProto.FLOAT})
    if _attribute(node, "axis", -1) not in (-1, (view.rank(node.input[0]) or 0) - 1):
        yield "an axis that is not the last"


def _matmul(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input, _FLOATS)
    for name in node.input:
        if name in view.constants and view.rank(name) != 2:
            yield f"{name}: a constant of {view.rank(name)} dimensions, not 2"


def _gemm(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input, _FLOATS)
    if len(node.input) != 2 or _attribute(node, "transA", 0) != 0:
        yield "more than rows times a matrix"


def _dequantise(view: _View, node: NodeProto) -> Iterator[str]:
    if len(node.input) != 2:
        yield "zero points: its 4-bit weights are symmetric"
        return
    quants, scales = (view.constants.get(name) for name in node.input)
    if quants is None or scales is None:
        yield "values and scales must be constants"
        return
    if (quants.data_type, scales.data_type) != (TensorProto.INT4, TensorProto.FLOAT16):
        yield f"{_name(quants.data_type)} with scales in {_name(scales.data_type)}, not int4 with float16"
        return
    block, shape = _attribute(node, "block_size", 0), list(quants.dims)
    if block not in BLOCK_SIZES or _attribute(node, "axis", 1) != 0:
        yield f"blocks of {block} along axis {_attribute(node, 'axis', 1)}, not of 64 or 128 along axis 0"
    elif len(shape) != 2 or shape[0] % block or list(scales.dims) != [shape[0] // block, shape[1]]:
        yield f"values {shape} and scales {list(scales.dims)} do not fit"
    if scales.data_location != TensorProto.EXTERNAL and not (numpy_helper.to_array(scales) > np.float16(0)).all():
        yield "scales must be above zero"
    if view.places(node.output[0]) != {("MatMul", 1)}:
        yield "what is dequantised is the second factor of a product, and nothing else"


def _identity(view: _View, node: NodeProto) -> Iterator[str]:
    yield from _types(view, node.input, _MOVED)


_RULES: dict[str, tuple[frozenset[str], Check]] = {
    **{kind: (frozenset[str](), _same(_NUMBERS)) for kind in ("Add", "Sub", "Mul", "Less", "LessOrEqual")},
    **{kind: (frozenset[str](), _same(_FLOATS)) for kind in ("Div", "Sqrt", "Exp", "Log", "Tanh")},
    **{
        kind: (frozenset({"keepdims"}), _beside(_FLOATS, 1, "axes"))
        for kind in ("ReduceMean", "ReduceMax", "ReduceSum")
    },
    **{kind: (frozenset[str](), _beside(_MOVED, 1, "axes")) for kind in ("Squeeze", "Unsqueeze")},
    "And": (frozenset(), _same({TensorProto.BOOL})),
    "Cast": (frozenset({"to"}), _cast),
    "Concat": (frozenset({"axis"}), _same(_MOVED)),
    "DequantizeLinear": (frozenset({"axis", "block_size"}), _dequantise),
    "Expand": (frozenset(), _beside(_NUMBERS, 1, "the shape")),
    "Gather": (frozenset({"axis"}), _gather),
    "GatherElements": (frozenset({"axis"}), _gather_elements),
    "Gemm": (frozenset({"transA", "transB"}), _gemm),
    "Identity": (frozenset(), _identity),
    "MatMul": (frozenset(), _matmul),
    "Reshape": (frozenset(), _reshape),
    "Shape": (frozenset(), _shape),
    "Slice": (frozenset(), _slice),
    "Softmax": (frozenset({"axis"}), _softmax),
    "Split": (frozenset({"axis"}), _beside(_FLOATS, 1, "sizes")),
    "TopK": (frozenset({"axis"}), _topk),
    "Transpose": (frozenset({"perm"}), _same(_FLOATS)),
    "Where": (frozenset(), _where),
}
"""Operator -> the attributes it may have, and what else must hold."""
