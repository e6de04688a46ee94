"""A trained multi-token drafter on disk, and exactly what it computes. Knows neither torch nor an engine.

A checkpoint is a directory:

    config.json          ``DrafterConfig``, with "model_type": "edge_mtp"
    model.safetensors    the tensors below, F32, F16 or I8; ``token_ids`` is I64. An I8 matrix comes with F16
                         ``<name>.scales`` [out, in / 32], one for each run of 32 values in a row
    record.json          how it was trained: target, corpora with their licences, tokens, held-out acceptance
    GEMMA_NOTICE.txt     it is a derivative of the target, under the target's terms

Tensors; norm weights are the factors themselves (Gemma's 1 + w), matrices are [out, in], names and meaning of a layer
are those of ``export.checkpoint`` and ``export.gemma``:

    embed_norm    [B]          weight of the norm over the token's embedding; B: the target's hidden size
    hidden_scale  [B]          factor of the target's hidden row, about 1 / the target's final norm
    projection    [D, 2 B]     [embedding; hidden] -> the drafter's residual stream
    layers.0.*                 attn_norm q k v o q_norm k_norm post_attn_norm ffn_norm gate up down post_ffn_norm
    final_norm    [D]
    token_ids     [R]          rising: the token id of each row of the head
    head          [R, D]       only where it has its own; otherwise row r is the target's embedding row token_ids[r]
    feed          [B, D]       only where B != D or the feed is learnt; otherwise the output stands in as it is

What it computes. The text is x_0 x_1 ...; h_i is the target's row after its final norm at x_i, the row that x_{i+1} is
read from. **Entry i** joins the token x_{i+1} with h_i, stands at **rotary position i**, and says what x_{i+2} is:

    e   = RmsNorm(embed[x_{i+1}] * embed_scale, embed_norm)     embed: the target's; RmsNorm(x, w) = x / rms(x) * w
    r   = projection @ [e; h_i * hidden_scale]                  rms(x) = sqrt(mean(x^2) + rms_eps)
    a   = RmsNorm(r, attn_norm)
    q   = rope(RmsNorm(heads(q @ a), q_norm), i)             per head; rotated halves: angle i / theta^(2 m / head_dim)
    k_i = rope(RmsNorm(heads(k @ a), k_norm), i);  v_i = heads(v @ a)
    t   = softmax_j(query_scale * q . k_j) v_j                  j in 0..i, or its last ``window``
    r   = r + RmsNorm(o @ t, post_attn_norm)
    f   = RmsNorm(r, ffn_norm)
    r   = r + RmsNorm(down @ (gelu_tanh(gate @ f) * (up @ f)), post_ffn_norm)
    y_i = RmsNorm(r, final_norm)
    logits[R] = head @ y_i            (then the target's final softcap, where it has one)
    feed_i    = feed @ y_i            (y_i itself without a ``feed``)

Its cache holds k_i, v_i at index i. With n tokens committed the target has h_0 .. h_{n-2}: entries 0 .. n-2 are *true*.
Entry n-2 drafts x_n; to draft the next one, entry n-1 takes the drafted x_n and **feed_{n-2} in place of h_{n-1}**, and
so on. What self-fed entries left in the cache is written over by the true ones once the target has verified them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError
from edge_runtime.files import replace_text, whole
from edge_runtime.schema import structure
from export.gguf_blocks import dequantise
from export.safetensors_file import SafetensorsFile, open_safetensors, read_json

MODEL_TYPE = "edge_mtp"
CONFIG_NAME, WEIGHTS_NAME, RECORD_NAME = "config.json", "model.safetensors", "record.json"
LAYER = "layers.0."
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I8": np.dtype("i1"),
    "I64": np.dtype("<i8"),
}
_SCALES = ".scales"
_RUN = 32

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """Shape and constants of a drafter of one layer."""

    backbone_hidden_size: int
    """B: of the target's hidden rows and embedding."""
    hidden_size: int
    """D: of the drafter's residual stream."""
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    rope_theta: float
    rope_scale: float
    """Positions are divided by it before the rotation."""
    rms_eps: float
    query_scale: float
    """Multiplied onto q.k."""
    attn_softcap: float | None
    final_softcap: float | None
    window: int | None
    """Entries that a query sees, its own included; ``None``: all."""
    qk_norm: bool
    embed_scale: float
    head_rows: int
    """R"""
    vocab_size: int
    """Rows of the target's embedding."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainedDrafter:
    config: DrafterConfig
    tensors: dict[str, Floats]
    """All but ``token_ids``, as float32."""
    token_ids: Ids
    record: dict[str, Any]

    @property
    def ties_head(self) -> bool:
        """Its head reads the target's embedding."""
        return "head" not in self.tensors


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Of the tensors that every drafter has, ``token_ids`` apart."""
    width, backbone, dim = config.hidden_size, config.backbone_hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_norm": (backbone,),
        "hidden_scale": (backbone,),
        "projection": (width, 2 * backbone),
        "final_norm": (width,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "q": (config.heads * dim, width),
        "k": (config.kv_heads * dim, width),
        "v": (config.kv_heads * dim, width),
        "o": (width, config.heads * dim),
        "post_attn_norm": (width,),
        "ffn_norm": (width,),
        "gate": (config.ffn, width),
        "up": (config.ffn, width),
        "down": (width, config.ffn),
        "post_ffn_norm": (width,),
    }
    if config.qk_norm:
        layer |= {"q_norm": (dim,), "k_norm": (dim,)}
    return shapes | {LAYER + name: shape for name, shape in layer.items()}


def is_drafter(directory: Path) -> bool:
    """Whether a directory holds such a checkpoint, for whoever is given one of several kinds."""
    try:
        return read_json(directory / CONFIG_NAME).get("model_type") == MODEL_TYPE
    except CheckpointError:
        return False


def load_drafter(directory: Path) -> TrainedDrafter:
    """Raises ``CheckpointError`` for what is no such checkpoint, or whose tensors do not fit its config."""
    path = directory / CONFIG_NAME
    given = read_json(path)
    if given.pop("model_type", None) != MODEL_TYPE:
        raise CheckpointError(f"{path}: no trained drafter: its model_type is not {MODEL_TYPE!r}")
    config = structure(DrafterConfig, given, CheckpointError, str(path))
    if min(config.head_rows, *(size for shape in expected_shapes(config).values() for size in shape)) < 1:
        raise CheckpointError(f"{path}: a size is not positive")
    refuse_no_numbers(path, asdict(config))
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise CheckpointError(f"{path}: {config.heads} heads over {config.kv_heads}, of head_dim {config.head_dim}")
    if config.window is not None and config.window < 1:
        raise CheckpointError(f"{path}: a window of {config.window}")
    arrays = read_tensors(directory / WEIGHTS_NAME)
    weights = directory / WEIGHTS_NAME
    ids = arrays.pop("token_ids", None)
    if ids is None or ids.dtype != np.int64 or ids.shape != (config.head_rows,):
        raise CheckpointError(f"{weights}: token_ids are not {config.head_rows} integers")
    if not (np.all(np.diff(ids) > 0) and ids[0] >= 0 and ids[-1] < config.vocab_size):
        raise CheckpointError(f"{weights}: token_ids do not rise, or leave the vocabulary")
    shapes = expected_shapes(config)
    optional = {
        "head": (config.head_rows, config.hidden_size),
        "feed": (config.backbone_hidden_size, config.hidden_size),
    }
    for name in {**shapes, **arrays}:
        wanted = shapes.get(name) or optional.get(name)
        if wanted is None or name not in arrays or arrays[name].shape != wanted:
            found = list(arrays[name].shape) if name in arrays else "missing"
            raise CheckpointError(f"{weights}: tensor {name} is {found}, not {list(wanted) if wanted else 'known'}")
        if not np.isfinite(arrays[name]).all():
            raise CheckpointError(f"{weights}: tensor {name} has values that are not finite")
    if config.hidden_size != config.backbone_hidden_size and not {"head", "feed"} <= set(arrays):
        raise CheckpointError(f"{weights}: a width of its own needs a head and a feed of its own")
    record = directory / RECORD_NAME
    told = read_json(record) if record.is_file() else {}
    return TrainedDrafter(config, {name: arrays[name].astype(np.float32) for name in arrays}, ids, dict(told))


def refuse_no_numbers(path: Path, config: Mapping[str, Any]) -> None:
    """Constants that a graph would be made with: JSON of Python's knows NaN. Raises ``CheckpointError``."""
    for name, value in config.items():
        if isinstance(value, float) and not 0.0 < value < math.inf:
            raise CheckpointError(f"{path}: {name} must be a positive number, not {value}")


def save_drafter(directory: Path, drafter: TrainedDrafter, dtype: str = "F16") -> None:
    """Into a directory that exists; vectors stay F32, matrices become ``dtype``: F32, F16, or I8 where rows fit."""
    config = {"model_type": MODEL_TYPE, **asdict(drafter.config)}
    arrays: dict[str, NDArray[Any]] = {"token_ids": drafter.token_ids.astype(_DTYPES["I64"])}
    for name, values in drafter.tensors.items():
        if dtype == "I8" and values.ndim > 1 and values.shape[1] % _RUN == 0:
            arrays[name], arrays[name + _SCALES] = _in_eight_bits(values)
        else:
            wide = "F16" if dtype == "I8" else dtype
            arrays[name] = values.astype(_DTYPES[wide] if values.ndim > 1 else _DTYPES["F32"])
    write_tensors(directory / WEIGHTS_NAME, arrays)
    for name, content in ((CONFIG_NAME, config), (RECORD_NAME, drafter.record)):
        replace_text(directory / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _in_eight_bits(values: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    runs = values.reshape(len(values), -1, _RUN)
    scales = np.maximum(np.abs(runs).max(axis=2) / 127.0, np.finfo(np.float16).tiny).astype(np.float16)
    steps = np.rint(runs / scales[:, :, None].astype(np.float32)).clip(-127, 127)
    return steps.reshape(values.shape).astype(np.int8), scales


def _out_of_eight_bits(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Matrices with scales, in place. Raises ``CheckpointError``."""
    for name in [name for name, array in arrays.items() if array.dtype == np.int8]:
        steps, scales = arrays[name], arrays.pop(name + _SCALES, None)
        if steps.ndim != 2 or scales is None or scales.shape != (len(steps), steps.shape[1] / _RUN):
            raise CheckpointError(f"{path}: tensor {name} has 8 bits, and no scales that fit it")
        with np.errstate(over="ignore", invalid="ignore"):
            runs = steps.reshape(*scales.shape, _RUN) * scales[:, :, None]
        if not np.isfinite(runs).all():
            raise CheckpointError(f"{path}: tensor {name} has values that are not finite: the file is damaged")
        arrays[name] = runs.astype(np.float32).reshape(steps.shape)


def write_tensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """A safetensors file, whole or not at all. Its format is a length, a JSON header and the bytes."""
    kinds = {dtype: kind for kind, dtype in _DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": kinds[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with whole(path) as partial, partial.open("wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for array in arrays.values():
            out.write(np.ascontiguousarray(array).tobytes())
        out.flush()
        os.fsync(out.fileno())


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Copies; floats of any kind and 8 bits as float32, I64 as int64. Raises ``CheckpointError``."""
    return arrays_of(open_safetensors(path))


def arrays_of(file: SafetensorsFile) -> dict[str, NDArray[Any]]:
    """The same of a file that is open."""
    path = file.path
    arrays: dict[str, NDArray[Any]] = {}
    for name, span in file.tensors.items():
        count = math.prod(span.shape)
        if span.kind == "I64":
            values: NDArray[Any] = np.frombuffer(file.mapping, _DTYPES["I64"], count, span.offset).astype(np.int64)
        elif span.kind == "I8":
            values = np.frombuffer(file.mapping, np.int8, count, span.offset).copy()
        elif span.kind in ("F32", "F16", "BF16"):
            raw = np.frombuffer(file.mapping, np.uint8, span.nbytes, span.offset)
            values = dequantise(span.kind, raw.reshape(1, span.nbytes), count)
        else:
            raise CheckpointError(f"{path}: tensor {name} has the unsupported type {span.kind}")
        arrays[name] = values.reshape(span.shape)
    _out_of_eight_bits(path, arrays)
    return arrays
