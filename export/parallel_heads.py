"""Parallel heads on disk, what they compute, and their graph. Knows neither how they were fitted nor how they draft.

A checkpoint is a directory like a trained drafter's (``export.training.checkpoint``), with "model_type": "edge_heads":

    embed_norm    [B]       weight of the norm over the token's embedding; B: the target's hidden size
    hidden_scale  [B]       factor of the target's hidden row, 1 / the target's final norm
    out_scale     [B]       back to rows that the target's head reads
    heads.{i}.mix [B, 2 B]
    heads.{i}.up  [W, B], heads.{i}.down [B, W]
    token_ids     [R]       rising: the token id of each row of the reduced head, which is the target's embedding

After the last token x_{n-1} and the target's row h_{n-2}, head i says what x_{n+i} is:

    u        = [RmsNorm(embed[x_{n-1}] * embed_scale, embed_norm); h_{n-2} * hidden_scale]
    a        = mix_i @ u
    y_i      = (a + down_i @ gelu_tanh(up_i @ a)) * out_scale
    logits_i = embed[token_ids] @ y_i       (then the target's final softcap, where it has one)

After Medusa (Cai et al. 2024): a residual block a head, here over the token as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError
from edge_runtime.files import replace_text
from edge_runtime.schema import structure

from .array_checkpoint import ArrayCheckpoint, Floats
from .checkpoint import Checkpoint
from .gemma import head_ops
from .graph import Embed, Gelu, Graph, Join, Linear, Op, RmsNorm, Rows, Scale, Sum
from .safetensors_file import read_json
from .training.checkpoint import CONFIG_NAME, RECORD_NAME, WEIGHTS_NAME, read_tensors, refuse_no_numbers, write_tensors

MODEL_TYPE = "edge_heads"
_MOST_HEADS = 16


@dataclass(frozen=True, slots=True)
class HeadsConfig:
    hidden_size: int
    """B"""
    heads: int
    inner: int
    """W"""
    rms_eps: float
    embed_scale: float
    final_softcap: float | None
    head_rows: int
    """R"""
    vocab_size: int
    """Rows of the target's embedding."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedHeads:
    config: HeadsConfig
    tensors: dict[str, Floats]
    """All but ``token_ids``."""
    token_ids: NDArray[np.int64]
    record: dict[str, Any] = field(default_factory=dict)


def expected_shapes(config: HeadsConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.inner
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("embed_norm", "hidden_scale", "out_scale"), (width,))
    for i in range(config.heads):
        shapes |= {f"heads.{i}.mix": (width, 2 * width), f"heads.{i}.up": (inner, width)}
        shapes[f"heads.{i}.down"] = (width, inner)
    return shapes


def load_heads(directory: Path) -> FittedHeads:
    """Raises ``CheckpointError`` for what is no such checkpoint, or whose tensors do not fit its config."""
    path, weights = directory / CONFIG_NAME, directory / WEIGHTS_NAME
    given = read_json(path)
    if given.pop("model_type", None) != MODEL_TYPE:
        raise CheckpointError(f"{path}: no parallel heads: its model_type is not {MODEL_TYPE!r}")
    config = structure(HeadsConfig, given, CheckpointError, str(path))
    if not 1 <= config.heads <= _MOST_HEADS:
        raise CheckpointError(f"{path}: {config.heads} heads, not 1 to {_MOST_HEADS}")
    if min(config.hidden_size, config.inner, config.head_rows, config.vocab_size) < 1:
        raise CheckpointError(f"{path}: a size is not positive")
    refuse_no_numbers(path, asdict(config))
    arrays = read_tensors(weights)
    ids = arrays.pop("token_ids", None)
    if ids is None or ids.dtype != np.int64 or ids.shape != (config.head_rows,):
        raise CheckpointError(f"{weights}: token_ids are not {config.head_rows} integers")
    if not (np.all(np.diff(ids) > 0) and ids[0] >= 0 and ids[-1] < config.vocab_size):
        raise CheckpointError(f"{weights}: token_ids do not rise, or leave the vocabulary")
    shapes = expected_shapes(config)
    for name in {**shapes, **arrays}:
        found = list(arrays[name].shape) if name in arrays else "missing"
        if name not in shapes or found != list(shapes[name]):
            wanted = list(shapes[name]) if name in shapes else "known"
            raise CheckpointError(f"{weights}: tensor {name} is {found}, not {wanted}")
        if not np.isfinite(arrays[name]).all():
            raise CheckpointError(f"{weights}: tensor {name} has values that are not finite")
    record = directory / RECORD_NAME
    told = dict(read_json(record)) if record.is_file() else {}
    return FittedHeads(config, {name: arrays[name].astype(np.float32) for name in shapes}, ids, told)


def save_heads(directory: Path, heads: FittedHeads) -> None:
    """Into a directory that exists; matrices in float16."""
    arrays: dict[str, NDArray[Any]] = {"token_ids": heads.token_ids.astype("<i8")}
    for name, values in heads.tensors.items():
        arrays[name] = values.astype("<f2" if values.ndim > 1 else "<f4")
    write_tensors(directory / WEIGHTS_NAME, arrays)
    config = {"model_type": MODEL_TYPE, **asdict(heads.config)}
    for name, content in ((CONFIG_NAME, config), (RECORD_NAME, heads.record)):
        replace_text(directory / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def heads_checkpoint(heads: FittedHeads, path: Path, target: Checkpoint) -> ArrayCheckpoint:
    config = heads.config
    text = replace(
        target.config,
        name=path.name,
        rms_eps=config.rms_eps,
        embed_scale=config.embed_scale,
        final_softcap=config.final_softcap,
        per_layer_size=0,
    )
    return ArrayCheckpoint(text, path, target, heads.tensors)


def describe_heads(config: HeadsConfig) -> Graph:
    body: list[Op] = [
        Embed("e", Graph.EMBED, config.embed_scale),
        RmsNorm("embedded", "e", "embed_norm"),
        Scale("told", Graph.HIDDEN_IN, "hidden_scale"),
        Join("u", "embedded", "told"),
    ]
    for i in range(config.heads):
        w = f"heads.{i}."
        body += [
            Linear(f"a{i}", "u", (w + "mix",)),
            Linear(f"up{i}", f"a{i}", (w + "up",)),
            Gelu(f"g{i}", f"up{i}"),
            Linear(f"down{i}", f"g{i}", (w + "down",)),
            Sum(f"s{i}", f"a{i}", f"down{i}"),
            Scale(f"y{i}", f"s{i}", "out_scale"),
        ]
    body.append(Rows(Graph.BODY_OUT, tuple(f"y{i}" for i in range(config.heads))))
    return Graph(
        body=tuple(body),
        head=head_ops(config.final_softcap),
        kv_layers=(),
        hidden_size=config.hidden_size,
        rms_eps=config.rms_eps,
        hidden_input=config.hidden_size,
        fan_out=config.heads,
    )
