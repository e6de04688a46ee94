"""Which runs are captured and replayed as CUDA graphs, and under which number. Knows no binding and no step."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from .ort_settings import OrtSettings

if TYPE_CHECKING:
    import onnxruntime

_ID = "gpu_graph_id"
_NOT_CAPTURED = -1
_NUMBERS = itertools.count(1)
"""Of all engines: a self-draft runs its target's session, on buffers of its own."""


class Replays:
    """Of one engine. A graph is captured for each place and number of rows: addresses are part of it.

    Only few rows: a prefill chunk is long enough without, and each graph holds memory of its own.
    """

    def __init__(self, settings: OrtSettings) -> None:
        self._wanted = settings.device == "cuda" and settings.cuda_graph
        self._most_rows = settings.max_head_rows
        self._options: dict[tuple[str, int, int], onnxruntime.RunOptions] = {}

    def get(self, place: int, rows: int, graph: str = "body") -> onnxruntime.RunOptions | None:
        """``place``: a slot, or the first row of a head. ``None`` where nothing is replayed."""
        if not self._wanted:
            return None
        key = (graph, place, rows) if rows <= self._most_rows else ("", 0, 0)
        if key not in self._options:
            import onnxruntime

            options = onnxruntime.RunOptions()
            number = next(_NUMBERS) if key[0] else _NOT_CAPTURED
            options.add_run_config_entry(_ID, str(number))
            self._options[key] = options
        return self._options[key]
