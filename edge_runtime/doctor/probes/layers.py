"""One layer, what goes into it and what must come out: a bundle's first, or a small one made up here.

Knows the inputs of both dialects; runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...bundle import TARGET, Manifest, read_manifest
from ...errors import BundleError
from .cut import Layer, NoLayer, cut_layer
from .graphs import MICROSOFT, Constant, Edge, Node, model
from .matrices import block_matrix, int4_matrix, rows_of

_PAST, _CAPACITY = 16, 64
"""Entries of the cache that are valid, and all."""
_MOST_DIMS, _MOST_VALUES = 8, 1 << 28
"""Of an input: what a graph says of it is allocated."""
_WIDTH = 256
"""Of the layer that is made up: small enough that every column is checked."""
BLOCK = 64
"""Values that share a scale, in all that is made up here: what every engine has a fast kernel for."""
TOLERANCES = {"float32": 1e-3, "float16": 2e-2}
ROUNDED_ACTIVATIONS = 0.1
"""Tolerance where activations are rounded to 8 bits, several times in a row."""

Feeds = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Case:
    what: str
    graph: bytes
    folder: Path | None
    """Where its weights are."""
    start: str
    output: str
    feeds: Callable[[int], Feeds]
    """Inputs of so many rows."""
    expected: Callable[[Feeds], NDArray[np.floating]] | None
    """``None``: the same layer on the processor is the reference."""
    dtype: str
    """Of the rows that enter."""

    @property
    def against(self) -> str:
        """What it is compared with."""
        return "float64 on the processor" if self.expected is not None else "the processor, float32 activations"


def bundle_layer(directory: Path) -> Case:
    """The first layer of a bundle's target. Raises ``BundleError``, ``NoLayer``."""
    manifest = read_manifest(directory)
    layer = _layer_of(directory, manifest)
    return Case(
        f"first layer of {manifest.name}", layer.graph, directory, layer.start, layer.end,
        lambda rows: feeds_of(layer.inputs, rows), None, layer.inputs[0].dtype,
    )  # fmt: skip


def bundle_shapes(directory: Path, manifest: Manifest, most: int, most_values: int) -> tuple[tuple[int, int], ...]:
    """(inner, outer) of the largest products of that layer, each once; none that blocks of 64 do not divide. Raises as
    ``bundle_layer``.

    One that is larger than ``most_values`` is cut to fewer columns: its rows are as long, and its speed is the same.
    """
    return shapes_of(_layer_of(directory, manifest).products, most, most_values)


def shapes_of(products: Sequence[tuple[int, int]], most: int, most_values: int) -> tuple[tuple[int, int], ...]:
    """The same of a layer's products, whatever its graph says that they are."""
    sound = [(inner, outer) for inner, outer in products if 0 < inner <= most_values // 2 and outer > 0]
    even = [one for one in sound if one[0] % BLOCK == 0 and one[1] % 2 == 0]
    found = dict.fromkeys(sorted(even, key=lambda shape: -shape[0] * shape[1]))
    return tuple(fitting(shape, most_values) for shape in list(found)[:most])


def _layer_of(directory: Path, manifest: Manifest) -> Layer:
    target = manifest.model(TARGET)
    name = target.stem or target.body
    if not name.endswith(".onnx"):
        raise NoLayer("it has weights alone, and no graph")
    try:
        data = (directory / name).read_bytes()
    except OSError as problem:
        raise BundleError(f"{directory / name} cannot be read: {problem.strerror}") from None
    return cut_layer(data, target.hidden_size)


def fitting(shape: tuple[int, int], most_values: int) -> tuple[int, int]:
    inner, outer = shape
    while inner * outer > most_values and outer % 128 == 0:
        outer //= 2
    return inner, min(outer, most_values // inner // 2 * 2)


def feeds_of(inputs: Sequence[Edge], rows: int) -> Feeds:
    """Random values, and what says where they stand. Raises ``NoLayer`` for an input that is not known here."""
    sizes = {"rows": rows, "capacity": _CAPACITY, "total": _PAST + rows, "total_sequence_length": _PAST + rows}
    feeds: Feeds = {}
    for index, edge in enumerate(inputs):
        if unknown := [size for size in edge.shape if isinstance(size, str) and size not in sizes]:
            raise NoLayer(f"its input {edge.name} has a dimension {unknown[0]!r}")
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in edge.shape)
        if len(shape) > _MOST_DIMS or math.prod(size or 1 for size in shape) > _MOST_VALUES:
            raise NoLayer(f"its input {edge.name} is larger than any of a layer")
        feeds[edge.name] = _values(edge, shape, rows, index)
    return feeds


def _values(edge: Edge, shape: tuple[int, ...], rows: int, seed: int) -> NDArray[np.generic]:
    name = edge.name
    if name == "seqlens_k":
        return np.asarray([_PAST + rows - 1], edge.dtype)
    if name == "total_sequence_length":
        return np.asarray([_PAST + rows], edge.dtype)
    if name in ("positions", "position_ids"):
        return np.arange(_PAST, _PAST + rows, dtype=edge.dtype).reshape(shape)
    if name.startswith("attention_bias"):
        sees = np.arange(shape[-1]) <= _PAST + np.arange(rows)[:, None]
        least = np.finfo(edge.dtype).min
        return np.broadcast_to(np.where(sees, 0.0, least).astype(edge.dtype), shape)
    if edge.dtype not in TOLERANCES:
        raise NoLayer(f"its input {name} is not known here")
    return np.random.default_rng(seed).standard_normal(shape).astype(edge.dtype)


def made_up_layer(style: str, dtype: str) -> Case:
    """y = x + down(silu(up(x))), 4-bit. ``style`` as the dialects: ``ort`` or ``tensorrt``."""
    build = _block_product if style == "ort" else _unpacked_product
    constants: list[Constant] = []
    nodes: list[Node] = []
    up = build("up", "x", "h", 1, dtype, nodes, constants)
    nodes += [Node("Sigmoid", ("h",), "s", {}), Node("Mul", ("h", "s"), "g", {})]
    down = build("down", "g", "d", 2, dtype, nodes, constants)
    nodes.append(Node("Add", ("x", "d"), "y", {}))
    edges = [Edge(name, dtype, (1, "rows", _WIDTH)) for name in ("x", "y")]

    def expected(feeds: Feeds) -> NDArray[np.floating]:
        rows = feeds["x"].astype(np.float64)
        hidden = rows @ up
        result: NDArray[np.floating] = rows + hidden / (1.0 + np.exp(-hidden)) @ down
        return result

    def feeds(rows: int) -> Feeds:
        return {"x": rows_of(3, rows, _WIDTH)[None].astype(dtype)}

    graph = model(nodes, constants, edges[:1], edges[1:])
    return Case("a small made-up layer", graph, None, "x", "y", feeds, expected, dtype)


def _block_product(
    name: str, given: str, made: str, seed: int, dtype: str, nodes: list[Node], constants: list[Constant]
) -> NDArray[np.floating]:
    matrix = block_matrix(seed, _WIDTH, _WIDTH, 4, BLOCK, dtype)
    inputs = (given, f"{name}.q", f"{name}.s")
    constants += [Constant(one, values) for one, values in zip(inputs[1:], matrix.stored, strict=True)]
    nodes.append(block_node(inputs, made, _WIDTH, _WIDTH, 4, BLOCK, dtype))
    return matrix.checked.astype(np.float64)


def _unpacked_product(
    name: str, given: str, made: str, seed: int, dtype: str, nodes: list[Node], constants: list[Constant]
) -> NDArray[np.floating]:
    matrix = int4_matrix(seed, _WIDTH, _WIDTH, BLOCK)
    constants += [
        Constant(f"{name}.q", matrix.stored[0], (_WIDTH, _WIDTH)),
        Constant(f"{name}.s", matrix.stored[1].astype(dtype)),
    ]
    nodes.append(Node("DequantizeLinear", (f"{name}.q", f"{name}.s"), f"{name}.w", {"axis": 0, "block_size": BLOCK}))
    nodes.append(Node("MatMul", (given, f"{name}.w"), made, {}))
    return matrix.checked.astype(np.float64)


def block_node(
    inputs: tuple[str, ...], output: str, inner: int, outer: int, bits: int, block_size: int, dtype: str
) -> Node:
    """A MatMulNBits: 8-bit activations where they are float32, the fast path on a processor."""
    level = {"accuracy_level": 4} if dtype == "float32" else {}
    said = {"K": inner, "N": outer, "bits": bits, "block_size": block_size} | level
    return Node("MatMulNBits", inputs, output, said, MICROSOFT)
