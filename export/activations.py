"""How large the values inside a body for TensorRT become. Knows no tolerance and no engine of ours.

float16 ends at 65504, and a value beyond it is an infinity that no norm brings back. Gemma 3's residual stream passes
that, so it is float32 in every export; whether products stay below it is told by running the graph and looking.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edge_runtime.bundle import Model
from edge_runtime.cores import chosen_threads

ROWS = 16
"""First tokens of a text that are looked at: the largest values of all are those of the very first."""
_UNTOLD = ("Where", "DequantizeLinear")
"""A masked score is the least number there is, and weights are no activations."""
_STEPS = (".square", ".mean", ".above", ".cube", ".small", ".sum", ".inner")
"""Within a norm or a gelu, always float32: a square says no more than what it is one of."""


@dataclass(frozen=True, slots=True)
class Largest:
    value: str
    """Its name in the graph."""
    magnitude: float


@dataclass(frozen=True, slots=True)
class Activations:
    narrow: Largest | None
    """In float16; ``None`` in a float32 export."""
    wide: Largest
    """In float32: the residual stream, as a rule."""


def largest_activations(directory: Path, model: Model, embeddings: NDArray[np.float32]) -> Activations:
    """Of the body over the first rows of ``embeddings`` [T, columns], nothing before them."""
    import onnxruntime

    embeddings = embeddings[:ROWS]
    proto = onnx.load(directory / model.body, load_external_data=False)
    kinds = dict(_values(proto))
    given = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in kinds if name not in given)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = chosen_threads(0)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(directory))
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    count, kept = len(embeddings), np.dtype(model.kv_dtype)
    feeds = {"embeddings": embeddings[None], "positions": np.arange(count, dtype=np.int32)}
    for i, kv in enumerate(model.layers):
        for part in ("key", "value"):
            feeds[f"past_{part}_{i}"] = np.zeros((1, kv.kv_heads, count, kv.head_dim), kept)
    found: dict[int, Largest] = {}
    for name, array in zip(kinds, session.run(list(kinds), feeds), strict=True):
        # A NaN is what an infinity made: worse than any number.
        magnitude = float(np.nan_to_num(np.abs(array.astype(np.float32)), nan=np.inf).max(initial=0.0))
        if kinds[name] not in found or magnitude > found[kinds[name]].magnitude:
            found[kinds[name]] = Largest(name, magnitude)
    return Activations(found.get(TensorProto.FLOAT16), found[TensorProto.FLOAT])


def _values(proto: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    """(name, type) of every float that a node makes."""
    typed = onnx.shape_inference.infer_shapes(proto)
    known = {value.name: value.type.tensor_type.elem_type for value in (*typed.graph.value_info, *typed.graph.output)}
    for node in proto.graph.node:
        for name in node.output:
            told = node.op_type not in _UNTOLD and not name.endswith(_STEPS)
            if told and known.get(name) in (TensorProto.FLOAT, TensorProto.FLOAT16):
                yield name, known[name]
