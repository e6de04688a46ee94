"""What a drafter is. Knows no target: neither its engine nor how a draft is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_runtime.engines.protocol import Floats, Ids
from edge_runtime.reuse import ONE, Owner
from edge_runtime.sampling import Distribution, SamplingParams

NO_TOKENS: Ids = np.zeros(0, np.int64)
NO_TOKENS.flags.writeable = False


def as_it_says(probability: float) -> float:
    """A draft that is taken at its word."""
    return probability


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a draft continues. Views: valid during the call."""

    tokens: Ids
    """[n] committed, n >= 1"""
    slot: int
    """Of the session; a drafter keeps what it remembers apart by it."""
    params: SamplingParams
    seed: int | None
    """Draft with the noise keyed by (seed, position) that the target uses; ``None``: draw with ``uniform``."""
    uniform: Callable[[], float]
    """The next number in [0, 1)."""
    stop_below: float = 0.0
    """End the draft once the product of the ``chance`` of each of its tokens falls below; 0 never does."""
    patience: int | None = None
    """Most tokens that one call of ``warm`` feeds; ``None``: all."""
    hidden: Floats | None = None
    """[m, hidden_size] the target's row behind each token that its cache holds, m <= n - 1, m = n - 1 but after a
    step that failed; ``None`` where the target keeps none."""
    chance: Callable[[float], float] = as_it_says
    """From the draft's own probability of a token to the chance that the target keeps it, as far as that was learnt."""
    owner: Owner = ONE
    """Whose text it is: what one client's texts say must not be told another."""
    branches: int = 0
    """Most alternatives beside the chain."""
    window: int | None = None
    """Most tokens that the drafter is fed, if it has a ``window``: it begins anew with the last ones rather than catch
    up with more. ``None``: it goes by the whole text."""
    kv_len: int = 0
    """m, the tokens that the target's cache holds; 0 before it has run the text."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftProposal:
    tokens: Ids
    """[K], or [K + alternatives]: the chain comes first."""
    laws: tuple[Distribution, ...] | None
    """[K] exactly the law each token was drawn from, given those before it; ``None``: not drawn (one-hot)."""
    source: str
    note: str = ""
    """Why there are fewer tokens than asked for, where that is worth a line."""
    confidences: tuple[float, ...] = ()
    """[K] the draft's own probability of each token, that ``chance`` is learnt from; or empty."""
    evidence: int = 0
    """Tokens that agreed where a drafter found its proposal in some text; 0 where it did not look for any."""
    parents: Ids | None = None
    """[len(tokens)] the earlier token that each one follows, -1 for the text; ``None``: a chain, each the one before.

    Alternatives were not drawn: which they are may depend on the drafts before them, never on chance.
    """


class Drafter(Protocol):
    """Proposes tokens; holds a cache or an index per slot, and compares it with what it is given.

    Whether the context grew, was cut or belongs to another request is seen from its tokens: no call has to
    announce it, so none can be forgotten.

    A drawn token must be handed out whatever it is: leaving it out because it looks unlikely would bend the law
    of the text. Whether to draw another may depend on it.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_k(self) -> int:
        """Largest draft; 0 never drafts."""
        ...

    @property
    def window(self) -> int | None:
        """Tokens from the end of a text that are enough to draft well from; ``None``: it needs the whole text."""
        ...

    def warm(self, context: DraftContext) -> int:
        """Catch up with tokens that were committed without this drafter; how many it was fed, 0 once it has."""
        ...

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        """At most ``k`` tokens, perhaps none. Right without ``warm``, which only tells the two costs apart."""
        ...

    def observe(self, slot: int, accepted: int) -> None:
        """How many tokens of the last proposal were kept."""
        ...

    def reset(self, slot: int) -> None:
        """Forget a slot."""
        ...


class Cacheless:
    """What a drafter that keeps nothing between two drafts has to say to a change of text."""

    window: int | None = None

    def warm(self, context: DraftContext) -> int:
        return 0

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        pass


class NoDraft(Cacheless):
    """Plain decoding."""

    name = "none"
    max_k = 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        return DraftProposal(NO_TOKENS, None, self.name)
