"""The bound body with lanes: which buffers stand where when several slots share a step. Knows no tokens and no head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..bundle import Model, lane_input
from .ort_memory import Arrays, KvPair, bind_host, cache_pair

if TYPE_CHECKING:
    import onnxruntime

_MOST_BINDINGS = 32
"""Of different slots in different order; small, and yet they must not grow."""


class LaneBindings:
    """Of one body; lanes without work attend to one entry of a cache that is nobody's."""

    def __init__(self, model: Model, arrays: Arrays, session: onnxruntime.InferenceSession) -> None:
        assert model.lanes is not None
        self._model, self._arrays, self._session = model, arrays, session
        count = model.lanes.count
        self._nobodys = [cache_pair(kv, 1, model.kv_dtype, "cpu") for kv in model.layers]
        self._lengths = np.zeros((count, 1), np.int32)
        self._totals = np.zeros((count, 1), np.int32)
        self._lane_rows = np.zeros(count + 1, np.int64)
        self._rows = np.zeros(1, np.int64)
        self._bindings: dict[tuple[int, ...], onnxruntime.IOBinding] = {}

    def bind(self, slots: tuple[int, ...], positions: Sequence[int], counts: Sequence[int]) -> onnxruntime.IOBinding:
        """``slots``, all different, with ``counts`` rows each from ``positions`` on; ids lie in the arrays, hidden rows
        will, lane behind lane."""
        busy, total = len(slots), sum(counts)
        self._lane_rows[:busy], self._lane_rows[busy:-1] = counts, 1
        self._lane_rows[-1] = total + len(self._lengths) - self._lane_rows[:-1].sum()
        self._rows[0] = total
        self._totals[:busy, 0] = np.add(positions, counts)
        self._totals[busy:] = 1
        self._lengths[:] = self._totals - 1
        binding = self._bindings.get(slots)
        if binding is None:
            if len(self._bindings) == _MOST_BINDINGS:
                self._bindings.clear()
            binding = self._bindings[slots] = self._bind(slots)
        arrays = self._arrays
        bind_host(binding.bind_input, "input_ids", arrays.ids, (1, total))
        arrays.hidden.bind(binding.bind_output, "hidden", (1, total, self._model.hidden_size))
        return binding

    def _bind(self, slots: tuple[int, ...]) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        bind_host(binding.bind_input, "lane_rows", self._lane_rows, self._lane_rows.shape)
        bind_host(binding.bind_input, "rows", self._rows, self._rows.shape)
        for lane in range(len(self._lengths)):
            for name, of in (("seqlens_k", self._lengths), ("total_sequence_length", self._totals)):
                bind_host(binding.bind_input, lane_input(name, lane), of[lane], (1,))
            cache: Sequence[KvPair] = self._arrays.cache[slots[lane]] if lane < len(slots) else self._nobodys
            for i, pair in enumerate(cache):
                for part, buffer in zip(("key", "value"), pair, strict=True):
                    buffer.bind(binding.bind_input, lane_input(f"past_{part}_{i}", lane), buffer.shape)
                    buffer.bind(binding.bind_output, lane_input(f"present_{part}_{i}", lane), buffer.shape)
        return binding
