"""Weights in memory as a checkpoint that borrows its embedding from another. Knows no graph and no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError

from .checkpoint import Checkpoint, TensorSource
from .gguf_blocks import Bytes
from .graph import Graph
from .model_config import GemmaConfig

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayTensor:
    """A :class:`TensorSource` on an array."""

    name: str
    values: Floats
    kind: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def rows(self, start: int, stop: int) -> Floats:
        return self.values[start:stop]

    def raw_blocks(self, start: int, stop: int) -> Bytes | None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class ArrayCheckpoint:
    """A :class:`Checkpoint` of a drafter that embeds with its target's table."""

    config: GemmaConfig
    path: Path
    target: Checkpoint
    tensors: Mapping[str, Floats]
    metadata: Mapping[str, object] = field(default_factory=dict)
    norm_offset: float = 0.0

    @property
    def kind(self) -> Literal["gguf", "safetensors"]:
        """The target's, whose blocks its rows of the head may be."""
        return self.target.kind

    def names(self) -> tuple[str, ...]:
        return (Graph.EMBED, *self.tensors)

    def tensor(self, name: str) -> TensorSource:
        if name == Graph.EMBED:
            return self.target.tensor(name)
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: no tensor {name}")
        return ArrayTensor(name, self.tensors[name])

    def release(self) -> None:
        self.target.release()
