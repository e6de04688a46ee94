"""The graphs of a delta cache on ONNX Runtime's CPU provider: the reference of every other executor.

Knows sessions and addresses, neither slots' meaning nor tokens. It is slow: float16 products and attention that is
written out are not what this provider is good at. It is here so that the same graphs that a board compiles can be
tried, compared and tested on any machine.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..bundle import Manifest, Model, Tensor
from ..errors import BundleError, ConfigError, EngineError, first_line
from ..resident import give_pages_back
from .delta_executor import PARTS, Copy2d, HostBuffers, Layout, host_buffers, own_layout, shared_layout
from .ort_memory import bind_host
from .ort_session import make_session
from .ort_settings import OrtSettings
from .protocol import Floats

if TYPE_CHECKING:
    import onnxruntime

_ITEM = {"float16": 2, "float32": 4}
_FLOAT = {"float16": np.float16, "float32": np.float32}
# Left to itself this provider multiplies by 4-bit weights with activations of eight bits: errors of 0.025 where 1 asks
# for float32 ones (0.001, measured).
_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}


class OrtDelta:
    """Implements ``engines.delta_executor.Executor``."""

    def __init__(
        self, directory: Path, manifest: Manifest, role: str, settings: OrtSettings, target: OrtDelta | None = None
    ) -> None:
        """``target``: whose arena a model with ``shares`` writes to, of equal slots.

        Raises ``BundleError`` (a graph that does not load) and ``ConfigError`` (settings beyond the bundle).
        """
        model = manifest.model(role)
        if settings.device != "cpu":
            raise ConfigError("the reference engine runs on the CPU alone: device cpu")
        if not 1 <= settings.capacity <= model.max_context:
            raise ConfigError(
                f"context of {settings.capacity} tokens: the {role} model of this bundle holds 1 to {model.max_context}"
            )
        self._model, self._item = model, _ITEM[model.kv_dtype]
        self._layout, self._arena = self._arena_of(model, settings, target)
        rows, head_rows = max(settings.max_rows, 2), max(settings.max_head_rows, 2)
        self._names = {(line.graph, line.direction, line.name) for line in model.io}
        self._host = host_buffers(
            rows, head_rows, model.hidden_size, model.candidates, model.hidden_input, model.fan_out, self._feeds,
            None if model.embedding is None else model.embedding.columns,
        )
        self._new = np.zeros(self._layout.new_bytes(rows), np.uint8)
        self._logits = np.zeros((head_rows, model.vocab_size), np.float32)
        # The head first: its table is the largest tensor, and peak memory is what sinks a small machine.
        self._head = make_session(directory / model.head, settings, entries=_EXACT)
        self._body = make_session(directory / model.body, settings, entries=_EXACT)
        self._bodies: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._heads: dict[tuple[int, int], onnxruntime.IOBinding] = {}

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def host(self) -> HostBuffers:
        return self._host

    def run_body(self, slot: int, rows: int) -> None:
        binding = self._bodies.get((slot, rows))
        if binding is None:
            binding = self._bodies[(slot, rows)] = self._bind_body(slot, rows)
        _run(self._body, binding)

    def commit(self, copies: Sequence[Copy2d]) -> None:
        for one in copies:
            _lines(self._arena, one.target, one.target_pitch, one)[:] = _lines(
                self._new, one.source, one.source_pitch, one
            )

    def copy(self, copies: Sequence[Copy2d]) -> None:
        for one in copies:
            _lines(self._arena, one.target, one.target_pitch, one)[:] = _lines(
                self._arena, one.source, one.source_pitch, one
            )

    def clear(self, offset: int, size: int) -> None:
        piece = self._arena[offset : offset + size]
        give_pages_back(piece)
        # Whole pages are zeros now; what lies beside them is less than one at each end.
        piece[: mmap.PAGESIZE] = piece[-mmap.PAGESIZE :] = 0

    def run_head(self, first: int, rows: int) -> None:
        binding = self._heads.get((first, rows))
        if binding is None:
            binding = self._heads[(first, rows)] = self._bind_head(first, rows)
        _run(self._head, binding)

    def fetch_hidden(self, rows: int) -> None:
        """Nothing to do: the device's buffers are the host's."""

    def fetch_logits(self, row: int) -> Floats:
        found: Floats = self._logits[row]
        return found

    def close(self) -> None:
        """Frees the sessions and what they are bound to."""
        for name in ("_bodies", "_heads", "_head", "_body", "_arena", "_new", "_logits"):
            self.__dict__.pop(name, None)

    @property
    def _feeds(self) -> bool:
        return ("body", "out", "feed") in self._names

    def _arena_of(
        self, model: Model, settings: OrtSettings, target: OrtDelta | None
    ) -> tuple[Layout, NDArray[np.uint8]]:
        if model.shares is not None:
            if target is None:
                raise ValueError("a model that shares its caches needs the executor that owns them")
            return shared_layout(target._layout, model.shares), target._arena
        layout = own_layout(model.layers, self._item, settings.slots, _capacity(model, settings.capacity))
        # Untouched pages of zeros cost no memory, written ones do.
        paid = settings.cache == "at-load"
        return layout, np.full(layout.arena_bytes, 0, np.uint8) if paid else np.zeros(layout.arena_bytes, np.uint8)

    def _bind_body(self, slot: int, rows: int) -> onnxruntime.IOBinding:
        binding, host, layout = self._body.io_binding(), self._host, self._layout
        inputs: list[tuple[str, NDArray[Any] | None, tuple[int, ...]]] = [
            ("embeddings", host.embeddings, (1, rows, *host.embeddings.shape[1:])),
            ("positions", host.positions, (rows,)),
            ("hidden_in", host.hidden_in, (1, rows, self._model.hidden_input or 0)),
        ]
        for name, array, shape in inputs:
            if array is not None and ("body", "in", name) in self._names:
                bind_host(binding.bind_input, name, array, shape)
        bind_host(binding.bind_output, "hidden", host.hidden, (1, rows * self._model.fan_out, self._model.hidden_size))
        if host.feed is not None:
            bind_host(binding.bind_output, "feed", host.feed, (1, rows, *host.feed.shape[1:]))
        new = layout.new(rows)
        for i, place in enumerate(layout.caches):
            for part, begins in zip(PARTS, new[i], strict=True):
                # A model that only looks at its target's caches hands out nothing.
                if ("body", "in", f"past_{part}_{i}") in self._names:
                    shape = (1, place.kv_heads, layout.capacity, place.head_dim)
                    self._bind(binding.bind_input, f"past_{part}_{i}", self._arena, layout.past(slot, i, part), shape)
                if ("body", "out", f"new_{part}_{i}") in self._names:
                    shape = (1, place.kv_heads, rows, place.head_dim)
                    self._bind(binding.bind_output, f"new_{part}_{i}", self._new, begins, shape)
        return binding

    def _bind_head(self, first: int, rows: int) -> onnxruntime.IOBinding:
        binding, host = self._head.io_binding(), self._host
        bind_host(binding.bind_input, "hidden", host.hidden[first:], (rows, self._model.hidden_size))
        bind_host(binding.bind_input, "inverse_temperature", host.inverse_temperature, (1,))
        bind_host(binding.bind_input, "gather_ids", host.gather_ids, (rows,))
        for name in ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"):
            array = getattr(host, name)
            bind_host(binding.bind_output, name, array, (rows, *array.shape[1:]))
        bind_host(binding.bind_output, "logits", self._logits, (rows, self._model.vocab_size))
        return binding

    def _bind(self, bind: Any, name: str, region: NDArray[np.uint8], offset: int, shape: tuple[int, ...]) -> None:
        bind(name, "cpu", 0, _FLOAT[self._model.kv_dtype], list(shape), region.ctypes.data + offset)


def _run(session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
        raise EngineError(f"onnxruntime: {first_line(problem)}") from problem


def _lines(region: NDArray[np.uint8], offset: int, pitch: int, of: Copy2d) -> NDArray[np.uint8]:
    return as_strided(region[offset:], (of.height, of.width), (pitch, 1))


def _capacity(model: Model, wanted: int) -> int:
    """What the graph's past is long: any number where it is symbolic, else that one and no other."""
    fixed = {_positions(line) for line in model.io if line.graph == "body" and line.name.startswith("past_")}
    sizes = {size for size in fixed if isinstance(size, int)}
    if len(sizes) > 1:
        raise BundleError(f"caches of {', '.join(map(str, sorted(sizes)))} positions in one model")
    return sizes.pop() if sizes else wanted


def _positions(line: Tensor) -> int | str:
    return line.shape[2]
