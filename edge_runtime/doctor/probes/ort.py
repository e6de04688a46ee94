"""onnxruntime, on the processor or on CUDA: a first product, products of each kind, one layer.

Sessions are made as the engine makes them, but for one thing: on CUDA no product may fall back to the processor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import BundleError
from ..outcome import Copy, Device, Kind, LayerResult, Product, Request
from .cut import EMBEDDINGS, NoLayer, with_level
from .graphs import Constant, Edge, Node, model
from .layers import ROUNDED_ACTIVATIONS, TOLERANCES, Case, block_node, bundle_layer, made_up_layer
from .matrices import Matrix, block_matrix, difference, float_matrix, relative, rows_of
from .telling import Absent, Teller, run_as_probe
from .timing import best_of, time_each

if TYPE_CHECKING:
    import onnxruntime

_PROVIDERS: dict[Device, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_SMALL = 256
_SEED = 7
_LAYER_ROWS = 4
_TOLERANCE: dict[Device, dict[Kind, float]] = {
    "cpu": {"float32": 1e-4, "int8": 3e-2, "int4": 3e-2},  # 8-bit activations
    "cuda": {"float16": 1e-2, "int8": 1e-2, "int4": 1e-2},
}


def probe(request: Request, teller: Teller) -> None:
    teller.stage("import")
    try:
        import onnxruntime
    except ModuleNotFoundError as problem:
        if problem.name != "onnxruntime":
            raise
        raise Absent("onnxruntime") from None
    teller.versions(onnxruntime=onnxruntime.__version__)
    if _PROVIDERS[request.device] not in onnxruntime.get_available_providers():
        raise Absent(f"{_PROVIDERS[request.device]} in this onnxruntime")
    kinds = tuple(_TOLERANCE[request.device])
    teller.stage("first kernel")
    for kind in kinds:
        found = _measure(request, kind, (_SMALL, _SMALL), rows=2, budget_s=0.0)
        if not found.right:
            teller.product(found)
    teller.launched()
    for shape in request.shapes:
        for kind in kinds:
            teller.stage(f"{kind} products of {shape[0]} x {shape[1]}")
            teller.product(_measure(request, kind, shape, request.rows, request.measure_s))
    if request.device == "cuda":
        teller.stage("copies on the device")
        teller.copy(_device_copy(request))
    teller.stage("one layer")
    if request.bundle is None:
        teller.layer(_layer(made_up_layer("ort", _dtype(request.device)), request))
        return
    try:
        case = bundle_layer(Path(request.bundle))
        if request.device == "cpu" and case.start == EMBEDDINGS:
            raise NoLayer("it is for TensorRT, and what it is held against there runs here")
        teller.layer(_layer(case, request))
    except (NoLayer, BundleError) as problem:
        teller.note(f"no layer of the bundle was compared: {problem}")


def session_of(graph: bytes, device: Device, folder: Path | None = None, *, strict: bool = True) -> Any:
    """``strict``: no node may fall back to the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    # Where the processor is the reference, it must not round activations behind our back.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if device == "cuda" and strict:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    settings = {"arena_extend_strategy": "kSameAsRequested"} if device == "cuda" else {}
    # Where a provider fails to load, onnxruntime would go on without it.
    made = onnxruntime.InferenceSession(
        graph, options, providers=[(_PROVIDERS[device], settings)], enable_fallback=0
    )
    if _PROVIDERS[device] not in made.get_providers():
        raise RuntimeError(f"{_PROVIDERS[device]} does not load")
    return made


def reference(case: Case, feeds: dict[str, NDArray[np.generic]]) -> NDArray[np.floating]:
    """What must come out: as the case says, or the same layer on the processor with activations as they are."""
    if case.expected is not None:
        return case.expected(feeds)
    result: NDArray[np.floating] = session_of(with_level(case.graph, 1), "cpu", case.folder).run(None, feeds)[0]
    return result


def _measure(request: Request, kind: Kind, shape: tuple[int, int], rows: int, budget_s: float) -> Product:
    dtype = _dtype(request.device)
    matrix, node = _matrix(kind, shape, request.block_size, dtype)
    names = [f"y{index}" for index in range(matrix.copies if budget_s else 1)]
    constants: list[Constant] = []
    nodes: list[Node] = []
    for name in names:
        own = tuple(f"{name}.{part}" for part in range(len(matrix.stored)))
        constants += [Constant(one, values) for one, values in zip(own, matrix.stored, strict=True)]
        nodes.append(node(("x", *own), name))
    edges = [Edge(name, dtype, ("rows", shape[1])) for name in names]
    session = session_of(model(nodes, constants, [Edge("x", dtype, ("rows", shape[0]))], edges), request.device)
    del constants
    given = rows_of(_SEED, rows, shape[0]).astype(dtype)
    bound = [_bind(session, request.device, given[: count + 1], names, shape[1]) for count in range(rows)]
    seconds = time_each([functools.partial(session.run_with_iobinding, one) for one, _ in bound], budget_s)
    off = max((difference(matrix, given[: count + 1], bound[count][1].numpy()) for count in range(rows)), key=_worst)
    return Product(
        kind, request.device, *shape, matrix.weight_bytes, tuple(one / len(names) for one in seconds), off,
        _TOLERANCE[request.device][kind],
    )  # fmt: skip


def _matrix(
    kind: Kind, shape: tuple[int, int], block_size: int, dtype: str
) -> tuple[Matrix, Callable[[tuple[str, ...], str], Node]]:
    """And how to multiply by it: (names of inputs, name of the output)."""
    if kind not in ("int4", "int8"):
        return float_matrix(_SEED, *shape, dtype), lambda inputs, output: Node("MatMul", inputs, output, {})
    bits = 4 if kind == "int4" else 8
    matrix = block_matrix(_SEED, *shape, bits, block_size, dtype)
    return matrix, lambda inputs, output: block_node(inputs, output, *shape, bits, block_size, dtype)


def _bind(
    session: onnxruntime.InferenceSession, device: Device, given: NDArray[Any], names: Sequence[str], outer: int
) -> tuple[Any, Any]:
    """The binding, and the one buffer that all copies of the matrix write to, one after the other."""
    import onnxruntime

    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(given, device, 0))
    made = onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(given), outer], given.dtype.type, device, 0)
    for name in names:
        binding.bind_ortvalue_output(name, made)
    return binding, made


def _device_copy(request: Request) -> Copy:
    """From an input on the device to an output there: what a graph without a computation does."""
    import onnxruntime

    edges = [Edge(name, "uint8", ("size",)) for name in ("x", "y")]
    session = session_of(model([Node("Identity", ("x",), "y", {})], [], edges[:1], edges[1:]), "cuda", strict=False)
    values = np.zeros(request.copy_bytes, np.uint8)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(values, "cuda", 0))
    binding.bind_ortvalue_output(
        "y", onnxruntime.OrtValue.ortvalue_from_shape_and_type([len(values)], np.uint8, "cuda", 0)
    )
    seconds = best_of(functools.partial(session.run_with_iobinding, binding), request.measure_s)
    return Copy("device to device, onnxruntime", len(values), seconds)


def _layer(case: Case, request: Request) -> LayerResult:
    session = session_of(case.graph, request.device, case.folder, strict=False)
    feeds = case.feeds(min(_LAYER_ROWS, request.rows))
    result, expected = session.run(None, feeds)[0], reference(case, feeds)
    level = TOLERANCES[case.dtype] if request.device == "cuda" else ROUNDED_ACTIVATIONS
    given = [case.feeds(rows) for rows in range(1, request.rows + 1)]
    seconds = time_each([functools.partial(session.run, None, one) for one in given], request.measure_s)
    off = relative(result, expected.astype(np.float64))
    largest = float(np.max(np.abs(expected)))
    return LayerResult(
        case.what, case.against, None if off is None else off * largest, largest, level, case.folder is not None,
        seconds,
    )


def _dtype(device: Device) -> str:
    return "float32" if device == "cpu" else "float16"


def _worst(off: float | None) -> float:
    return float("inf") if off is None else off


if __name__ == "__main__":
    run_as_probe(probe)
