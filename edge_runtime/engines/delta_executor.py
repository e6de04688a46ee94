"""What runs the graphs of a delta cache on one device. Knows bytes and buffers, neither slots' meaning nor tokens.

A graph of this kind reads a *past* of fixed size and hands out the new rows alone (the delta); what makes a cache of it
is a 2-D copy afterwards. All caches of a model lie in one arena, laid out so that this copy is one call for all layers:

    arena   [slots][caches][key, value][kv_heads, capacity, head_dim]
    new     [caches][key, value][kv_heads, rows, head_dim]        rows as they run, packed anew for every number of them

Everything that can be reckoned is reckoned here, in bytes, by ``Layout``. So an ``Executor`` is short: it runs a body
and a head at addresses that it is told, and copies. ``engines.delta`` says when, and has checked every argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..bundle import KvLayer
from .protocol import Floats

Int32s = NDArray[np.int32]
Part = Literal["key", "value"]
PARTS: tuple[Part, Part] = ("key", "value")

_ALIGNED = 256
"""Bytes: where TensorRT wants an input or an output to begin."""


@dataclass(frozen=True, slots=True)
class Copy2d:
    """``height`` lines of ``width`` bytes; offsets count from the start of the region that is read or written."""

    source: int
    source_pitch: int
    target: int
    target_pitch: int
    width: int
    height: int

    def moved(self, source: int, target: int) -> Copy2d:
        """The same, so many bytes further on."""
        return Copy2d(
            self.source + source, self.source_pitch, self.target + target, self.target_pitch, self.width, self.height
        )


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where the cache of one layer lies in each slot."""

    kv_heads: int
    head_dim: int
    key: int
    """Bytes from the start of the slot to [kv_heads, capacity, head_dim] of the keys."""
    value: int

    def begin(self, part: Part) -> int:
        return self.key if part == "key" else self.value


@dataclass(frozen=True, slots=True)
class Layout:
    """An arena of caches, and of the rows that one forward makes. Pure; made by ``own_layout`` or ``shared_layout``."""

    slots: int
    capacity: int
    """Positions that a slot holds: the dimension of the graphs' past."""
    item: int
    """Bytes of one value: 2, or 4 in a float32 export."""
    slot_bytes: int
    caches: tuple[CachePlace, ...]
    """One for each ``past_key_i`` of the graph."""
    owned: bool = True
    """Whether the arena is this model's own; else it is the target's, which clears and copies prefixes itself."""

    @property
    def arena_bytes(self) -> int:
        return self.slots * self.slot_bytes

    def past(self, slot: int, cache: int, part: Part) -> int:
        """Bytes into the arena: the address of ``past_<part>_<cache>`` [1, kv_heads, capacity, head_dim]."""
        return slot * self.slot_bytes + self.caches[cache].begin(part)

    def new(self, rows: int) -> tuple[tuple[int, int], ...]:
        """[caches] bytes into the region of new rows, where ``new_key_i`` and ``new_value_i`` of so many rows begin."""
        places, offset = [(0, 0)] * len(self.caches), 0
        for cache in self._order():
            size = _rounded(self.caches[cache].kv_heads * rows * self.caches[cache].head_dim * self.item)
            places[cache] = (offset, offset + size)
            offset += 2 * size
        return tuple(places)

    def new_bytes(self, rows: int) -> int:
        return sum(2 * _rounded(place.kv_heads * rows * place.head_dim * self.item) for place in self.caches)

    def commit(self, rows: int, count: int) -> tuple[Copy2d, ...]:
        """The first ``count`` of ``rows`` new rows to the positions from 0 on of slot 0; ``placed`` moves it on."""
        lines, begins = [], self.new(rows)
        for cache in self._order():
            place = self.caches[cache]
            row = place.head_dim * self.item
            for part, source in zip(PARTS, begins[cache], strict=True):
                lines.append(
                    Copy2d(source, rows * row, place.begin(part), self.capacity * row, count * row, place.kv_heads)
                )
        return tuple(_merged(lines))

    def placed(self, copies: Sequence[Copy2d], slot: int, position: int) -> tuple[Copy2d, ...]:
        """Copies of ``commit`` where they belong. The pitch of a target says how long a row of it is."""
        first = slot * self.slot_bytes
        return tuple(one.moved(0, first + position * (one.target_pitch // self.capacity)) for one in copies)

    def moved_rows(self, source: tuple[int, int], target: tuple[int, int], count: int) -> tuple[Copy2d, ...]:
        """``count`` entries within the arena, from (slot, position) to (slot, position), of every cache."""
        lines = []
        for cache in self._order():
            place = self.caches[cache]
            row = place.head_dim * self.item
            for part in PARTS:
                begins = [slot * self.slot_bytes + place.begin(part) + at * row for slot, at in (source, target)]
                pitch = self.capacity * row
                lines.append(Copy2d(begins[0], pitch, begins[1], pitch, count * row, place.kv_heads))
        return tuple(_merged(lines))

    def _order(self) -> list[int]:
        """Caches as they lie in the arena."""
        return sorted(range(len(self.caches)), key=lambda cache: self.caches[cache].key)


def own_layout(layers: Sequence[KvLayer], item: int, slots: int, capacity: int) -> Layout:
    """Of a model with caches of its own. Caches of one shape lie beside each other, so that copies of them merge."""
    order = sorted(range(len(layers)), key=lambda i: (layers[i].kv_heads, layers[i].head_dim))
    places: dict[int, CachePlace] = {}
    offset = 0
    for i in order:
        heads, dim = layers[i].kv_heads, layers[i].head_dim
        size = _rounded(heads * capacity * dim * item)
        places[i] = CachePlace(heads, dim, offset, offset + size)
        offset += 2 * size
    return Layout(slots, capacity, item, offset, tuple(places[i] for i in range(len(layers))))


def shared_layout(target: Layout, shares: Sequence[int]) -> Layout:
    """Of a model that writes to the target's caches (``bundle.Model.shares``), in the target's arena."""
    caches = tuple(target.caches[layer] for layer in shares)
    return Layout(target.slots, target.capacity, target.item, target.slot_bytes, caches, owned=False)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _merged(copies: Sequence[Copy2d]) -> Iterator[Copy2d]:
    """Neighbours of one shape as one copy: for most models a commit is a single call."""
    last: Copy2d | None = None
    for one in copies:
        if last is not None and _goes_on(last, one):
            height = last.height + one.height
            last = Copy2d(last.source, last.source_pitch, last.target, last.target_pitch, last.width, height)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _goes_on(last: Copy2d, one: Copy2d) -> bool:
    alike = (last.source_pitch, last.target_pitch, last.width) == (one.source_pitch, one.target_pitch, one.width)
    ends = (last.source + last.height * last.source_pitch, last.target + last.height * last.target_pitch)
    return alike and ends == (one.source, one.target)


@dataclass(frozen=True, slots=True)
class HostBuffers:
    """What the host writes before a run and reads after it: made once by the executor, pinned where that helps.

    The first n rows are those of a run of n. They stay the same arrays for the life of the executor.
    """

    embeddings: Floats
    """In: [max_rows, columns] the tokens' rows of the table, scaled; hidden_size columns, but for some drafters."""
    positions: Int32s
    """In: [max_rows] rising by one; the first of a run is the number of entries before it."""
    hidden_in: Floats | None
    """In: [max_rows, hidden_input], where the body takes them."""
    inverse_temperature: Floats
    """In: [1]"""
    gather_ids: Int32s
    """In: [max_head_rows] rows of the head, all valid whether they are wanted or not."""
    hidden: Floats
    """Out: [max_rows * fan_out, hidden_size], by ``fetch_hidden``."""
    feed: Floats | None
    """Out: [max_rows, hidden_input], by ``fetch_hidden``, where the body says it."""
    argmax: Int32s
    """Out: [max_head_rows], by ``run_head``, as all that follows."""
    candidate_ids: Int32s
    """Out: [max_head_rows, C] rows of the head, by falling logit"""
    candidate_logits: Floats
    logsumexp: Floats
    """Out: [max_head_rows]"""
    gathered: Floats
    """Out: [max_head_rows]"""


def host_buffers(
    max_rows: int,
    max_head_rows: int,
    hidden_size: int,
    candidates: int,
    hidden_input: int | None = None,
    fan_out: int = 1,
    feeds: bool = False,
    columns: int | None = None,
) -> HostBuffers:
    """In plain memory; an executor that pins its own takes these shapes and types. ``columns``: of the embedding, where
    they are not ``hidden_size``.

    An executor binds of these what its body takes (``bundle.Model.io``): parallel heads embed nothing.
    """

    def floats(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    def ints(*shape: int) -> Int32s:
        return np.zeros(shape, np.int32)

    return HostBuffers(
        embeddings=floats(max_rows, columns or hidden_size),
        positions=ints(max_rows),
        hidden_in=None if hidden_input is None else floats(max_rows, hidden_input),
        inverse_temperature=np.ones(1, np.float32),
        gather_ids=ints(max_head_rows),
        hidden=floats(max_rows * fan_out, hidden_size),
        feed=floats(max_rows, hidden_input) if feeds and hidden_input is not None else None,
        argmax=ints(max_head_rows),
        candidate_ids=ints(max_head_rows, candidates),
        candidate_logits=floats(max_head_rows, candidates),
        logsumexp=floats(max_head_rows),
        gathered=floats(max_head_rows),
    )


class Executor(Protocol):
    """One model's body and head on one device, with an arena of zeros at the start.

    Not thread-safe. Calls take effect in order, whether or not they return before the device is done; what is said to
    be in ``host`` after a call is there when it returns. ``EngineError`` where the device fails, from any call that
    comes after; arguments are in range.
    """

    @property
    def layout(self) -> Layout:
        """Of the arena; its capacity is what the body's past is bound with."""
        ...

    @property
    def host(self) -> HostBuffers:
        """Its sizes say the largest run: ``max_rows`` of a body (the prefill chunk), ``max_head_rows`` of a head."""
        ...

    def run_body(self, slot: int, rows: int) -> None:
        """The body over ``host``'s first ``rows`` inputs and the slot's past (``layout.past``).

        Leaves hidden rows (and ``feed``) on the device, and new K/V where ``layout.new(rows)`` says. When it returns
        the inputs in ``host`` may be written again.
        """
        ...

    def commit(self, copies: Sequence[Copy2d]) -> None:
        """New rows into the arena."""
        ...

    def copy(self, copies: Sequence[Copy2d]) -> None:
        """From arena to arena; source and target of one copy do not overlap."""
        ...

    def clear(self, offset: int, size: int) -> None:
        """Bytes of the arena become zeros; their memory goes back to the system where it can."""
        ...

    def run_head(self, first: int, rows: int) -> None:
        """The head over hidden rows [first, first + rows) of the last body, with ``host``'s inputs: small outputs to
        ``host``, logits stay on the device.

        An engine whose inputs must be aligned copies the rows where ``first`` does not allow it.
        """
        ...

    def fetch_hidden(self, rows: int) -> None:
        """The first ``rows`` of the last body's hidden rows to ``host``; with ``feed`` as many tokens of that."""
        ...

    def fetch_logits(self, row: int) -> Floats:
        """[vocab_size] one row of the last head; a view or a copy, valid until the next head."""
        ...

    def close(self) -> None:
        """Free everything; twice is harmless. An arena that others share goes last: they are closed before."""
        ...
