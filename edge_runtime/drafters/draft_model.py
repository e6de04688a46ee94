"""A small model drafts. Knows no target engine and no clock.

Its cache lags behind the text, and what it lacks is simply the tokens behind those it has seen: after a rejection
the recovered token, after a full acceptance also the last draft, after a pause all that was decoded meanwhile.
"""

from __future__ import annotations

import numpy as np

from edge_runtime.engines.protocol import Engine, EngineInfo, HeadOutput, HeadRequest, Ids, StepInput
from edge_runtime.errors import VocabularyMismatch
from edge_runtime.sampling import Distribution

from ..session import common_prefix
from .protocol import NO_TOKENS, DraftContext, DraftProposal
from .strategy import AsRequested, Strategy

_JOINED = 2
"""Tokens that the first forward of a draft takes along: what a step of full acceptance leaves behind."""


class DraftModel:
    """A chain of tokens, each chosen by the strategy."""

    name = "draft_model"

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``VocabularyMismatch`` when the draft could name a token that the target lacks."""
        info = engine.info
        if info.token_ids is None and info.vocab_size != target.vocab_size:
            raise VocabularyMismatch(
                f"the draft has {info.vocab_size} tokens and the target {target.vocab_size}, and no map between them"
            )
        if info.token_ids is not None and not _within(info.token_ids, target.vocab_size):
            raise VocabularyMismatch(f"the draft's head names tokens outside 0..{target.vocab_size - 1}")
        self.max_k = max_k
        self._engine = engine
        self._strategy = strategy or AsRequested()
        self._seen: Ids = np.zeros((info.slots, info.capacity), np.int64)
        """[slots, capacity] the token behind each cache entry; scratch behind the valid ones."""
        self._kv_len = [0] * info.slots
        self._proposal_tokens: Ids = np.zeros(max_k, np.int64)

    def kv_len(self, slot: int) -> int:
        """Valid cache entries of a slot."""
        return self._kv_len[slot]

    def warm(self, context: DraftContext) -> int:
        info = self._engine.info
        count = len(context.tokens)
        if context.slot >= info.slots or count > info.capacity:
            return 0
        known = self._roll_back(context)
        if count - known <= _JOINED:
            return 0
        stop = count - 1 if context.patience is None else min(count - 1, known + context.patience)
        return self._feed(context, stop)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        info = self._engine.info
        count = len(context.tokens)
        if context.slot >= info.slots:
            return DraftProposal(NO_TOKENS, None, self.name, f"the draft has no slot {context.slot}")
        # The last drafted token is never fed, so the draft reaches one token past its cache.
        room = info.capacity - count + 1
        if room < 1:
            return DraftProposal(NO_TOKENS, None, self.name, f"past the draft's context of {info.capacity}")
        asked, k = k, min(k, self.max_k, room)
        self._roll_back(context)
        if count - self._kv_len[context.slot] > info.max_rows:
            self._feed(context, count - 1)
        laws: list[Distribution] = []
        confidences: list[float] = []
        made = self._draft(context, k, laws, confidences)
        note = f"the draft's context of {info.capacity} is nearly full" if room < asked else ""
        drawn = tuple(laws) if laws else None
        return DraftProposal(self._proposal_tokens[:made], drawn, self.name, note, tuple(confidences))

    def observe(self, slot: int, accepted: int) -> None:
        pass  # the next context tells

    def reset(self, slot: int) -> None:
        self._kv_len[slot] = 0

    def _roll_back(self, context: DraftContext) -> int:
        """Forget what is not the context's; at least its last token stays to be fed, since its row drafts."""
        slot = context.slot
        known = min(self._kv_len[slot], len(context.tokens) - 1)
        self._kv_len[slot] = common_prefix(self._seen[slot, :known], context.tokens)
        return self._kv_len[slot]

    def _feed(self, context: DraftContext, stop: int) -> int:
        """Fill the cache up to ``stop``, in the largest chunks."""
        start = self._kv_len[context.slot]
        rows = self._engine.info.max_rows
        for position in range(start, stop, rows):
            self._forward(context.slot, context.tokens[position : min(position + rows, stop)], None)
        return stop - start

    def _forward(self, slot: int, tokens: Ids, head: HeadRequest | None) -> HeadOutput | None:
        position = self._kv_len[slot]
        output = self._engine.forward(StepInput(slot, tokens, position, head))
        self._seen[slot, position : position + len(tokens)] = tokens
        self._kv_len[slot] = position + len(tokens)
        return output.head

    def _draft(self, context: DraftContext, k: int, laws: list[Distribution], confidences: list[float]) -> int:
        count = len(context.tokens)
        confidence = 1.0
        fed = context.tokens[self._kv_len[context.slot] :]
        for index in range(k):
            request = HeadRequest(len(fed) - 1, len(fed), context.params.inverse_temperature)
            head = self._forward(context.slot, fed, request)
            assert head is not None  # it was asked for
            chosen = self._strategy.choose(head, 0, context, count + index)
            if chosen.law is not None:
                laws.append(chosen.law)
            self._proposal_tokens[index] = chosen.token
            confidences.append(chosen.probability)
            confidence *= context.chance(chosen.probability)
            if confidence < context.stop_below:
                return index + 1
            fed = self._proposal_tokens[index : index + 1]
        return k


def _within(ids: Ids, vocab_size: int) -> bool:
    return len(ids) > 0 and int(ids.min()) >= 0 and int(ids.max()) < vocab_size
