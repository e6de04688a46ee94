"""Where each buffer of a model lies, on the device and in pinned memory of the host. Knows sizes and addresses alone.

All of a model's buffers are one allocation on the device, its caches first: on a board whose memory is in pieces the
largest must come first, and once. What the host writes lies in the same order there and here, so that a body's inputs
are one copy, a head's are one, and what a head says is one.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bundle import Model
from .cuda import Cuda
from .delta_executor import HostBuffers, Int32s, Layout, own_layout, shared_layout
from .engine_record import PlanRecord
from .engine_shapes import capacity_of
from .protocol import Floats

ALIGNED = 256
FLOAT = INT = 4
_ITEM = {"float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one model's runs."""

    max_rows: int
    max_head_rows: int
    hidden_size: int
    embedded: int
    """Columns of the body's input."""
    vocab_size: int
    candidates: int
    hidden_input: int | None
    fan_out: int
    feeds: bool
    arena: int
    """Bytes of the caches; 0 where the target's are used."""
    new: int
    """Bytes of the new rows of the largest run."""


@dataclass(frozen=True, slots=True)
class Region:
    offset: int
    size: int

    @property
    def stop(self) -> int:
        return self.offset + self.size


class Places:
    """Name -> region of one block of memory, in order, each aligned. Pure."""

    def __init__(self, sizes: Sequence[tuple[str, int]]) -> None:
        self._regions: dict[str, Region] = {}
        offset = 0
        for name, size in sizes:
            if size:
                self._regions[name] = Region(offset, size)
                offset += -(-size // ALIGNED) * ALIGNED
        self.size = offset

    def __getitem__(self, name: str) -> Region:
        return self._regions[name]

    def __contains__(self, name: str) -> bool:
        return name in self._regions


def exchanged(of: Sizes) -> list[tuple[str, int]]:
    """What host and device have both: the body's inputs, the head's, what the head says, and hidden rows."""
    head_rows = of.max_head_rows
    return [
        ("positions", of.max_rows * INT),
        ("embeddings", of.max_rows * of.embedded * FLOAT),
        ("hidden_in", of.max_rows * (of.hidden_input or 0) * FLOAT),
        ("inverse_temperature", FLOAT),
        ("gather_ids", head_rows * INT),
        ("argmax", head_rows * INT),
        ("candidate_ids", head_rows * of.candidates * INT),
        ("candidate_logits", head_rows * of.candidates * FLOAT),
        ("logsumexp", head_rows * FLOAT),
        ("gathered", head_rows * FLOAT),
        ("hidden", of.max_rows * of.fan_out * of.hidden_size * FLOAT),
        ("feed", of.max_rows * (of.hidden_input or 0) * FLOAT if of.feeds else 0),
    ]


def device_places(of: Sizes) -> Places:
    """The caches, what the host never sees whole, and then what is exchanged."""
    logits = of.max_head_rows * of.vocab_size * FLOAT
    head_input = of.max_head_rows * of.hidden_size * FLOAT
    own = [("arena", of.arena), ("logits", logits), ("new", of.new), ("head_input", head_input)]
    return Places([*own, *exchanged(of)])


def host_places(of: Sizes) -> Places:
    return Places([*exchanged(of), ("logits_row", of.vocab_size * FLOAT)])


def layout_of(model: Model, body: PlanRecord, slots: int, context: int, target: Layout | None) -> Layout:
    """The capacity is the plan's, ``context`` where it has no past. Raises ``ValueError`` without caches to share."""
    if model.shares is not None:
        if target is None:
            raise ValueError("a model that shares its caches needs the executor that owns them")
        return shared_layout(target, model.shares)
    return own_layout(model.layers, _ITEM[model.kv_dtype], slots, capacity_of(body.profiles, body.io) or context)


def sizes_of(model: Model, body: PlanRecord, head: PlanRecord, layout: Layout) -> Sizes:
    shapes = {tensor.name: tensor.shape for tensor in body.io}
    max_rows = max(profile.most_rows for profile in body.profiles)
    writes = any(name.startswith("new_") for name in shapes)
    return Sizes(
        max_rows=max_rows,
        max_head_rows=max(profile.most_rows for profile in head.profiles),
        hidden_size=model.hidden_size,
        embedded=shapes.get("embeddings", (model.hidden_size,))[-1],  # parallel heads embed nothing
        vocab_size=model.vocab_size,
        candidates=model.candidates,
        hidden_input=model.hidden_input,
        fan_out=model.fan_out,
        feeds="feed" in shapes,
        arena=layout.arena_bytes if layout.owned else 0,
        new=layout.new_bytes(max_rows) if writes else 0,
    )


class PinnedBuffers:
    """Arrays over one block of pinned memory, which goes back when the last of them does: an array that somebody still
    holds when the engine is closed must not point at nothing."""

    def __init__(self, cuda: Cuda, of: Sizes) -> None:
        """Raises ``DeviceError``."""
        self._places = host_places(of)
        self._address = cuda.allocate_pinned(self._places.size)
        block = (ctypes.c_uint8 * self._places.size).from_address(self._address)
        # Not at exit: the driver is gone by then, and the memory with it.
        weakref.finalize(block, cuda.free_pinned, self._address).atexit = False
        self._view = memoryview(block)
        ctypes.memset(self._address, 0, self._places.size)
        fed, rows, head_rows = of.hidden_input, of.max_rows, of.max_head_rows
        self.host = HostBuffers(
            embeddings=self._floats("embeddings", rows, of.embedded),
            positions=self._ints("positions", rows),
            hidden_in=None if fed is None else self._floats("hidden_in", rows, fed),
            inverse_temperature=self._floats("inverse_temperature", 1),
            gather_ids=self._ints("gather_ids", head_rows),
            hidden=self._floats("hidden", rows * of.fan_out, of.hidden_size),
            feed=self._floats("feed", rows, fed) if of.feeds and fed is not None else None,
            argmax=self._ints("argmax", head_rows),
            candidate_ids=self._ints("candidate_ids", head_rows, of.candidates),
            candidate_logits=self._floats("candidate_logits", head_rows, of.candidates),
            logsumexp=self._floats("logsumexp", head_rows),
            gathered=self._floats("gathered", head_rows),
        )
        self.host.inverse_temperature[0] = 1.0
        self.logits_row: Floats = self._floats("logits_row", of.vocab_size)

    def at(self, name: str) -> int:
        """Address of a region."""
        return self._address + self._places[name].offset

    def _floats(self, name: str, *shape: int) -> Floats:
        found: Floats = np.frombuffer(self._view, np.float32, math.prod(shape), self._places[name].offset)
        return found.reshape(shape)

    def _ints(self, name: str, *shape: int) -> Int32s:
        found: Int32s = np.frombuffer(self._view, np.int32, math.prod(shape), self._places[name].offset)
        return found.reshape(shape)
