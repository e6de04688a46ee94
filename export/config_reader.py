"""Typed look-ups in what describes a checkpoint. Knows no family; an error names the model and the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edge_runtime.errors import CheckpointError

_MAX_LAYERS = 1024
_MOST = 1e300
"""No constant of a model comes near, and what is reckoned with it stays finite."""
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Reader:
    values: Mapping[str, object]
    name: str

    @property
    def get(self) -> Callable[[str], object]:
        return self.values.get

    def size(self, key: str) -> int:
        return self.as_size(key, self.get(key))

    def depth(self, key: str) -> int:
        layers = self.size(key)
        if layers > _MAX_LAYERS:
            raise CheckpointError(f"{self.name}: {key} is {layers}, more than {_MAX_LAYERS}")
        return layers

    def number(self, key: str) -> float:
        return self.as_number(key, self.get(key))

    def optional_number(self, key: str, default: float | None = None) -> float | None:
        value = self.values.get(key, default)
        return None if value is None else self.as_number(key, value)

    def as_size(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
            raise CheckpointError(f"{self.name}: {key} must be a positive whole number, found {value!r}")
        return value

    def as_number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST:
            raise CheckpointError(f"{self.name}: {key} must be a positive number, found {value!r}")
        # GGUF stores float32: 1e-6 comes back as 9.99999997e-07 unless its shortest spelling is taken.
        if value > _MOST_FLOAT32:
            return float(value)
        near = float(str(np.float32(value)))
        return near if math.isclose(near, value, rel_tol=1e-7) else float(value)


def token_ids(value: object) -> list[int]:
    """The ids that ``value`` names: one, several or none."""
    many = value if isinstance(value, list) else [value]
    return [item for item in many if isinstance(item, int) and not isinstance(item, bool) and item >= 0]
