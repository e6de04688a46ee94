"""Which buffer stands at which input and output: one cached binding for every shape. Knows no tokens and no step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..bundle import Model, Screen
from .ort_memory import Arrays, Buffer, bind_host
from .ort_session import Sessions
from .protocol import Floats, HeadOutput

if TYPE_CHECKING:
    import onnxruntime


_PICKED = -1
"""In place of a first row: rows of several lanes, picked from a forward."""
_MOST_PICKED = 128
"""Readouts of such rows that stay bound; each has a few kilobytes a row of its own."""


@dataclass(frozen=True, slots=True)
class BoundReadout:
    """A bound readout and the host arrays that it writes."""

    binding: onnxruntime.IOBinding
    output: HeadOutput
    rescored_rows: NDArray[np.int64] | None
    rescored_logits: Floats | None

    def cut(self, first: int, count: int, gathered: bool) -> HeadOutput:
        output, rows = self.output, slice(first, first + count)
        return HeadOutput(
            output.argmax[rows],
            output.candidate_ids[rows],
            output.candidate_logits[rows],
            output.logsumexp[rows],
            output.gathered[rows, 0] if gathered and output.gathered is not None else None,
        )


@dataclass(frozen=True, slots=True)
class BoundRun:
    """One session's part of a forward."""

    session: onnxruntime.InferenceSession
    binding: onnxruntime.IOBinding
    pushed: tuple[str, ...]
    """Inputs that the host writes: on a device, what is bound is their twin."""
    biases: tuple[str, ...] = ()
    """Inputs whose shape changes with every step."""


class Bindings:
    """Of the sessions of one model."""

    def __init__(self, model: Model, screen: Screen | None, arrays: Arrays, sessions: Sessions) -> None:
        self._model, self._screen, self._arrays, self._sessions = model, screen, arrays, sessions
        self._reads_hidden = "hidden" in self._names("readout", "in")
        self._forwards: dict[tuple[int, int], tuple[BoundRun, ...]] = {}
        self._heads: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._readouts: dict[tuple[int, int], BoundReadout] = {}
        self._picked: dict[tuple[int, int], BoundReadout] = {}
        self.feeds = "feed" in self._names("body", "out")
        """Whether the body says what the target's next rows would be."""

    def forward(self, slot: int, rows: int) -> tuple[BoundRun, ...]:
        """From token ids to hidden rows, in order."""
        found = self._forwards.get((slot, rows))
        if found is None:
            sessions, runs = self._sessions, []
            if sessions.lookup is not None:
                runs.append(self._bind_lookup(sessions.lookup, rows))
            if sessions.stem is not None:
                runs.append(self._bind_body(sessions.stem, "stem", slot, rows))
            runs.append(self._bind_body(sessions.body, "body", slot, rows))
            found = self._forwards[(slot, rows)] = tuple(runs)
        return found

    def head(self, first: int, count: int) -> onnxruntime.IOBinding:
        found = self._heads.get((first, count))
        if found is None:
            found = self._heads[(first, count)] = self._bind_head(self._arrays.hidden, first, count)
        return found

    def readout(self, first: int, count: int) -> BoundReadout:
        found = self._readouts.get((first, count))
        if found is None:
            found = self._readouts[(first, count)] = self._bind_readout(self._arrays.hidden, first, count, 0)
        return found

    def picked_head(self, count: int) -> onnxruntime.IOBinding:
        """Of the first ``count`` rows that were picked."""
        found = self._heads.get((_PICKED, count))
        if found is None:
            assert self._arrays.picked is not None  # it goes with lanes
            found = self._heads[(_PICKED, count)] = self._bind_head(self._arrays.picked, 0, count)
        return found

    def picked_readout(self, first: int, count: int) -> BoundReadout:
        """Of picked rows, whose logits lie at the same rows of their buffer."""
        found = self._picked.get((first, count))
        if found is None:
            if len(self._picked) == _MOST_PICKED:
                self._picked.clear()
            assert self._arrays.picked is not None
            found = self._picked[(first, count)] = self._bind_readout(self._arrays.picked, first, count, first)
        return found

    def _names(self, graph: str, direction: str) -> frozenset[str]:
        lines = (one for one in self._model.io if (one.graph, one.direction) == (graph, direction))
        return frozenset(one.name for one in lines)

    def _bind_lookup(self, session: onnxruntime.InferenceSession, rows: int) -> BoundRun:
        """What it writes is among the small inputs of the body."""
        arrays, binding = self._arrays, session.io_binding()
        assert arrays.per_layer is not None  # it goes with a lookup
        bind_host(binding.bind_input, "input_ids", arrays.ids, (1, rows))
        bind_host(binding.bind_output, "per_layer", arrays.per_layer, (1, rows, arrays.per_layer.shape[2]))
        return BoundRun(session, binding, ())

    def _small_inputs(self, rows: int) -> dict[str, NDArray[np.generic]]:
        arrays = self._arrays
        small: dict[str, NDArray[np.generic]] = {
            "input_ids": arrays.ids[:, :rows],
            "seqlens_k": arrays.seqlens_k,
            "total_sequence_length": arrays.total_length,
            "position_ids": arrays.position_ids[:, :rows],
        }
        if arrays.hidden_in is not None:
            small["hidden_in"] = arrays.hidden_in[:, :rows]
        if arrays.per_layer is not None:
            small["per_layer"] = arrays.per_layer[:, :rows]
        return small

    def _bind_body(self, session: onnxruntime.InferenceSession, graph: str, slot: int, rows: int) -> BoundRun:
        arrays, model, binding = self._arrays, self._model, session.io_binding()
        inputs, outputs = self._names(graph, "in"), self._names(graph, "out")
        small = {name: array for name, array in self._small_inputs(rows).items() if name in inputs}
        for name, array in small.items():
            self._bind_small(binding, name, array)
        for i, pair in enumerate(arrays.cache[slot]):
            for part, cache in zip(("key", "value"), pair, strict=True):
                if f"past_{part}_{i}" in inputs:
                    cache.bind(binding.bind_input, f"past_{part}_{i}", cache.shape)
                # A model that only looks at its target's caches hands none out; one whose layers share a cache hands
                # it out once for each of them (present_key_3, present_key_3.1).
                for name in outputs:
                    if name.split(".")[0] == f"present_{part}_{i}":
                        cache.bind(binding.bind_output, name, cache.shape)
        for name, buffer in arrays.carried.items():
            bind = binding.bind_output if graph == "stem" else binding.bind_input
            buffer.bind(bind, name, (1, rows, model.hidden_size))
        if graph == "body":
            arrays.hidden.bind(binding.bind_output, "hidden", (1, rows * model.fan_out, model.hidden_size))
            if self.feeds and arrays.feed is not None:
                arrays.feed.bind(binding.bind_output, "feed", (1, rows, *arrays.feed.shape[1:]))
        biases = tuple(sorted(name for name in inputs if "attention_bias" in name))
        return BoundRun(session, binding, tuple(small), biases)

    def _bind_small(self, binding: onnxruntime.IOBinding, name: str, array: NDArray[np.generic]) -> None:
        twin = self._arrays.twins.get(name)
        if twin is None:
            bind_host(binding.bind_input, name, array, array.shape)
        else:
            twin.bind(binding.bind_input, name, array.shape)

    def _bind_head(self, hidden: Buffer, first: int, count: int) -> onnxruntime.IOBinding:
        arrays, model = self._arrays, self._model
        binding = self._sessions.head.io_binding()
        hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
        arrays.logits.bind(binding.bind_output, "logits", (count, model.head_rows))
        return binding

    def _bind_readout(self, hidden: Buffer, first: int, count: int, first_logits: int) -> BoundReadout:
        arrays, model = self._arrays, self._model
        binding = self._sessions.readout.io_binding()
        arrays.logits.bind(binding.bind_input, "logits", (count, model.head_rows), first_row=first_logits)
        self._bind_small(binding, "inverse_temperature", arrays.inverse_temperature)
        self._bind_small(binding, "gather_rows", arrays.gather_rows[:count])
        output = HeadOutput(
            argmax=np.zeros(count, np.int64),
            candidate_ids=np.zeros((count, model.candidates), np.int64),
            candidate_logits=np.zeros((count, model.candidates), np.float32),
            logsumexp=np.zeros(count, np.float32),
            gathered=np.zeros((count, 1), np.float32),
        )
        rescored_rows = rescored_logits = None
        if self._screen is not None or self._reads_hidden:
            hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
        if self._screen is not None:
            rescored_rows = np.zeros((count, self._screen.rescored), np.int64)
            rescored_logits = np.zeros((count, self._screen.rescored), np.float32)
            bind_host(binding.bind_output, "rescored_rows", rescored_rows, rescored_rows.shape)
            bind_host(binding.bind_output, "rescored_logits", rescored_logits, rescored_logits.shape)
        for name in ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"):
            array = getattr(output, name)
            bind_host(binding.bind_output, name, array, array.shape)
        return BoundReadout(binding, output, rescored_rows, rescored_logits)
