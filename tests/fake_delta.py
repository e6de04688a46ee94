"""A device of numpy under a ``DeltaEngine``: its bodies and heads are the fake model of ``edge_runtime.testing``.

A row of every cache holds what the model knows behind a token, and the token. A body believes no row: it follows the
chain of all entries before its own, in every cache, head and part, and what does not follow spoils the digest. So a
copy that is a byte off shows in the logits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.bundle import EmbeddingTable, KvLayer, Manifest, MemoryNeeds, Model, Tensor, TokenizerEntry
from edge_runtime.engines.delta import DeltaEngine, DeltaSettings
from edge_runtime.engines.delta_executor import PARTS, Copy2d, HostBuffers, Layout, host_buffers, own_layout
from edge_runtime.engines.protocol import Floats, Ids
from edge_runtime.errors import EngineError
from edge_runtime.testing import FakeModel
from edge_runtime.testing.model import ROW, digest_of, rows_of

WIDTH = ROW + 1
"""Floats of a hidden row and of a cached one: a digest, and the token."""
LAYERS = (KvLayer(2, WIDTH, 8), KvLayer(1, 2 * WIDTH, None), KvLayer(2, WIDTH, None))
"""Of two shapes, so that no layout is too simple."""
_SPOILT = 0x51
_SCALE = 0.5


@functools.cache
def _extended(model: FakeModel, digest: int, token: int) -> int:
    """Every body follows the whole chain: the same steps again and again."""
    return model.extend(digest, token)


class FakeExecutor:
    """Implements ``engines.delta_executor.Executor``. Public attributes are for tests to read and set."""

    def __init__(
        self, model: FakeModel, ids: Ids, slots: int, capacity: int, max_rows: int, head_rows: int, candidates: int
    ) -> None:
        """``ids``: the token of each row of the head."""
        self.model, self.ids = model, ids
        self._layout = own_layout(LAYERS, 4, slots, capacity)
        self._host = host_buffers(max_rows, head_rows, WIDTH, candidates)
        # What lies behind a position is finite garbage on a device; here it is garbage from the start.
        self.arena = np.full(self._layout.arena_bytes, 7, np.uint8)
        self.new = np.full(self._layout.new_bytes(max_rows), 9, np.uint8)
        self.hidden = np.zeros((max_rows, WIDTH), np.float32)
        self.logits = np.zeros((head_rows, len(ids)), np.float32)
        self.calls: list[str] = []
        self.fail_after: int | None = None
        """Calls that still succeed; then one raises ``EngineError``."""
        self.closed = 0

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def host(self) -> HostBuffers:
        return self._host

    def run_body(self, slot: int, rows: int) -> None:
        self._called("body")
        positions, first = self._host.positions[:rows], int(self._host.positions[0])
        assert positions.tolist() == list(range(first, first + rows))
        digest = self._before(slot, first)
        made = np.zeros((rows, WIDTH), np.float32)
        for row in range(rows):
            token = int(self._host.embeddings[row, -1])
            digest = _extended(self.model, digest, token)
            made[row, :ROW], made[row, ROW] = rows_of([digest])[0], token
        self.hidden[:rows] = made
        for place, begins in zip(self._layout.caches, self._layout.new(rows), strict=True):
            for offset in begins:
                shape = (place.kv_heads, rows, place.head_dim)
                region = self.new[offset : offset + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
                region[:] = np.tile(made, (1, place.head_dim // WIDTH))[None]

    def commit(self, copies: Sequence[Copy2d]) -> None:
        self._called("commit")
        for one in copies:
            _copy(self.new, self.arena, one)

    def copy(self, copies: Sequence[Copy2d]) -> None:
        self._called("copy")
        for one in copies:
            _copy(self.arena, self.arena, one)

    def clear(self, offset: int, size: int) -> None:
        self._called("clear")
        self.arena[offset : offset + size] = 0

    def run_head(self, first: int, rows: int) -> None:
        self._called("head")
        host = self._host
        digests = [digest_of(row[:ROW]) for row in self.hidden[first : first + rows]]
        logits = np.stack([self.model.logits(digest, self.ids) for digest in digests])
        self.logits[:rows] = logits
        count = host.candidate_ids.shape[1]
        falling = np.argsort(-logits, axis=1, kind="stable")[:, :count]
        scaled = logits.astype(np.float64) * float(host.inverse_temperature[0])
        host.argmax[:rows], host.candidate_ids[:rows] = falling[:, 0], falling
        host.candidate_logits[:rows] = np.take_along_axis(logits, falling, axis=1)
        host.logsumexp[:rows] = np.log(np.exp(scaled).sum(axis=1))
        host.gathered[:rows] = logits[np.arange(rows), host.gather_ids[:rows]]

    def fetch_hidden(self, rows: int) -> None:
        self._host.hidden[:rows] = self.hidden[:rows]

    def fetch_logits(self, row: int) -> Floats:
        found: Floats = self.logits[row].copy()
        return found

    def close(self) -> None:
        self.closed += 1

    def _before(self, slot: int, count: int) -> int:
        """The digest behind the slot's first entries, if every copy of each follows from the one before."""
        digest, parts = 0, []
        for i, place in enumerate(self._layout.caches):
            for part in PARTS:
                offset = self._layout.past(slot, i, part)
                shape = (place.kv_heads, self._layout.capacity, place.head_dim)
                values = self.arena[offset : offset + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)
                entries = values[:, :count].reshape(place.kv_heads, count, place.head_dim // WIDTH, WIDTH)
                parts.append(entries.transpose(1, 0, 2, 3))
        for position in range(count):
            copies = np.concatenate([part[position].reshape(-1, WIDTH) for part in parts])
            token = copies[0, ROW]
            digest = _extended(self.model, digest, int(token) if np.isfinite(token) and 0 <= token < 1e6 else _SPOILT)
            wanted = np.concatenate([rows_of([digest])[0], copies[0, ROW:]])
            if not np.array_equal(copies, np.broadcast_to(wanted, copies.shape)):
                digest = _extended(self.model, digest, _SPOILT + position)
        return digest

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fail_after is None:
            return
        if self.fail_after == 0:
            self.fail_after = None
            raise EngineError("the fake device was told to fail")
        self.fail_after -= 1


def fake_delta(
    directory: Path, model: FakeModel | None = None, *, slots: int = 1, capacity: int = 128, max_rows: int = 16,
    head_rows: int = 16, candidates: int = 8, token_ids: Ids | None = None, **settings: Any,
) -> tuple[DeltaEngine, FakeExecutor]:  # fmt: skip
    """``directory`` gets the embedding, and what a head is reduced to."""
    known = model or FakeModel()
    ids = np.arange(known.vocab_size) if token_ids is None else np.asarray(token_ids, np.int64)
    executor = FakeExecutor(known, ids, slots, capacity, max_rows, head_rows, candidates)
    manifest = fake_manifest(directory, known, candidates, capacity)
    if token_ids is not None:
        ids.astype("<i8").tofile(directory / "ids")
        reduced = replace(manifest.model("target"), token_ids="ids", vocab_size=len(ids))
        manifest = replace(manifest, models={"target": reduced})
    return DeltaEngine(directory, manifest, "target", executor, DeltaSettings(**settings)), executor


def fake_manifest(directory: Path, model: FakeModel, candidates: int, capacity: int) -> Manifest:
    table = np.zeros((model.vocab_size, WIDTH), np.float16)
    # A power of two: what is halved is exact.
    table[:, -1] = np.arange(model.vocab_size) / _SCALE
    table.tofile(directory / "embedding")
    io = [Tensor("body", "out", f"new_{part}_{i}", "float32", (1, one.kv_heads, "rows", one.head_dim))
          for i, one in enumerate(LAYERS) for part in PARTS]  # fmt: skip
    target = Model(
        body="target.body.onnx", head="target.head.onnx", readout="", screen=None, weights=(), table=(),
        precision="fp32", accuracy_level=0, vocab_size=model.vocab_size, token_ids=None, hidden_size=WIDTH,
        candidates=candidates, max_context=capacity, kv_dtype="float32", layers=LAYERS, io=tuple(io),
        dialect="tensorrt",
        embedding=EmbeddingTable("embedding", 0, "float16", model.vocab_size, WIDTH, _SCALE),
    )  # fmt: skip
    return Manifest(
        schema_version=1, name="fake", family="gemma3", models={"target": target},
        tokenizer=TokenizerEntry("tokenizer.model", model.vocab_size, 2, (1,), ""), chat_template=None,
        memory=MemoryNeeds(0, 0, 0), sources=(), recipe={}, notes=(), licence="", licence_file="", exporter="",
        files=(),
    )  # fmt: skip


def _copy(source: Any, target: Any, of: Copy2d) -> None:
    """As a device does it: line by line, and never outside of the region."""
    assert of.width <= min(of.source_pitch, of.target_pitch)
    for line in range(of.height):
        first, place = of.source + line * of.source_pitch, of.target + line * of.target_pitch
        assert first >= 0 and first + of.width <= len(source) and place >= 0 and place + of.width <= len(target)
        target[place : place + of.width] = source[first : first + of.width]
