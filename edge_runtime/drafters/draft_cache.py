"""A drafter's own cache: what it holds of each slot's text, and how it catches up. Knows no target engine.

It lags behind the text, and what it lacks is simply the tokens behind those it has seen: after a rejection the
recovered token, after a full acceptance also the last draft, after a pause all that was decoded meanwhile. Where that
is more than a context's ``window``, it begins anew with the text's last tokens; what lies further back is left out.
"""

from __future__ import annotations

import numpy as np

from edge_runtime.engines.protocol import Engine, HeadRequest, Ids, StepInput, StepOutput

from ..session import common_prefix
from .protocol import DraftContext


class DraftCache:
    """Entry i is made from token i, or where the engine reads hidden rows from token i + 1 and the target's row i."""

    def __init__(self, engine: Engine) -> None:
        info = engine.info
        self._engine = engine
        self._ahead = 0 if info.hidden_input is None else 1
        """How far the token of an entry stands ahead of it."""
        self._seen: Ids = np.zeros((info.slots, info.capacity + self._ahead), np.int64)
        """[slots, capacity + ahead] the text behind the valid entries; scratch behind that."""
        self._kv_len = [0] * info.slots
        self._start = [0] * info.slots
        """The place of the text where a slot's entries begin. The engine counts from there: attention knows distances
        alone (rotary positions)."""

    def kv_len(self, slot: int) -> int:
        """The place of the text up to which a slot's entries are valid."""
        return self._kv_len[slot]

    def place(self, slot: int) -> int:
        """Where the engine's next entry goes."""
        return self._kv_len[slot] - self._start[slot]

    def reset(self, slot: int) -> None:
        if slot < len(self._kv_len):
            self._kv_len[slot] = self._start[slot] = 0

    def entries(self, context: DraftContext) -> int:
        """What the text has; the last one's row says what comes next."""
        return len(context.tokens) - self._ahead

    def refusal(self, context: DraftContext) -> str:
        """Why nothing can be drafted; empty where it can."""
        info = self._engine.info
        if context.slot >= info.slots:
            return f"the draft has no slot {context.slot}"
        if self.room(context) < 1:
            return f"past the draft's context of {info.capacity}"
        if self._ahead and (context.hidden is None or len(context.hidden) < self.entries(context)):
            return "the target has not run the text yet"
        return "" if self.entries(context) > 0 else "there is no row to draft from yet"

    def room(self, context: DraftContext) -> int:
        """Most tokens of a draft. The last one is never fed, so it reaches one token past the cache."""
        return self._engine.info.capacity - self.entries(context) + 1

    def warm(self, context: DraftContext, joined: int) -> int:
        """Feed what is missing, if that is more than the ``joined`` entries that a draft begins with; how much.

        The ``window`` of a text that is entered in its middle counts as a fee, however short it is.
        """
        if self.refusal(context):
            return 0
        last, known = self.entries(context) - 1, self.roll_back(context)
        if last + 1 - known <= (joined if self.place(context.slot) or context.window is None else 1):
            return 0
        self._fill(context, last if context.patience is None else min(last, known + context.patience))
        return self._kv_len[context.slot] - known

    def roll_back(self, context: DraftContext) -> int:
        """Forget what is not the context's; at least its last entry stays to be made, since its row drafts."""
        slot, ahead, count = context.slot, self._ahead, self.entries(context)
        known = min(self._kv_len[slot], count - 1)
        same = common_prefix(self._seen[slot, : known + ahead], context.tokens) if known > 0 else 0
        known, start = max(0, same - ahead), self._start[slot]
        # Without rows of a target a text cannot be entered in its middle.
        window = context.window if ahead else None
        if (window is None and start) or known < start or (window is not None and count - known > window):
            known = self._start[slot] = 0 if window is None else max(0, count - window)
            self._seen[slot, : known + ahead] = context.tokens[: known + ahead]
        self._kv_len[slot] = known
        return known

    def catch_up(self, context: DraftContext, inverse_temperature: float) -> StepOutput:
        """All that is missing, with a head for the last entry's row."""
        known, count = self.roll_back(context), self.entries(context)
        if count - known > self._engine.info.max_rows:
            known = self._fill(context, count - 1)
        row = count - known - 1
        return self._make(context, count, HeadRequest(row, row + 1, inverse_temperature))

    def extend(self, slot: int, token: Ids, head: HeadRequest) -> StepOutput:
        """An entry made from a drafted token alone: true for as long as that token is."""
        place = self._kv_len[slot]
        output = self._engine.forward(StepInput(slot, token, self.place(slot), head))
        self._seen[slot, place : place + 1] = token
        self._kv_len[slot] = place + 1
        return output

    def _fill(self, context: DraftContext, stop: int) -> int:
        """Entries up to ``stop``, in the largest chunks."""
        rows = self._engine.info.max_rows
        while (known := self._kv_len[context.slot]) < stop:
            self._make(context, min(known + rows, stop), None)
        return known

    def _make(self, context: DraftContext, stop: int, head: HeadRequest | None) -> StepOutput:
        slot, ahead, start = context.slot, self._ahead, self._kv_len[context.slot]
        tokens = context.tokens[start + ahead : stop + ahead]
        hidden = context.hidden[start:stop] if ahead and context.hidden is not None else None
        output = self._engine.forward(StepInput(slot, tokens, self.place(slot), head, hidden))
        self._seen[slot, start : stop + ahead] = context.tokens[start : stop + ahead]
        self._kv_len[slot] = stop
        return output
