"""TensorRT: a small layer built and run on this device, products in float16 and in 4-bit blocks, timed by events.

Builds are the slow part, so there are few: one layer, and one network for each kind of product. Names are those that
TensorRT has had since 10.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BundleError, DeviceError
from ..outcome import Kind, LayerResult, Product, Request
from .cut import EMBEDDINGS, NoLayer, with_output
from .device_arrays import DeviceArrays
from .graphs import Constant, Edge, Node, model
from .layers import TOLERANCES, Case, bundle_layer, made_up_layer
from .matrices import Matrix, difference, float_matrix, int4_matrix, relative, rows_of
from .ort import reference
from .telling import Absent, Teller, run_as_probe

if TYPE_CHECKING:
    import tensorrt as trt

_KINDS: tuple[Kind, ...] = ("float16", "int4")
_SEED = 7
_TOLERANCE = 1e-2
_LAYER_ROWS = 4
_WORKSPACE = 256 << 20

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Least, usual and largest shape of each input."""


def probe(request: Request, teller: Teller) -> None:
    teller.stage("import")
    try:
        import tensorrt as trt
    except ModuleNotFoundError as problem:
        if problem.name != "tensorrt":
            raise
        raise Absent("tensorrt") from None
    teller.versions(tensorrt=str(trt.__version__))
    teller.stage("the device")
    device = DeviceArrays()
    device.introduce(teller)
    teller.stage("copies on the device")
    teller.copy(device.copied(request.copy_bytes, request.measure_s))
    teller.stage("first kernel: one layer, built and run")
    teller.layer(_layer(made_up_layer("tensorrt", "float16"), request, device))
    teller.launched()
    for shape in request.shapes:
        for kind in _KINDS:
            teller.stage(f"{kind} products of {shape[0]} x {shape[1]}")
            teller.product(_measure(request, kind, shape, device))
    if request.bundle is None:
        return
    teller.stage("one layer of the bundle")
    try:
        case = bundle_layer(Path(request.bundle))
        if case.start != EMBEDDINGS:
            raise NoLayer("it was exported for onnxruntime")
        teller.layer(_layer(case, request, device))
    except (NoLayer, BundleError, ModuleNotFoundError) as problem:  # without onnxruntime there is no reference
        teller.note(f"no layer of the bundle was compared: {problem}")


class Network:
    """A graph built for this device, with buffers for its inputs and its outputs. Raises ``DeviceError``."""

    def __init__(
        self, device: DeviceArrays, graph: bytes, folder: Path | None, shapes: Shapes, sizes: Mapping[str, int]
    ) -> None:
        """``folder``: where weights are that the graph only names. ``sizes``: bytes of each buffer at its largest."""
        import tensorrt as trt

        self._device = device
        # It must outlive what is made with it.
        self._logger = trt.Logger(trt.Logger.ERROR)
        plan = _plan(self._logger, graph, folder, shapes)
        self._runtime = trt.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise DeviceError("deserialize_cuda_engine", "the plan that was just built is refused")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise DeviceError("create_execution_context", "failed")
        self._buffers = {name: device.empty(size) for name, size in sizes.items()}
        for name, address in self._buffers.items():
            _must(self._context.set_tensor_address(name, address), "set_tensor_address", name)

    def take(self, feeds: Mapping[str, NDArray[np.generic]]) -> None:
        for name, values in feeds.items():
            _must(self._context.set_input_shape(name, tuple(values.shape)), "set_input_shape", f"{name} {values.shape}")
            self._device.copy_in(self._buffers[name], values)
        if missing := self._context.infer_shapes():
            raise DeviceError("infer_shapes", f"{', '.join(missing)} lack a shape")

    def run(self) -> None:
        _must(self._context.execute_async_v3(self._device.stream), "execute_async_v3", "failed")

    def output(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        return self._device.copy_out(self._buffers[name], shape, dtype)


def _plan(logger: trt.ILogger, graph: bytes, folder: Path | None, shapes: Shapes) -> Any:
    import tensorrt as trt

    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    # The path says where the weights are, its last part nothing.
    parsed = parser.parse(graph) if folder is None else parser.parse(graph, str(folder / "layer.onnx"))
    if not parsed:
        said = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
        raise DeviceError("parse", "the graph is refused", detail=said)
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE)
    profile = builder.create_optimization_profile()
    for name, (least, usual, largest) in shapes.items():
        profile.set_shape(name, least, usual, largest)
    if config.add_optimization_profile(profile) < 0:
        raise DeviceError("add_optimization_profile", "refused")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise DeviceError("build_serialized_network", "no plan")
    return plan


def _measure(request: Request, kind: Kind, shape: tuple[int, int], device: DeviceArrays) -> Product:
    inner, outer = shape
    if kind == "float16":
        matrix = float_matrix(_SEED, inner, outer, "float16")
    else:
        matrix = int4_matrix(_SEED, inner, outer, request.block_size)
    names = [f"y{index}" for index in range(matrix.copies)]
    nodes, constants = _products(matrix, kind, names, request.block_size)
    edges = [Edge(name, "float16", ("rows", outer)) for name in names]
    graph = model(nodes, constants, [Edge("x", "float16", ("rows", inner))], edges)
    del constants
    most = request.rows
    sizes = {"x": 2 * most * inner} | dict.fromkeys(names, 2 * most * outer)
    network = Network(device, graph, None, {"x": ((1, inner), (max(1, most // 2), inner), (most, inner))}, sizes)
    given = rows_of(_SEED, most, inner).astype(np.float16)
    seconds, off = [], []
    for rows in range(1, most + 1):
        network.take({"x": given[:rows]})
        seconds.append(device.seconds(network.run, request.measure_s / most) / len(names))
        off.append(difference(matrix, given[:rows], network.output(names[0], (rows, outer), "float16")))
    worst = None if None in off else max(one for one in off if one is not None)
    return Product(kind, "cuda", inner, outer, matrix.weight_bytes, tuple(seconds), worst, _TOLERANCE)


def _products(matrix: Matrix, kind: Kind, names: Sequence[str], block_size: int) -> tuple[list[Node], list[Constant]]:
    nodes: list[Node] = []
    constants: list[Constant] = []
    for index, name in enumerate(names):
        # Each copy is another matrix: equal constants might be kept, and read, once.
        values, weights = np.roll(matrix.stored[0], index, axis=0), f"{name}.w"
        if kind == "float16":
            constants.append(Constant(weights, values))
        else:
            constants.append(Constant(f"{name}.q", values, (matrix.inner, matrix.outer)))
            constants.append(Constant(f"{name}.s", matrix.stored[1]))
            blocks = {"axis": 0, "block_size": block_size}
            nodes.append(Node("DequantizeLinear", (f"{name}.q", f"{name}.s"), weights, blocks))
        nodes.append(Node("MatMul", ("x", weights), name, {}))
    return nodes, constants


def _layer(case: Case, request: Request, device: DeviceArrays) -> LayerResult:
    """How it compares with the processor, and what it takes at every number of rows."""
    most = request.rows
    feeds = case.feeds(min(_LAYER_ROWS, request.rows))
    expected = reference(case, feeds)
    dtype = case.dtype if case.expected is not None else expected.dtype.name
    graph = with_output(case.graph, Edge(case.output, dtype, (1, "rows", expected.shape[-1])))
    least, largest = case.feeds(1), case.feeds(most)
    shapes = {name: (least[name].shape, feeds[name].shape, largest[name].shape) for name in feeds}
    sizes = {name: values.nbytes for name, values in largest.items()}
    sizes[case.output] = most * expected.shape[-1] * np.dtype(dtype).itemsize
    network = Network(device, graph, case.folder, shapes, sizes)
    network.take(feeds)
    network.run()
    off = relative(network.output(case.output, expected.shape, dtype), expected.astype(np.float64))
    seconds = []
    for rows in range(1, most + 1):
        network.take(case.feeds(rows))
        seconds.append(device.seconds(network.run, request.measure_s / most))
    greatest = float(np.max(np.abs(expected)))
    return LayerResult(
        case.what, case.against, None if off is None else off * greatest, greatest, TOLERANCES["float16"],
        case.folder is not None, tuple(seconds),
    )  # fmt: skip


def _must(done: bool, call: str, what: str) -> None:
    """TensorRT answers False and goes on."""
    if not done:
        raise DeviceError(call, what)


if __name__ == "__main__":
    run_as_probe(probe)
