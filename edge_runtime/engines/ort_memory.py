"""What an ONNX Runtime engine writes to: buffers on its device, bound by address. Knows no graph and no session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle import KvLayer, Model
from ..errors import BundleError, EngineError, first_line
from ..resident import give_pages_back
from .kept_rows import KeptRows
from .ort_cuda import device_copies
from .ort_settings import OrtSettings
from .ort_sight import Sight
from .protocol import Floats


def bind_host(bind: Any, name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    _bind(bind, name, "cpu", array.dtype.type, shape, array.ctypes.data)


def _bind(bind: Any, name: str, device: str, dtype: type[Any], shape: tuple[int, ...], address: int) -> None:
    try:
        bind(name, device, 0, dtype, list(shape), address)
    except RuntimeError as problem:
        raise BundleError(f"a graph is not as the manifest says: onnxruntime: {first_line(problem)}") from problem


class Buffer:
    """Memory on the engine's device, bound by address."""

    def __init__(self, shape: tuple[int, ...], dtype: type[Any], device: str, paid: str = "as-used") -> None:
        self.shape, self._dtype, self._device = shape, dtype, device
        self._host: NDArray[Any] | None = None
        self._value: Any = None
        if device == "cpu":
            self._host = _zeros(shape, dtype, paid)
            self._address = self._host.ctypes.data
        else:
            import onnxruntime

            self._value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, device, 0)
            self._address = self._value.data_ptr()
            # What lies there may be anything, and zero times that is not always zero.
            self.push(np.zeros(shape, dtype))

    def bind(self, bind: Any, name: str, shape: tuple[int, ...], first_row: int = 0) -> None:
        row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * np.dtype(self._dtype).itemsize
        _bind(bind, name, self._device, self._dtype, shape, self._address + first_row * row_bytes)

    def push(self, array: NDArray[Any]) -> None:
        """All of it from the host, to where it is bound already."""
        with _told():
            self._value.update_inplace(array)

    def take_positions(self, other: Buffer, count: int) -> None:
        """The first ``count`` of [1, heads, positions, dim] from a buffer of the same shape."""
        if self._host is not None and other._host is not None:
            self._host[:, :, :count] = other._host[:, :, :count]
            return
        copies = device_copies()
        if copies is not None:
            _, heads, positions, dim = self.shape
            row = dim * np.dtype(self._dtype).itemsize
            copies.lines(other._address, self._address, positions * row, count * row, heads)
            return
        # All of them, through the host: onnxruntime hands out no part of what it owns there.
        with _told():
            self._value.update_inplace(other._value.numpy())

    def move_positions(self, sources: NDArray[np.int64], position: int) -> None:
        """Entries ``sources`` [n] of [1, heads, positions, dim] to ``position`` on; only where the host sees them."""
        assert self._host is not None  # an engine without it runs no trees
        self._host[:, :, position : position + len(sources)] = self._host[:, :, sources]

    def give_back(self) -> None:
        """All of it is zeros from now on. A device's memory stays its own."""
        if self._host is not None:
            give_pages_back(self._host)

    def host(self, rows: int, first: int = 0) -> NDArray[Any]:
        """``rows`` of it from the ``first`` on: a view on the CPU, a copy of these alone from a device."""
        if self._host is not None:
            return self._host[first : first + rows]
        copies = device_copies()
        if copies is None:
            with _told():
                whole: NDArray[Any] = self._value.numpy()
            return whole[first : first + rows]
        part = np.empty((rows, *self.shape[1:]), self._dtype)
        copies.to_host(self._address + first * part[:1].nbytes, part)
        return part


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
        raise EngineError(f"onnxruntime: {first_line(problem)}") from problem


KvPair = tuple[Buffer, Buffer]


class Arrays:
    """Everything that a loaded engine ever writes to. Allocated once; nothing grows afterwards."""

    def __init__(self, model: Model, settings: OrtSettings, target: Arrays | None) -> None:
        """``target``: whose caches a model that ``shares`` writes to."""
        device = settings.device
        spare = _spare_rows(model, settings)
        rows, head_rows = settings.max_rows + spare, settings.max_head_rows + spare
        self.ids = np.zeros((1, rows), np.int64)
        self.seqlens_k = np.zeros(1, np.int32)
        self.total_length = np.zeros(1, np.int32)
        self.position_ids = np.zeros((1, rows), np.int64)
        self.sight = Sight(model, settings, rows)
        self.inverse_temperature = np.ones((), np.float32)
        self.gather_rows = np.zeros((head_rows, 1), np.int64)
        self.hidden = Buffer((rows * model.fan_out, model.hidden_size), np.float32, device)
        self.picked = Buffer((head_rows, model.hidden_size), np.float32, device) if settings.lanes else None
        """Hidden rows of several lanes that are read out at one go."""
        self.logits = Buffer((head_rows, model.head_rows), np.float32, device)
        self.hidden_in: Floats | None = None
        self.feed: Buffer | None = None
        self.per_layer: Floats | None = None
        if model.lookup is not None:
            self.per_layer = np.zeros((1, rows, model.lookup.width), np.float32)
        if model.hidden_input is not None:
            self.hidden_in = np.zeros((1, rows, model.hidden_input), np.float32)
            self.feed = Buffer((rows, model.hidden_input), np.float32, device)
        self.twins = _twins(self._small(), device)
        """Where the device reads what the host writes before a run, at addresses that stay; none on a CPU."""
        self.carried = {
            one.name: Buffer((rows, model.hidden_size), np.float32, device)
            for one in model.io
            if (one.graph, one.direction) == ("stem", "out") and not one.name.startswith(("hidden", "present_"))
        }
        """What the first layers hand to the others, where they are graphs apart."""
        kept = (settings.slots, settings.capacity, model.hidden_size) if settings.keeps_hidden else None
        self.kept = KeptRows(kept, settings.cache)
        self.cache = _own_cache(model, settings) if model.shares is None else _shared_cache(model.shares, target)

    def _small(self) -> dict[str, NDArray[Any] | None]:
        """By the inputs' names. Not the total length, which the attention reads on the host."""
        return {
            "input_ids": self.ids,
            "seqlens_k": self.seqlens_k,
            "position_ids": self.position_ids,
            "hidden_in": self.hidden_in,
            "per_layer": self.per_layer,
            "inverse_temperature": self.inverse_temperature,
            "gather_rows": self.gather_rows,
        }

    def push(self, name: str) -> None:
        """What the host has written of an input goes to its twin, if it has one."""
        twin, array = self.twins.get(name), self._small().get(name)
        if twin is not None and array is not None:
            twin.push(array)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        for held, copies in zip(self.cache[source], self.cache[target], strict=True):
            for cache, copy in zip(held, copies, strict=True):
                copy.take_positions(cache, count)
        self.kept.copy_prefix(source, target, count)

    def forget(self, slot: int) -> None:
        for held in self.cache[slot]:
            for cache in held:
                cache.give_back()
        self.kept.forget(slot)

    def keep_path(self, slot: int, position: int, rows: NDArray[np.int64]) -> None:
        sources = position + rows
        for held in self.cache[slot]:
            for cache in held:
                cache.move_positions(sources, position)
        self.kept.keep_path(slot, position, rows)


def _twins(small: dict[str, NDArray[Any] | None], device: str) -> dict[str, Buffer]:
    if device == "cpu":
        return {}
    return {name: Buffer(one.shape, one.dtype.type, device) for name, one in small.items() if one is not None}


def _spare_rows(model: Model, settings: OrtSettings) -> int:
    """What the deterministic mode pads with: one row, or one for each lane."""
    if not settings.deterministic:
        return 0
    return model.lanes.count if settings.lanes and model.lanes else 1


def _zeros(shape: tuple[int, ...], dtype: type[Any], paid: str) -> NDArray[Any]:
    # Untouched pages of zeros cost no memory, written ones do.
    return np.zeros(shape, dtype) if paid == "as-used" else np.full(shape, 0, dtype)


def _own_cache(model: Model, settings: OrtSettings) -> list[list[KvPair]]:
    # One spare position for the padded row of the deterministic mode.
    capacity, device, paid = settings.capacity + 1, settings.device, settings.cache
    return [
        [cache_pair(kv, capacity, model.kv_dtype, device, paid) for kv in model.layers] for _ in range(settings.slots)
    ]


def cache_pair(kv: KvLayer, capacity: int, kv_dtype: str, device: str, paid: str = "as-used") -> KvPair:
    """Keys and values of one layer and one slot."""
    dtype, shape = np.float32 if kv_dtype == "float32" else np.float16, (1, kv.kv_heads, capacity, kv.head_dim)
    return Buffer(shape, dtype, device, paid), Buffer(shape, dtype, device, paid)


def _shared_cache(layers: tuple[int, ...], target: Arrays | None) -> list[list[KvPair]]:
    if target is None:
        raise ValueError("a model that shares its caches needs the engine that owns them")
    return [[slot[layer] for layer in layers] for slot in target.cache]
