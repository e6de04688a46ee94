"""What each row of a forward sees, for graphs that are told: trees and sliding windows. Knows no session."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..bundle import Model, tree_bias
from ..tree import attends, depths
from .ort_settings import OrtSettings
from .protocol import Floats, Ids

_UNSEEN = np.finfo(np.float32).min


class Sight:
    """The biases of one engine; nothing where its graphs take none."""

    def __init__(self, model: Model, settings: OrtSettings, rows: int) -> None:
        taken = {line.name for line in model.io if line.direction == "in"}
        windows = {layer.window for layer in model.layers}
        self._windows = {tree_bias(window): window for window in windows if tree_bias(window) in taken}
        size = rows * (settings.capacity + 1)
        self._flat = {name: np.zeros(size, np.float32) for name in self._windows}

    def look(self, position: int, rows: int, parents: Ids | None, place: NDArray[np.int64]) -> dict[str, Floats]:
        """Biases [1, 1, ``rows``, ``position`` + ``rows``] by their input, views; positions are written to ``place``.

        Rows behind ``parents`` [<= rows] are padding and follow the last one.
        """
        if not self._windows:
            return {}
        total = position + rows
        known = [] if parents is None else parents.tolist()
        known += list(range(len(known) - 1, rows - 1))
        place[0, :rows] = where = position + np.array(depths(known), np.int64)
        sees = attends(known)
        found = {}
        for name, window in self._windows.items():
            bias = self._flat[name][: rows * total].reshape(rows, total)
            bias[:, :position] = 0.0
            seen = sees
            if window is not None:
                seen = sees & (where[:, None] - where[None, :] < window)
                for row, first in enumerate((where - window + 1).tolist()):
                    bias[row, : max(0, min(first, position))] = _UNSEEN
            bias[:, position:] = np.where(seen, np.float32(0.0), _UNSEEN)
            found[name] = bias.reshape(1, 1, rows, total)
        return found
