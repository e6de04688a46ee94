"""The hidden row behind each cache entry, kept for drafters that read them. Knows slots and positions, no device."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..resident import give_pages_back
from .protocol import Floats, Ids


class KeptRows:
    """Of an engine that keeps none every call but ``of`` does nothing."""

    def __init__(self, shape: tuple[int, int, int] | None, cache: Literal["as-used", "at-load"] = "as-used") -> None:
        """``shape``: slots, capacity, hidden_size, or ``None``: none are kept; ``cache``: when they are paid for."""
        self._rows: Floats | None = None
        if shape is not None:
            # Untouched pages of zeros cost no memory, written ones do.
            self._rows = np.full(shape, 0, np.float32) if cache == "at-load" else np.zeros(shape, np.float32)

    def write(self, slot: int, position: int, hidden: Floats) -> None:
        """``hidden`` [T, hidden_size] to [``position``, ``position`` + T)."""
        if self._rows is not None:
            self._rows[slot, position : position + len(hidden)] = hidden

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        if self._rows is not None:
            self._rows[target, :count] = self._rows[source, :count]

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        """As ``Engine.keep_path``."""
        if self._rows is not None:
            self._rows[slot, position : position + len(rows)] = self._rows[slot, position + rows]

    def forget(self, slot: int) -> None:
        if self._rows is not None:
            give_pages_back(self._rows[slot])

    def of(self, slot: int) -> Floats:
        """[capacity, hidden_size] a view. Raises ``ValueError`` where they are not kept."""
        if self._rows is None:
            raise ValueError("this engine keeps no hidden rows")
        rows: Floats = self._rows[slot]
        return rows
