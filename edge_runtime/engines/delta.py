"""An engine over graphs that hand out the new keys and values alone. Knows slots, positions and rows, and no device.

A forward is three things in a row: the body over the slot's past, a copy of the new rows to where they belong, the
head. What does that is an ``Executor``; here is all that is the same for each of them. The past of a slot beyond its
position is whatever was there before, and a graph masks it: rolling back is a smaller position, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..bundle import Manifest, Model
from .bounds import refuse_head, refuse_path, refuse_prefix, refuse_slot, refuse_step
from .delta_embedding import EmbeddingRows
from .delta_executor import Copy2d, Executor
from .kept_rows import KeptRows
from .protocol import EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from .token_ids import head_rows, read_token_ids


@dataclass(frozen=True, slots=True)
class DeltaSettings:
    """What the logic is asked for; sizes are the executor's."""

    deterministic: bool = False
    """Never run a lone row (ARCHITECTURE.md)."""
    keeps_hidden: bool = False
    """Keep the hidden row behind each cache entry, for a drafter that reads them: hidden_size floats a token."""
    cache: Literal["as-used", "at-load"] = "as-used"
    """When the memory of these rows is paid for."""


class DeltaEngine:
    """Implements ``engines.protocol.Engine``, without trees: rows of a forward follow each other."""

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        role: str,
        executor: Executor,
        settings: DeltaSettings | None = None,
    ) -> None:
        """Owns the executor from now on. Raises ``BundleError`` for a table or a list of ids that cannot be read."""
        settings = settings or DeltaSettings()
        model = manifest.model(role)
        self._device: Executor | None = executor
        self._layout, self._host = executor.layout, executor.host
        # Parallel heads embed nothing: they are told hidden rows alone.
        self._embeddings = None if model.embedding is None else EmbeddingRows(directory, model.embedding)
        self._token_ids = read_token_ids(directory, model)
        self._writes = _writes(model)
        self._info = EngineInfo(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            capacity=self._layout.capacity,
            slots=self._layout.slots,
            max_rows=len(self._host.positions),
            candidates=model.candidates,
            min_rows=2 if settings.deterministic else 1,
            token_ids=self._token_ids,
            hidden_input=model.hidden_input,
            keeps_hidden=settings.keeps_hidden,
            fan_out=model.fan_out,
        )
        shape = (self._info.slots, self._info.capacity, self._info.hidden_size)
        self._kept = KeptRows(shape if settings.keeps_hidden else None, settings.cache)
        self._commits: dict[tuple[int, int], tuple[Copy2d, ...]] = {}
        self._rows = 0
        """Of hidden rows that the last forward made; 0 where it failed."""
        self._padded = 0
        """The same with the row that nobody asked for."""
        self._first_logits_row = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def executor(self) -> Executor:
        """Whose arena the executor of a model with ``shares`` writes to. Raises ``ValueError`` once it is closed."""
        return self._open()

    def forward(self, step: StepInput) -> StepOutput:
        device, info, host, count = self._open(), self._info, self._host, len(step.tokens)
        self._refuse(step)
        rows = max(count, info.min_rows)
        if self._embeddings is not None:
            self._embeddings.read(step.tokens, host.embeddings[:count])
        host.embeddings[count:rows] = 0.0
        host.positions[:rows] = np.arange(step.position, step.position + rows, dtype=np.int32)
        if step.hidden is not None and host.hidden_in is not None:
            host.hidden_in[:count] = step.hidden
            host.hidden_in[count:rows] = 0.0
        self._rows = 0
        device.run_body(step.slot, rows)
        if self._writes:
            # The padded row is never written: what it would say stays in the region of new rows.
            device.commit(self._layout.placed(self._commit(rows, count), step.slot, step.position))
        self._rows, self._padded = count * info.fan_out, rows * info.fan_out
        # Before the hidden rows are fetched, which waits for the device.
        head = None if step.head is None else self.head(step.head)
        device.fetch_hidden(self._rows)
        hidden = host.hidden[: self._rows]
        self._kept.write(step.slot, step.position, hidden)
        return StepOutput(head, hidden, None if host.feed is None else host.feed[:count])

    def head(self, request: HeadRequest) -> HeadOutput:
        device, host, count = self._open(), self._host, request.stop - request.first
        refuse_head(request, self._rows, len(host.gather_ids))
        wanted = request.gather_ids
        first, rows, pad = request.first, max(count, self._info.min_rows), 0
        if first + rows > self._padded:
            # A lone row is read out with the one before it where none stands behind it.
            first, pad = first - 1, 1
        host.inverse_temperature[0] = request.inverse_temperature
        if wanted is not None:
            host.gather_ids[pad : pad + count] = head_rows(self._token_ids, wanted, self._info.vocab_size)
        device.run_head(first, rows)
        self._first_logits_row = pad
        return self._read_out(slice(pad, pad + count), wanted is not None)

    def _read_out(self, rows: slice, gathered: bool) -> HeadOutput:
        host, ids = self._host, self._token_ids
        argmax, candidates = host.argmax[rows].astype(np.int64), host.candidate_ids[rows].astype(np.int64)
        return HeadOutput(
            argmax if ids is None else ids[argmax],
            candidates if ids is None else ids[candidates],
            host.candidate_logits[rows],
            host.logsumexp[rows],
            host.gathered[rows] if gathered else None,
        )

    def logits(self, row: int) -> Floats:
        return self._open().fetch_logits(self._first_logits_row + row)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        device = self._open()
        refuse_prefix(source, target, count, self._info)
        if source == target or count == 0:
            return
        if self._layout.owned:
            device.copy(self._layout.moved_rows((source, 0), (target, 0), count))
        self._kept.copy_prefix(source, target, count)

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        device = self._open()
        refuse_path(slot, position, rows, self._info)
        for place, source in enumerate(rows.tolist()):
            # One by one: an entry that is overwritten has been moved before, and no copy overlaps itself.
            if source != place:
                device.copy(self._layout.moved_rows((slot, position + source), (slot, position + place), 1))
        self._kept.keep_path(slot, position, rows)

    def forget(self, slot: int) -> None:
        device = self._open()
        refuse_slot(slot, self._info)
        if self._layout.owned:
            device.clear(slot * self._layout.slot_bytes, self._layout.slot_bytes)
        self._kept.forget(slot)

    def hidden_rows(self, slot: int) -> Floats:
        refuse_slot(slot, self._info)
        return self._kept.of(slot)

    def close(self) -> None:
        """Closing twice is harmless, any other call afterwards a ``ValueError``."""
        device, self._device = self._device, None
        if device is not None:
            device.close()

    def _open(self) -> Executor:
        if self._device is None:
            raise ValueError("this engine is closed")
        return self._device

    def _refuse(self, step: StepInput) -> None:
        info, count = self._info, len(step.tokens)
        refuse_step(step, info)
        if step.parents is not None:
            raise ValueError("no tree, or an engine without trees")
        given = None if step.hidden is None else step.hidden.shape
        if info.hidden_input is None and given is not None:
            raise ValueError("this engine takes no hidden rows")
        if info.hidden_input is not None and given != (count, info.hidden_input):
            raise ValueError(f"{count} tokens need hidden rows of {info.hidden_input}, not {given}")

    def _commit(self, rows: int, count: int) -> tuple[Copy2d, ...]:
        found = self._commits.get((rows, count))
        if found is None:
            found = self._commits[(rows, count)] = self._layout.commit(rows, count)
        return found


def _writes(model: Model) -> bool:
    """Whether the body hands out new rows: one that only looks at its target's caches does not."""
    return any(line.graph == "body" and line.name.startswith("new_") for line in model.io)
