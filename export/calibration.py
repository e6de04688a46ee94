"""What the products of a model are fed, measured on a text. Knows how to run a body, not how weights are rounded.

GPTQ needs H = X^T X of every product's input. One run of a body with the inputs of its products as extra outputs
gives X; it is kept on disk in float16, so memory holds one H at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import TARGET
from edge_runtime.errors import ConfigError

from .checkpoint import Checkpoint
from .dialects.ort import spell_body
from .gemma import describe
from .graph import Graph, Linear
from .model_writer import ModelPlan, Progress, body_spelling
from .precision import Rounding
from .quantize import gptq, input_factor
from .recipe import ExportRecipe
from .tokenizer import TokenizerModel
from .weights import WeightFile

Floats = NDArray[np.float32]
_BUILTIN = Path(__file__).parent / "data" / "calibration.txt"
CALIBRATION_TOKENS = 4096
_CHUNK = 256


def calibrated_rounding(
    recipe: ExportRecipe, checkpoint: Checkpoint, tokenizer: TokenizerModel, progress: Progress
) -> Callable[[tuple[str, ...]], Rounding | None]:
    """The rounding of each product by its weights' names; ``None`` for all when the recipe has no calibration."""
    if recipe.calibration == "none" or recipe.precision != "int4":
        return lambda names: None
    path = _BUILTIN if recipe.calibration == "builtin" else Path(recipe.calibration)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"calibration: {path}: {problem}") from None
    ids = np.array([tokenizer.bos_id, *tokenizer.encode(text)][:CALIBRATION_TOKENS], np.int64)
    if len(ids) < _CHUNK:
        raise ConfigError(f"calibration: {path} gives {len(ids)} tokens; at least {_CHUNK} are needed")
    moments = input_moments(checkpoint, ids, progress)

    def rounding(names: tuple[str, ...]) -> Rounding | None:
        # Once a product: the factorisation costs K^3, and the rows come in slabs.
        factor = input_factor(moments(names))
        return lambda rows: gptq(rows, factor, recipe.block_size, symmetric=recipe.symmetric)

    return rounding


def input_moments(
    checkpoint: Checkpoint, ids: NDArray[np.int64], progress: Progress
) -> Callable[[tuple[str, ...]], Floats]:
    """X^T X / T [K, K] of the inputs of a product, by its weights' names. Activations live in a temporary folder."""
    graph = describe(checkpoint.config)
    folder = tempfile.TemporaryDirectory(prefix="edge-calibration.")
    directory = Path(folder.name)
    products = {op.weights: op.x for op in graph.body if isinstance(op, Linear)}
    files = _run_body(directory, graph, checkpoint, ids, sorted(set(products.values())), progress)

    def moment(names: tuple[str, ...], keep: tempfile.TemporaryDirectory[str] = folder) -> Floats:
        x = np.load(files[products[names]], mmap_mode="r").astype(np.float32)
        product: Floats = x.T @ x / np.float32(len(x))
        return product

    return moment


def _run_body(
    directory: Path, graph: Graph, checkpoint: Checkpoint, ids: NDArray[np.int64], values: list[str], progress: Progress
) -> dict[str, Path]:
    """Run an int8 body over ``ids`` and store each of ``values`` as [T, width] float16."""
    import onnxruntime

    recipe = ExportRecipe(source="", output="", precision="int8", max_context=_CHUNK)
    plan = ModelPlan(
        TARGET, checkpoint, checkpoint.config.num_layers, checkpoint.config.vocab_size, None, "int8", "int8"
    )
    with WeightFile(directory / "body.weights") as file:
        spelling = body_spelling(file, graph, plan, recipe, progress)
    body = spell_body(graph, spelling)
    body.graph.output.extend(onnx.ValueInfoProto(name=value) for value in values)
    onnx.save(body, directory / "body.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(directory / "body.onnx"), options, providers=["CPUExecutionProvider"])
    parts: dict[str, list[NDArray[np.float16]]] = {value: [] for value in values}
    # Separate short contexts: what matters is the spread of activations, not long range.
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        feeds = {"input_ids": chunk[None], "seqlens_k": np.array([len(chunk) - 1], np.int32)}
        feeds["total_sequence_length"] = np.array([len(chunk)], np.int32)
        for i, kv in enumerate(graph.kv_layers):
            for part in ("key", "value"):
                feeds[f"past_{part}_{i}"] = np.zeros((1, kv.kv_heads, _CHUNK, kv.head_dim), np.float32)
        for value, array in zip(values, session.run(values, feeds), strict=True):
            parts[value].append(np.clip(array[0], -65504, 65504).astype(np.float16))
        progress("calibrate", min(start + _CHUNK, len(ids)), len(ids))
    files = {}
    for value in values:
        files[value] = directory / f"{value}.npy"
        np.save(files[value], np.concatenate(parts.pop(value)))
    return files
