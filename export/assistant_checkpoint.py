"""The checkpoint of a Gemma 4 assistant under canonical names. Knows no graph, no bundle and no target.

Beside the names of ``export.checkpoint``: ``pre_projection`` [hidden, 2 * backbone] and ``post_projection``
[backbone, hidden]; where the head is ordered, ``centroids`` [centroids, hidden].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError
from export.checkpoint import (
    MappedCheckpoint,
    MappedTensor,
    StoredTensor,
    check_head,
    resolve_tensors,
    stored_tensors,
)
from export.gemma4_config import AssistantConfig, idle_tensors, tensor_shapes
from export.gguf_blocks import Bytes, Floats
from export.model_config import ASSISTANTS
from export.safetensors_file import SafetensorsFile, open_shards, read_json

_NAMES = {
    "pre_projection.weight": "pre_projection",
    "post_projection.weight": "post_projection",
    "masked_embedding.centroids.weight": "centroids",
}
_ORDERING = "masked_embedding.token_ordering"
_INTEGERS: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "I32": np.dtype("<i4")}


@dataclass(frozen=True, slots=True, eq=False)
class AssistantCheckpoint:
    config: AssistantConfig
    weights: MappedCheckpoint
    ordering: NDArray[np.int64] | None
    """[centroids, tokens of a group] the token ids of an ordered head."""


@dataclass(frozen=True, slots=True, eq=False)
class ReorderedTensor:
    """A ``TensorSource`` whose row i is row ``order[i]`` of another."""

    source: MappedTensor
    order: NDArray[np.int64]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.source.shape[1:])

    @property
    def kind(self) -> str:
        return self.source.kind

    def rows(self, start: int, stop: int) -> Floats:
        part = self.order[start:stop]
        return MappedTensor(self.name, (len(part), *self.shape[1:]), self.kind, self.source.raw[part]).rows(
            0, len(part)
        )

    def raw_blocks(self, start: int, stop: int) -> Bytes | None:
        return None if self.source.raw_blocks(0, 0) is None else self.source.raw[self.order[start:stop]]


def is_assistant(directory: Path) -> bool:
    """Whether a directory holds such a checkpoint, for whoever is given one of several kinds."""
    try:
        return str(read_json(directory / "config.json").get("model_type")) in ASSISTANTS
    except CheckpointError:
        return False


def open_assistant(path: Path) -> AssistantCheckpoint:
    """Raises ``CheckpointError`` for what is no such checkpoint, or whose tensors do not fit its config."""
    raw_config = read_json(path / "config.json")
    config = AssistantConfig.from_hf(raw_config, path.resolve().name)
    files = open_shards(path)
    stored, head = stored_tensors(files)
    stored = {name: entry for name, entry in stored.items() if name not in idle_tensors(config.text)}
    for file in files:
        stored |= {
            _NAMES[name]: StoredTensor(name, file.path, span, file.mapping)
            for name, span in file.tensors.items()
            if name in _NAMES
        }
    if config.centroids is None:
        stored.pop("centroids", None)
    tensors = resolve_tensors(config.text, _shapes(config), stored, path)
    check_head(tensors["embed"], head)
    weights = MappedCheckpoint(
        config.text, path, "safetensors", 0.0, raw_config, tensors, tuple(file.mapping for file in files)
    )
    return AssistantCheckpoint(config, weights, _ordering(config, files, path))


def _shapes(config: AssistantConfig) -> Mapping[str, tuple[int, ...]]:
    hidden, backbone = config.text.hidden_size, config.backbone_size
    own: dict[str, tuple[int, ...]] = {"pre_projection": (hidden, 2 * backbone), "post_projection": (backbone, hidden)}
    if config.centroids is not None:
        own["centroids"] = (config.centroids, hidden)
    return tensor_shapes(config.text) | own


def _ordering(config: AssistantConfig, files: Sequence[SafetensorsFile], path: Path) -> NDArray[np.int64] | None:
    if config.centroids is None:
        return None
    file = next((file for file in files if _ORDERING in file.tensors), None)
    if file is None:
        raise CheckpointError(f"{path}: tensor {_ORDERING} is missing")
    span, vocab = file.tensors[_ORDERING], config.text.vocab_size
    kind = _INTEGERS.get(span.kind)
    if kind is None or span.shape != (vocab,) or span.nbytes != vocab * kind.itemsize:
        raise CheckpointError(f"{file.path}: tensor {_ORDERING} is not {vocab} whole numbers")
    order: NDArray[np.int64] = np.frombuffer(file.mapping, kind, vocab, span.offset).astype(np.int64)
    if not np.array_equal(np.sort(order), np.arange(vocab)):
        raise CheckpointError(f"{file.path}: tensor {_ORDERING} does not name every token once")
    return order.reshape(config.centroids, -1)
