"""The ONNX Runtime engine. Knows bound buffers and sessions, neither tokens' meaning nor sampling.

Three sessions per model: body (ids -> hidden rows), head (hidden rows -> logits), readout (logits -> a few numbers).
They hand each other buffers by address, so cutting the graph costs a few microseconds and no copy. Every shape T has
one cached binding per slot; a step writes three small host arrays and runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..bundle import Manifest, Model
from ..errors import BundleError, ConfigError, EngineError
from .protocol import EngineInfo, Floats, HeadOutput, HeadRequest, StepInput, StepOutput

if TYPE_CHECKING:
    import onnxruntime

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True)
class OrtSettings:
    capacity: int = 2048
    """Tokens per slot, at most the bundle's ``max_context``."""
    slots: int = 1
    cache: Literal["as-used", "at-load"] = "as-used"
    """When the memory of the caches is paid for: as they fill, or at once, so that nothing grows afterwards."""
    max_rows: int = 64
    """Rows of a prefill chunk."""
    max_head_rows: int = 16
    """Rows that the logits buffer holds: num_draft_tokens + 1 at most."""
    threads: int = 0
    """Intra-op threads, 0 = one per physical core as onnxruntime counts them."""
    deterministic: bool = False
    """Never run a lone row: results then do not depend on how many rows run together (ARCHITECTURE.md)."""
    head: Literal["screened", "full"] = "screened"
    """Screened: the coarse table first, where the bundle has one (see ``bundle.Screen``)."""
    device: Literal["cpu", "cuda"] = "cpu"
    gpu_memory_bytes: int | None = None
    """Cap of the CUDA arena."""


class OrtEngine:
    """Implements ``engines.protocol.Engine``."""

    def __init__(self, directory: Path, manifest: Manifest, role: str, settings: OrtSettings) -> None:
        """Raises ``BundleError`` (a graph that does not load) and ``ConfigError`` (settings beyond the bundle)."""
        model = manifest.model(role)
        if not 1 <= settings.capacity <= model.max_context:
            raise ConfigError(
                f"context of {settings.capacity} tokens: the {role} model of this bundle holds 1 to {model.max_context}"
            )
        if settings.threads > (most := 4 * (os.cpu_count() or 1)):
            raise ConfigError(f"{settings.threads} threads: at most {most} on this machine")
        _refuse_missing_provider(settings.device)
        if settings.device == "cuda" and model.kv_dtype != "float16":
            # CUDA has no float32 attention over a cache: the CPU would run it, and copy the cache every step.
            raise ConfigError(
                f"device 'cuda' needs a bundle with half: true or precision fp16, not a {role} in float32"
            )
        self._model, self._settings = model, settings
        self._token_ids = _read_token_ids(directory, model)
        min_rows = 2 if settings.deterministic else 1
        self._info = EngineInfo(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            capacity=settings.capacity,
            slots=settings.slots,
            max_rows=settings.max_rows,
            candidates=model.candidates,
            min_rows=min_rows,
            token_ids=self._token_ids,
        )
        shared = {} if settings.device == "cuda" else _map_table(directory, model)
        # The head first: its table is the largest mapping, and peak memory is what sinks an 8 GB board.
        self._screen = model.screen if settings.head == "screened" else None
        self._head = _session(directory / (self._screen.head if self._screen else model.head), settings)
        self._body = _session(directory / model.body, settings, shared)
        readout = self._screen.readout if self._screen else model.readout
        self._readout = _session(directory / readout, settings, shared if self._screen else {})
        self._shared = shared
        self._arrays = _Arrays(model, settings)
        self._cuda = settings.device == "cuda"
        self._body_bindings: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._head_bindings: dict[tuple[int, int], onnxruntime.IOBinding] = {}
        self._readout_bindings: dict[tuple[int, int], _Readout] = {}
        self._last_readout: _Readout | None = None
        self._rows = 0
        self._first_logits_row = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    def forward(self, step: StepInput) -> StepOutput:
        count = len(step.tokens)
        info = self._info
        if not (0 <= step.slot < info.slots and 1 <= count <= info.max_rows):
            raise ValueError(f"slot {step.slot} of {info.slots}, {count} rows of at most {info.max_rows}")
        if not 0 <= step.position <= info.capacity - count:
            raise ValueError(f"tokens [{step.position}, {step.position + count}) leave a slot of {info.capacity}")
        rows = max(count, info.min_rows)
        arrays = self._arrays
        # A padded row writes garbage K/V behind the last token, where the next forward writes anyway.
        arrays.ids[0, :count] = step.tokens
        arrays.ids[0, count:rows] = 0
        arrays.seqlens_k[0] = step.position + rows - 1
        arrays.total_length[0] = step.position + rows
        binding = self._body_bindings.get((step.slot, rows))
        if binding is None:
            binding = self._body_bindings[(step.slot, rows)] = self._bind_body(step.slot, rows)
        small = {
            "input_ids": arrays.ids[:, :rows],
            "seqlens_k": arrays.seqlens_k,
            "total_sequence_length": arrays.total_length,
        }
        self._run(self._body, binding, small if self._cuda else None)
        self._rows = count
        head = None if step.head is None else self.head(step.head)
        return StepOutput(head, arrays.hidden.host(rows)[:count])

    def head(self, request: HeadRequest) -> HeadOutput:
        first, stop, pad = request.first, request.stop, 0
        if not 0 <= first < stop <= self._rows or stop - first > self._settings.max_head_rows:
            raise ValueError(f"head rows [{first}, {stop}) of {self._rows}")
        if stop - first < self._info.min_rows:
            # The deterministic mode pads a lone head row with a neighbour.
            first, stop, pad = (first - 1, stop, 1) if first > 0 else (first, stop + 1, 0)  # row 1 is the padded one
        count = stop - first
        binding = self._head_bindings.get((first, count))
        if binding is None:
            binding = self._head_bindings[(first, count)] = self._bind_head(first, count)
        self._run(self._head, binding, None)
        self._first_logits_row = pad
        readout = self._readout_bindings.get((first, count))
        if readout is None:
            readout = self._readout_bindings[(first, count)] = self._bind_readout(first, count)
        arrays = self._arrays
        arrays.inverse_temperature[...] = request.inverse_temperature
        if request.gather_ids is not None:
            arrays.gather_rows[pad : pad + len(request.gather_ids), 0] = self._head_rows(request.gather_ids)
        small = {"inverse_temperature": arrays.inverse_temperature, "gather_rows": arrays.gather_rows[:count]}
        self._run(self._readout, readout.binding, small if self._cuda else None)
        self._last_readout = readout
        return _cut(readout.output, pad, request.stop - request.first, request.gather_ids is not None)

    def logits(self, row: int) -> Floats:
        index = self._first_logits_row + row
        logits: Floats = self._arrays.logits.host(index + 1)[index]
        readout = self._last_readout
        if readout is not None and readout.rescored_rows is not None and readout.rescored_logits is not None:
            logits = logits.copy()
            logits[readout.rescored_rows[index]] = readout.rescored_logits[index]
        return logits

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        info = self._info
        if not (0 <= source < info.slots and 0 <= target < info.slots and 0 <= count <= info.capacity):
            raise ValueError(f"{count} entries of slot {source} into slot {target}: {info.slots} of {info.capacity}")
        if source == target or count == 0:
            return
        for held, copies in zip(self._arrays.cache[source], self._arrays.cache[target], strict=True):
            for cache, copy in zip(held, copies, strict=True):
                copy.take_positions(cache, count)

    def hidden_rows(self, slot: int) -> Floats:
        raise ValueError("this engine keeps no hidden rows")

    def close(self) -> None:
        """Free the sessions; closing twice is harmless, any other call afterwards an error."""
        self._body_bindings.clear()
        self._head_bindings.clear()
        self._readout_bindings.clear()
        for name in ("_body", "_head", "_readout", "_shared", "_arrays"):
            self.__dict__.pop(name, None)

    def _run(
        self, session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding, small: Mapping[str, Any] | None
    ) -> None:
        try:
            if small is not None:
                # onnxruntime copies a host input to the device when it is bound, not when it runs.
                for name, array in small.items():
                    binding.bind_cpu_input(name, array)
            session.run_with_iobinding(binding)
        except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
            raise EngineError(f"onnxruntime: {str(problem).splitlines()[0]}") from problem

    def _head_rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Token ids as rows of the head; a token that a reduced head lacks raises ``ValueError``."""
        if self._token_ids is None:
            return token_ids
        rows = np.searchsorted(self._token_ids, token_ids)
        if not np.array_equal(self._token_ids[np.minimum(rows, len(self._token_ids) - 1)], token_ids):
            raise ValueError("a gathered id is not in the reduced head")
        return rows.astype(np.int64)

    def _bind_body(self, slot: int, rows: int) -> onnxruntime.IOBinding:
        arrays, model = self._arrays, self._model
        binding = self._body.io_binding()
        _bind_host(binding.bind_input, "input_ids", arrays.ids, (1, rows))
        _bind_host(binding.bind_input, "seqlens_k", arrays.seqlens_k, (1,))
        _bind_host(binding.bind_input, "total_sequence_length", arrays.total_length, (1,))
        for i in range(len(model.layers)):
            for part, cache in zip(("key", "value"), arrays.cache[slot][i], strict=True):
                cache.bind(binding.bind_input, f"past_{part}_{i}", cache.shape)
                cache.bind(binding.bind_output, f"present_{part}_{i}", cache.shape)
        arrays.hidden.bind(binding.bind_output, "hidden", (1, rows, model.hidden_size))
        return binding

    def _bind_head(self, first: int, count: int) -> onnxruntime.IOBinding:
        arrays, model = self._arrays, self._model
        binding = self._head.io_binding()
        arrays.hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
        arrays.logits.bind(binding.bind_output, "logits", (count, model.vocab_size))
        return binding

    def _bind_readout(self, first: int, count: int) -> _Readout:
        arrays, model = self._arrays, self._model
        binding = self._readout.io_binding()
        arrays.logits.bind(binding.bind_input, "logits", (count, model.vocab_size))
        _bind_host(binding.bind_input, "inverse_temperature", arrays.inverse_temperature, ())
        _bind_host(binding.bind_input, "gather_rows", arrays.gather_rows, (count, 1))
        output = HeadOutput(
            argmax=np.zeros(count, np.int64),
            candidate_ids=np.zeros((count, model.candidates), np.int64),
            candidate_logits=np.zeros((count, model.candidates), np.float32),
            logsumexp=np.zeros(count, np.float32),
            gathered=np.zeros((count, 1), np.float32),
        )
        rescored_rows = rescored_logits = None
        if self._screen is not None:
            arrays.hidden.bind(binding.bind_input, "hidden", (count, model.hidden_size), first_row=first)
            rescored_rows = np.zeros((count, self._screen.rescored), np.int64)
            rescored_logits = np.zeros((count, self._screen.rescored), np.float32)
            _bind_host(binding.bind_output, "rescored_rows", rescored_rows, rescored_rows.shape)
            _bind_host(binding.bind_output, "rescored_logits", rescored_logits, rescored_logits.shape)
        for name in ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"):
            array = getattr(output, name)
            _bind_host(binding.bind_output, name, array, array.shape)
        return _Readout(binding, output, rescored_rows, rescored_logits)


@dataclass(frozen=True, slots=True)
class _Readout:
    """A bound readout and the host arrays that it writes."""

    binding: onnxruntime.IOBinding
    output: HeadOutput
    rescored_rows: NDArray[np.int64] | None
    rescored_logits: Floats | None


def _cut(output: HeadOutput, first: int, count: int, gathered: bool) -> HeadOutput:
    rows = slice(first, first + count)
    return HeadOutput(
        output.argmax[rows],
        output.candidate_ids[rows],
        output.candidate_logits[rows],
        output.logsumexp[rows],
        output.gathered[rows, 0] if gathered and output.gathered is not None else None,
    )


def _bind_host(bind: Any, name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    bind(name, "cpu", 0, array.dtype.type, list(shape), array.ctypes.data)


class _Buffer:
    """Memory on the engine's device, bound by address."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Any], device: str, paid: str = "as-used") -> None:
        self.shape, self._dtype, self._device = shape, dtype, device
        self._host: NDArray[Any] | None = None
        self._value: Any = None
        if device == "cpu":
            # Untouched pages of zeros cost no memory, written ones do.
            self._host = np.zeros(shape, dtype) if paid == "as-used" else np.full(shape, 0, dtype)
            self._address = self._host.ctypes.data
        else:
            import onnxruntime

            self._value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, device, 0)
            self._address = self._value.data_ptr()

    def bind(self, bind: Any, name: str, shape: tuple[int, ...], first_row: int = 0) -> None:
        row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * np.dtype(self._dtype).itemsize
        bind(name, self._device, 0, self._dtype, list(shape), self._address + first_row * row_bytes)

    def take_positions(self, other: _Buffer, count: int) -> None:
        """The first ``count`` of [1, heads, positions, dim] from a buffer of the same shape.

        On a device all of them, through the host: onnxruntime hands out no part of what it owns there.
        """
        if self._host is not None and other._host is not None:
            self._host[:, :, :count] = other._host[:, :, :count]
            return
        try:
            self._value.update_inplace(other._value.numpy())
        except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
            raise EngineError(f"onnxruntime: {str(problem).splitlines()[0]}") from problem

    def host(self, rows: int) -> NDArray[Any]:
        """The first rows: a view on the CPU, a copy from a device."""
        if self._host is not None:
            return self._host[:rows]
        copied: NDArray[Any] = self._value.numpy()
        return copied[:rows]


class _Arrays:
    """Everything that a loaded engine ever writes to. Allocated once; nothing grows afterwards."""

    def __init__(self, model: Model, settings: OrtSettings) -> None:
        device = settings.device
        # One spare position for the padded row of the deterministic mode.
        capacity = settings.capacity + 1
        kv_dtype = np.float32 if model.kv_dtype == "float32" else np.float16
        rows = max(settings.max_rows, 2)
        self.ids = np.zeros((1, rows), np.int64)
        self.seqlens_k = np.zeros(1, np.int32)
        self.total_length = np.zeros(1, np.int32)
        self.inverse_temperature = np.ones((), np.float32)
        self.gather_rows = np.zeros((settings.max_head_rows, 1), np.int64)
        self.hidden = _Buffer((rows, model.hidden_size), np.float32, device)
        self.logits = _Buffer((settings.max_head_rows, model.vocab_size), np.float32, device)
        self.cache = [
            [
                tuple(_Buffer((1, kv.kv_heads, capacity, kv.head_dim), kv_dtype, device, settings.cache) for _ in "kv")
                for kv in model.layers
            ]
            for _ in range(settings.slots)
        ]


def _read_token_ids(directory: Path, model: Model) -> NDArray[np.int64] | None:
    if model.token_ids is None:
        return None
    ids = np.fromfile(directory / model.token_ids, dtype="<i8")
    if len(ids) != model.vocab_size or np.any(np.diff(ids) <= 0):
        raise BundleError(f"{model.token_ids}: not {model.vocab_size} rising token ids")
    return ids


def _refuse_missing_provider(device: str) -> None:
    import onnxruntime

    if _PROVIDERS[device] not in onnxruntime.get_available_providers():
        # Never fall back in silence: a model that was meant for the GPU must not crawl on the CPU.
        raise ConfigError(f"device {device!r}: this onnxruntime has no {_PROVIDERS[device]}")


def _map_table(directory: Path, model: Model) -> dict[str, onnxruntime.OrtValue]:
    """The embedding, mapped once: left to themselves, two sessions map it twice, and both count."""
    import onnxruntime

    values = {}
    for tensor in model.table:
        try:
            mapped = np.memmap(directory / tensor.file, tensor.dtype, "r", tensor.offset, tensor.shape)
        except (OSError, ValueError, OverflowError) as problem:
            raise BundleError(f"{directory / tensor.file}: {tensor.name} cannot be mapped: {problem}") from None
        values[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(mapped)
    return values


def _session(
    path: Path, settings: OrtSettings, shared: Mapping[str, onnxruntime.OrtValue] | None = None
) -> onnxruntime.InferenceSession:
    import onnxruntime

    provider = _PROVIDERS[settings.device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Each session has a pool of threads, and one that still spins takes its core from the next session: without this
    # two threads on two cores are slower than one (measured: 33 ms a step against 14).
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for name, value in (shared or {}).items():
        options.add_initializer(name, value)
    provider_options: dict[str, Any] = {}
    if settings.device == "cuda":
        provider_options["arena_extend_strategy"] = "kSameAsRequested"
        if settings.gpu_memory_bytes is not None:
            provider_options["gpu_mem_limit"] = settings.gpu_memory_bytes
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[(provider, provider_options)])
    except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
        raise BundleError(f"{path} does not load: {str(problem).splitlines()[0]}") from problem
