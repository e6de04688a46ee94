"""Drafters that read their target's mind: its hidden row behind the last token but one. Know no target engine.

``MultiToken`` has a cache of its own, ``Assistant`` looks at its target's. Both go on from what they say themselves
(``feed``) where the target has no row yet, and so draft chains of any length.
"""

from __future__ import annotations

from edge_runtime.engines.protocol import Engine, EngineInfo, Floats, StepInput, StepOutput
from edge_runtime.errors import ConfigError

from .chain import Chain
from .draft_cache import DraftCache
from .draft_model import nearly_full, refuse_vocabulary
from .protocol import NO_TOKENS, Cacheless, DraftContext, DraftProposal
from .strategy import AsRequested, Strategy

WINDOW = 12
"""Tokens from the end of a text that say most of what there is to say: the target's rows know the rest of it."""


class MultiToken:
    """Entry i joins token i + 1 with the target's row i, and says what token i + 2 is.

    Entries that it fed itself are void once the target has verified the draft: they are made again with true rows.
    """

    name = "mtp"
    window = WINDOW

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``ConfigError`` and ``VocabularyMismatch`` where the two do not fit."""
        refuse_target(engine.info, target)
        self.max_k = max_k
        self._engine = engine
        self._strategy = strategy or AsRequested()
        self._cache = DraftCache(engine)
        # What the longest draft leaves behind when all of it is accepted.
        self._joined = min(max_k + 1, engine.info.max_rows)

    def kv_len(self, slot: int) -> int:
        """The place of a slot's text up to which entries were made with true rows."""
        return self._cache.kv_len(slot)

    def warm(self, context: DraftContext) -> int:
        return self._cache.warm(context, self._joined)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        cache = self._cache
        refusal, room = cache.refusal(context), cache.room(context)
        most = min(k, self.max_k, room)
        if refusal or most < 1:
            return DraftProposal(NO_TOKENS, None, self.name, refusal)
        chain = Chain(self._strategy, context, most)
        output = cache.catch_up(context, context.params.inverse_temperature)
        place = cache.place(context.slot)
        while chain.choose(output.head):
            step = StepInput(context.slot, chain.last, place, chain.request(0), last_feed(output))
            output = self._engine.forward(step)
            place += 1
        return chain.proposal(self.name, nearly_full(self._engine.info) if room < k else "")

    def observe(self, slot: int, accepted: int) -> None:
        pass  # the next context tells

    def reset(self, slot: int) -> None:
        self._cache.reset(slot)


class Assistant(Cacheless):
    """Queries over the target's cache, and nothing of its own to fill: parking it costs nothing.

    All forwards of a draft stand at the place of the last token that the target has run.
    """

    name = "assistant"

    def __init__(self, engine: Engine, target: EngineInfo, max_k: int = 16, strategy: Strategy | None = None) -> None:
        """Raises ``ConfigError`` and ``VocabularyMismatch`` where the two do not fit."""
        refuse_target(engine.info, target)
        self.max_k = max_k
        self._engine = engine
        self._strategy = strategy or AsRequested()

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        place, hidden = len(context.tokens) - 2, row_to_draft_from(context)
        most = min(k, self.max_k)
        if hidden is None:
            return DraftProposal(NO_TOKENS, None, self.name, "the target has not run the text yet")
        if most < 1:
            return DraftProposal(NO_TOKENS, None, self.name)
        chain = Chain(self._strategy, context, most)
        token = context.tokens[-1:]
        while True:
            output = self._engine.forward(StepInput(context.slot, token, place, chain.request(0), hidden))
            if not chain.choose(output.head):
                return chain.proposal(self.name)
            token, hidden = chain.last, last_feed(output)


def refuse_target(draft: EngineInfo, target: EngineInfo) -> None:
    """Raises ``ConfigError`` for a target whose rows the draft cannot read, ``VocabularyMismatch`` as a draft model."""
    refuse_vocabulary(draft, target)
    if draft.hidden_input != target.hidden_size or not target.keeps_hidden:
        has = f"rows of {target.hidden_size}" if target.keeps_hidden else "keeps none"
        raise ConfigError(f"the drafter reads hidden rows of {draft.hidden_input}, and the target {has}")


def row_to_draft_from(context: DraftContext) -> Floats | None:
    """[1, hidden_size] the target's row behind the last but one token, which the last was read from."""
    place = len(context.tokens) - 2
    if place < 0 or context.hidden is None or len(context.hidden) <= place:
        return None
    return context.hidden[place : place + 1]


def last_feed(output: StepOutput) -> Floats:
    """[1, hidden_input]"""
    if output.feed is None:
        raise ValueError("this drafter cannot feed itself")
    return output.feed[-1:]
