"""Which buffer stands at which input and output: one cached binding for every shape. Knows no tokens and no step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..bundle import Model, Screen
from .ort_memory import Arrays, bind_host
from .protocol import Floats, HeadOutput

if TYPE_CHECKING:
    import onnxruntime


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


class Bindings:
    """Of the sessions of one model."""

    def __init__(
        self,
        model: Model,
        screen: Screen | None,
        arrays: Arrays,
        body: onnxruntime.InferenceSession,
        head: onnxruntime.InferenceSession,
        readout: onnxruntime.InferenceSession,
        lookup: onnxruntime.InferenceSession | None,
    ) -> None:
        self._model, self._screen, self._arrays = model, screen, arrays
        self._body, self._head, self._readout, self._lookup = body, head, readout, lookup
        self._inputs = frozenset(one.name for one in model.io if (one.graph, one.direction) == ("body", "in"))
        self._reads_hidden = any(
            (one.graph, one.direction, one.name) == ("readout", "in", "hidden") for one in model.io
        )
        self._outputs = frozenset(one.name for one in model.io if (one.graph, one.direction) == ("body", "out"))
        self._lookups: dict[int, onnxruntime.IOBinding] = {}
        self._bodies: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._heads: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._readouts: dict[tuple[int, int], BoundReadout] = {}

    @property
    def feeds(self) -> bool:
        """Whether the body says what the target's next rows would be."""
        return "feed" in self._outputs

    def small_inputs(self, rows: int) -> dict[str, NDArray[np.generic]]:
        """What a step of the body writes on the host, by its inputs."""
        arrays = self._arrays
        small: dict[str, NDArray[np.generic]] = {
            "input_ids": arrays.ids[:, :rows],
            "seqlens_k": arrays.seqlens_k,
            "total_sequence_length": arrays.total_length,
        }
        if arrays.hidden_in is not None:
            small["hidden_in"] = arrays.hidden_in[:, :rows]
        if arrays.per_layer is not None:
            small["per_layer"] = arrays.per_layer[:, :rows]
        return {name: array for name, array in small.items() if name in self._inputs}

    def lookup(self, rows: int) -> onnxruntime.IOBinding | None:
        """``None`` where a body needs none. What it writes is among the small inputs of the body."""
        arrays, found = self._arrays, self._lookups.get(rows)
        if found is None and self._lookup is not None and arrays.per_layer is not None:
            found = self._lookups[rows] = self._lookup.io_binding()
            bind_host(found.bind_input, "input_ids", arrays.ids, (1, rows))
            bind_host(found.bind_output, "per_layer", arrays.per_layer, (1, rows, arrays.per_layer.shape[2]))
        return found

    def body(self, slot: int, rows: int) -> onnxruntime.IOBinding:
        found = self._bodies.get((slot, rows))
        if found is None:
            found = self._bodies[(slot, rows)] = self._bind_body(slot, rows)
        return found

    def head(self, first: int, count: int) -> onnxruntime.IOBinding:
        found = self._heads.get((first, count))
        if found is None:
            found = self._heads[(first, count)] = self._bind_head(first, count)
        return found

    def readout(self, first: int, count: int) -> BoundReadout:
        found = self._readouts.get((first, count))
        if found is None:
            found = self._readouts[(first, count)] = self._bind_readout(first, count)
        return found

    def _bind_body(self, slot: int, rows: int) -> onnxruntime.IOBinding:
        arrays, model = self._arrays, self._model
        binding = self._body.io_binding()
        for name, array in self.small_inputs(rows).items():
            bind_host(binding.bind_input, name, array, array.shape)
        for i, pair in enumerate(arrays.cache[slot]):
            for part, cache in zip(("key", "value"), pair, strict=True):
                cache.bind(binding.bind_input, f"past_{part}_{i}", cache.shape)
                # A model that only looks at its target's caches hands none out; one whose layers share a cache hands
                # it out once for each of them (present_key_3, present_key_3.1).
                for name in self._outputs:
                    if name.split(".")[0] == f"present_{part}_{i}":
                        cache.bind(binding.bind_output, name, cache.shape)
        arrays.hidden.bind(binding.bind_output, "hidden", (1, rows * model.fan_out, model.hidden_size))
        if self.feeds and arrays.feed is not None:
            arrays.feed.bind(binding.bind_output, "feed", (1, rows, *arrays.feed.shape[1:]))
        return binding

    def _bind_head(self, first: int, count: int) -> onnxruntime.IOBinding:
        arrays, model = self._arrays, self._model
        binding = self._head.io_binding()
        arrays.hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
        arrays.logits.bind(binding.bind_output, "logits", (count, model.head_rows))
        return binding

    def _bind_readout(self, first: int, count: int) -> BoundReadout:
        arrays, model = self._arrays, self._model
        binding = self._readout.io_binding()
        arrays.logits.bind(binding.bind_input, "logits", (count, model.head_rows))
        bind_host(binding.bind_input, "inverse_temperature", arrays.inverse_temperature, ())
        bind_host(binding.bind_input, "gather_rows", arrays.gather_rows, (count, 1))
        output = HeadOutput(
            argmax=np.zeros(count, np.int64),
            candidate_ids=np.zeros((count, model.candidates), np.int64),
            candidate_logits=np.zeros((count, model.candidates), np.float32),
            logsumexp=np.zeros(count, np.float32),
            gathered=np.zeros((count, 1), np.float32),
        )
        rescored_rows = rescored_logits = None
        if self._screen is not None or self._reads_hidden:
            arrays.hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
        if self._screen is not None:
            rescored_rows = np.zeros((count, self._screen.rescored), np.int64)
            rescored_logits = np.zeros((count, self._screen.rescored), np.float32)
            bind_host(binding.bind_output, "rescored_rows", rescored_rows, rescored_rows.shape)
            bind_host(binding.bind_output, "rescored_logits", rescored_logits, rescored_logits.shape)
        for name in ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"):
            array = getattr(output, name)
            bind_host(binding.bind_output, name, array, array.shape)
        return BoundReadout(binding, output, rescored_rows, rescored_logits)
