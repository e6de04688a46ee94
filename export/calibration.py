"""What the products of a model are fed, measured on a text. Knows how to run a body, not how weights are rounded.

GPTQ needs H = X^T X of every product's input. One run of a body with the inputs of its products as extra outputs
gives X; it is kept on disk in float16, so memory holds one H at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import TARGET
from edge_runtime.cores import chosen_threads
from edge_runtime.errors import ConfigError
from edge_runtime.files import read_text_at_most

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
_MOST_BYTES = 1 << 28


def calibration_ids(recipe: ExportRecipe, tokenizer: TokenizerModel) -> NDArray[np.int64] | None:
    """[T] the text that calibrates; ``None`` when the recipe rounds every weight by itself."""
    if recipe.calibration == "none" or recipe.precision != "int4":
        return None
    path = _BUILTIN if recipe.calibration == "builtin" else Path(recipe.calibration)
    text = read_text_at_most(path, _MOST_BYTES, "calibration: ")
    ids = np.array([tokenizer.bos_id, *tokenizer.encode(text)][:CALIBRATION_TOKENS], np.int64)
    if len(ids) < _CHUNK:
        raise ConfigError(f"calibration: {path} gives {len(ids)} tokens; at least {_CHUNK} are needed")
    return ids


@contextmanager
def calibrated_rounding(
    directory: Path,
    recipe: ExportRecipe,
    checkpoint: Checkpoint,
    ids: NDArray[np.int64] | None,
    progress: Progress,
) -> Iterator[Callable[[tuple[str, ...]], Rounding | None]]:
    """The rounding of each product by its weights' names; ``None`` for all without a text.

    Activations live in a temporary folder in ``directory`` until the block ends.
    """
    if ids is None:
        yield lambda names: None
        return
    with tempfile.TemporaryDirectory(prefix="calibration.", dir=directory) as folder:
        moments = input_moments(Path(folder), checkpoint, ids, progress)

        def rounding(names: tuple[str, ...]) -> Rounding | None:
            # Once a product: the factorisation costs K^3, and the rows come in slabs.
            factor = input_factor(moments(names))
            return lambda rows: gptq(rows, factor, recipe.scale_block, symmetric=recipe.without_zero_points)

        yield rounding


def input_moments(
    directory: Path, checkpoint: Checkpoint, ids: NDArray[np.int64], progress: Progress
) -> Callable[[tuple[str, ...]], Floats]:
    """X^T X / T [K, K] of the inputs of a product, by its weights' names. Activations live in ``directory``."""
    graph = describe(checkpoint.config).with_lookup_inside()
    # The head among them, whose input is the body's output.
    products = {op.weights: op.x for op in (*graph.head, *graph.body) if isinstance(op, Linear)}
    files = _run_body(directory, graph, checkpoint, ids, sorted(set(products.values())), progress)

    def moment(names: tuple[str, ...]) -> Floats:
        x = np.fromfile(files[products[names]], np.float16).reshape(len(ids), -1).astype(np.float32)
        product: Floats = x.T @ x / np.float32(len(x))
        return product

    return moment


def _run_body(
    directory: Path, graph: Graph, checkpoint: Checkpoint, ids: NDArray[np.int64], values: list[str], progress: Progress
) -> dict[str, Path]:
    """Run an int8 body over ``ids`` and store each of ``values`` as [T, width] float16."""
    import onnxruntime

    recipe = ExportRecipe(source="", output="", precision="int8", max_context=_CHUNK, screen_head=False)
    plan = ModelPlan(
        TARGET, checkpoint, checkpoint.config.num_layers, checkpoint.config.vocab_size, None, "int8", "int8"
    )
    with WeightFile(directory / "body.weights") as file:
        spelling = body_spelling(file, graph, plan, recipe, progress)
    body = spell_body(graph, spelling)
    given = {output.name for output in body.graph.output}
    body.graph.output.extend(onnx.ValueInfoProto(name=value) for value in values if value not in given)
    onnx.save(body, directory / "body.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = chosen_threads(0)
    # Between two runs numpy works: threads that spin would take its cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(directory / "body.onnx"), options, providers=["CPUExecutionProvider"])
    # Chunk by chunk to the disk: all activations together would be the peak of an export's memory.
    files = {value: directory / f"{value}.f16" for value in values}
    # Separate short contexts: what matters is the spread of activations, not long range.
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        feeds = {"input_ids": chunk[None], "seqlens_k": np.array([len(chunk) - 1], np.int32)}
        feeds["total_sequence_length"] = np.array([len(chunk)], np.int32)
        for i, kv in enumerate(graph.kv_layers):
            for part in ("key", "value"):
                feeds[f"past_{part}_{i}"] = np.zeros((1, kv.kv_heads, _CHUNK, kv.head_dim), np.float32)
        for value, array in zip(values, session.run(values, feeds), strict=True):
            with files[value].open("ab") as out:
                np.clip(array[0], -65504, 65504).astype(np.float16).tofile(out)
        progress("calibrate", min(start + _CHUNK, len(ids)), len(ids))
    del session
    for path in (directory / "body.weights", directory / "body.onnx"):
        path.unlink()
    return files
