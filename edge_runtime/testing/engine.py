"""``FakeEngine``: the contract of ``engines.protocol``, kept to the letter. Knows no numerics of a real model.

What a caller forgot to feed, fed twice or left behind a rejection changes the logits, so that a decoder's mistake shows
in its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..cost import CostTable
from ..engines.bounds import refuse_head, refuse_path, refuse_prefix, refuse_slot, refuse_step, refuse_tokens
from ..engines.protocol import EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from ..errors import EngineError
from .model import ROW, FakeModel, rows_of

UNWRITTEN = -1
"""Token and digest of an entry that nobody wrote."""
_PADDING = -2


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


CallKind = Literal["forward", "head", "logits", "copy", "keep", "forget"]


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call that a ``FakeEngine`` answered."""

    kind: CallKind
    slot: int
    """The one written to, of a copy."""
    first: int
    """Position of the first token, the first row of a head, or the slot that a copy reads."""
    rows: int


class FakeEngine:
    """Implements ``engines.protocol.Engine``. Public attributes are for tests to read and set."""

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        capacity: int = 128,
        slots: int = 1,
        max_rows: int = 16,
        candidates: int = 8,
        min_rows: int = 1,
        token_ids: Ids | None = None,
        clock: ManualClock | None = None,
        cost: CostTable | None = None,
        keeps_hidden: bool = False,
        hidden_input: int | None = None,
        fan_out: int = 1,
        trees: bool = False,
    ) -> None:
        """``token_ids`` rising, for a reduced head. ``clock`` moves by what ``cost`` says a call takes."""
        self.model = model or FakeModel()
        self._ids: Ids = np.arange(self.model.vocab_size) if token_ids is None else np.asarray(token_ids, np.int64)
        self._info = EngineInfo(
            vocab_size=len(self._ids),
            hidden_size=ROW,
            capacity=capacity,
            slots=slots,
            max_rows=max_rows,
            candidates=min(candidates, len(self._ids)),
            min_rows=min_rows,
            token_ids=None if token_ids is None else self._ids,
            hidden_input=hidden_input,
            keeps_hidden=keeps_hidden,
            fan_out=fan_out,
            trees=trees,
        )
        # One spare entry for the padded row of min_rows 2.
        self.cache: Ids = np.full((slots, capacity + 1), UNWRITTEN, np.int64)
        """[slots, capacity + 1] tokens"""
        # As K/V, an entry is made from those before it when it is written, and keeps what was wrong with them.
        self.digests = [[UNWRITTEN] * (capacity + 1) for _ in range(slots)]
        self.shallow = [[UNWRITTEN] * (capacity + 1) for _ in range(slots)]
        """The same of the first layers, which a self-draft writes to as well."""
        self._kept: Floats = np.zeros((slots if keeps_hidden else 0, capacity, ROW), np.float32)
        self.calls: list[FakeCall] = []
        self.fail_after: int | None = None
        """Calls but those of ``logits`` that still succeed; then one raises ``EngineError``."""
        self.broken_rows = False
        """Whether logits are NaN, as after a numeric overflow."""
        self._clock, self._cost = clock, cost
        self._slot = 0
        self._known: list[int] = []
        """The digest in each row of the last forward."""
        self._hidden: Floats = np.zeros((max_rows * fan_out, ROW), np.float32)
        self._logits: Floats = np.zeros((0, len(self._ids)), np.float32)

    @property
    def info(self) -> EngineInfo:
        return self._info

    def forward(self, step: StepInput) -> StepOutput:
        self._check(step)
        info, count = self._info, len(step.tokens)
        self.calls.append(FakeCall("forward", step.slot, step.position, count))
        # Fails half-way, with entries already written: the worst that a device can do.
        known = self.take(step)
        if info.min_rows > count:
            self.write(step.slot, step.position + count, np.full(1, _PADDING))
        self._fail()
        self._slot, self._known = step.slot, known
        hidden = self._hidden[: len(known)]
        hidden[:] = rows_of(known)
        if info.keeps_hidden:
            self._kept[step.slot, step.position : step.position + count] = hidden
        if self._clock is not None and self._cost is not None:
            self._clock.advance(self._cost.body(count))
        head = None if step.head is None else self.head(step.head)
        return StepOutput(head, hidden, self.feed(known))

    def take(self, step: StepInput) -> list[int]:
        """Write the step's entries; the digest that each of its rows knows."""
        self.write(step.slot, step.position, step.tokens, step.parents)
        return self.digests[step.slot][step.position : step.position + len(step.tokens)]

    def feed(self, known: list[int]) -> Floats | None:
        """What the engine says its target's rows would be, by what its own rows know."""
        return None

    def write(self, slot: int, position: int, tokens: Ids, parents: Ids | None = None) -> None:
        for row, token in enumerate(tokens.tolist()):
            place = position + row
            self.cache[slot, place] = token
            before = self._before(position, row, parents)
            deep, shallow = self.digests[slot], self.shallow[slot]
            alike = not before or deep[before[-1]] == shallow[before[-1]]
            deep[place] = self.behind(slot, deep, place, before)
            shallow[place] = deep[place] if alike else self.behind(slot, shallow, place, before)

    def _before(self, position: int, row: int, parents: Ids | None) -> Sequence[int]:
        """Entries that the one of a row follows, in order."""
        if parents is None:
            return range(position + row)
        path = []
        while (row := int(parents[row])) >= 0:
            path.append(position + row)
        return [*range(position), *reversed(path)]

    def behind(self, slot: int, digests: Sequence[int], place: int, before: Sequence[int]) -> int:
        """What an entry knows, made from its token and from those before it."""
        model, tokens = self.model, self.cache[slot]
        if model.order is not None:
            return model.digest(tokens[[*before, place]])
        return model.extend(digests[before[-1]] if before else 0, int(tokens[place]))

    def head(self, request: HeadRequest) -> HeadOutput:
        first, count = request.first, request.stop - request.first
        refuse_head(request, len(self._known), len(self._known))
        self.calls.append(FakeCall("head", self._slot, first, count))
        self._fail()
        if self._clock is not None and self._cost is not None:
            self._clock.advance(self._cost.head(count))
        logits = np.stack([self._row(digest) for digest in self._known[first : request.stop]])
        self._logits = logits
        # Stable: ties by rising id.
        falling = np.argsort(-logits, axis=1, kind="stable")[:, : self._info.candidates]
        scaled = logits.astype(np.float64) * request.inverse_temperature
        top = scaled.max(axis=1)
        return HeadOutput(
            argmax=self._ids[falling[:, 0]],
            candidate_ids=self._ids[falling],
            candidate_logits=np.take_along_axis(logits, falling, axis=1),
            logsumexp=(top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))).astype(np.float32),
            gathered=self._gathered(logits, request.gather_ids),
        )

    def logits(self, row: int) -> Floats:
        self.calls.append(FakeCall("logits", self._slot, row, 1))
        full: Floats = self._logits[row]
        return full

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        refuse_prefix(source, target, count, self._info)
        self.calls.append(FakeCall("copy", target, source, count))
        done = count if self.fail_after != 0 else count // 2
        self.cache[target, :done] = self.cache[source, :done]
        for digests in (self.digests, self.shallow):
            digests[target][:done] = digests[source][:done]
        if self._info.keeps_hidden:
            self._kept[target, :done] = self._kept[source, :done]
        self._fail()

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        refuse_path(slot, position, rows, self._info)
        self.calls.append(FakeCall("keep", slot, position, len(rows)))
        self._fail()
        for place, source in enumerate((position + rows).tolist(), start=position):
            self.cache[slot, place] = self.cache[slot, source]
            for digests in (self.digests, self.shallow):
                digests[slot][place] = digests[slot][source]
            if self._info.keeps_hidden:
                self._kept[slot, place] = self._kept[slot, source]

    def forget(self, slot: int) -> None:
        refuse_slot(slot, self._info)
        self.calls.append(FakeCall("forget", slot, 0, 0))
        self.cache[slot] = UNWRITTEN
        for digests in (self.digests, self.shallow):
            digests[slot] = [UNWRITTEN] * len(digests[slot])
        self._fail()

    def hidden_rows(self, slot: int) -> Floats:
        refuse_slot(slot, self._info)
        if not self._info.keeps_hidden:
            raise ValueError("this engine keeps no hidden rows")
        rows: Floats = self._kept[slot]
        return rows

    def close(self) -> None:
        self.cache = self.cache[:0]

    def rows_of(self, kind: CallKind) -> list[int]:
        """Rows of each call of a kind, in order."""
        return [call.rows for call in self.calls if call.kind == kind]

    def _check(self, step: StepInput) -> None:
        info, count = self._info, len(step.tokens)
        refuse_step(step, info)
        refuse_tokens(step.tokens, self.model.vocab_size)
        if step.parents is not None and not (info.trees and _is_tree(step.parents, count)):
            raise ValueError("no tree, or an engine without trees")
        wanted = None if info.hidden_input is None else (count, info.hidden_input)
        given = None if step.hidden is None else step.hidden.shape
        if given != wanted:
            raise ValueError(f"hidden rows of shape {given}, not {wanted}")

    def _row(self, digest: int) -> Floats:
        row = self.model.logits(digest, self._ids)
        return np.full_like(row, np.nan) if self.broken_rows else row

    def _gathered(self, logits: Floats, gather_ids: Ids | None) -> Floats | None:
        if gather_ids is None:
            return None
        places = np.minimum(np.searchsorted(self._ids, gather_ids), len(self._ids) - 1)
        if not np.array_equal(self._ids[places], gather_ids):
            raise ValueError("a gathered id is not in the head")
        return logits[np.arange(len(logits)), places]

    def _fail(self) -> None:
        if self.fail_after is None:
            return
        if self.fail_after == 0:
            self.fail_after = None
            raise EngineError("the fake engine was told to fail")
        self.fail_after -= 1


def _is_tree(parents: Ids, count: int) -> bool:
    return parents.shape == (count,) and bool(np.all((parents >= -1) & (parents < np.arange(count))))
