"""How a drafter picks a token from what its head says: strategies by name. Knows no engine and no cache.

Whatever a strategy does to the draft's law, the law that it hands out is exactly the one its token was drawn from:
that, and nothing about its quality, is what keeps the text lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edge_runtime.acceptance import gumbel_pick, pick
from edge_runtime.engines.protocol import HeadOutput
from edge_runtime.errors import ConfigError
from edge_runtime.noise import gumbel
from edge_runtime.sampling import Distribution, SamplingParams, law_over_candidates

from .protocol import DraftContext


@dataclass(frozen=True, slots=True, eq=False)
class DraftToken:
    token: int
    law: Distribution | None
    """What it was drawn from; ``None``: it was not drawn (one-hot, or by the noise that the target uses too)."""
    probability: float
    """The draft's own, of this token: what predicts whether it will be kept."""


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        """A token for ``position`` by a row of a head that ran at the request's inverse temperature."""
        ...


class AsRequested:
    """Greedy where the request is, drawn by its law (or by its noise, where it is seeded) otherwise."""

    name = "as-requested"

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        if context.params.greedy:
            return _best(head, row, context)
        return _drawn(head, row, context, position, context.params)


class Greedy:
    """The draft's best token, whatever the request: right more often than a draw where the draft is sure."""

    name = "greedy"

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        return _best(head, row, context)


class TopK:
    """Drawn from the draft's ``count`` best tokens, at the request's temperature (1 where it is greedy)."""

    name = "top-k"

    def __init__(self, count: int = 4) -> None:
        """Raises ``ConfigError``."""
        if count < 1:
            raise ConfigError(f"strategy top-k:{count}: at least one token")
        self._count = count

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        params = _warm(context.params)
        narrowed = replace(params, top_k=min(params.top_k or self._count, self._count))
        return _drawn(head, row, context, position, narrowed)


class TopP:
    """Drawn from the draft's best tokens that hold this much of its mass, at the request's temperature."""

    name = "top-p"

    def __init__(self, mass: float = 0.8) -> None:
        """Raises ``ConfigError``."""
        if not 0.0 < mass <= 1.0:
            raise ConfigError(f"strategy top-p:{mass}: a mass above 0 and at most 1")
        self._mass = mass

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        params = _warm(context.params)
        return _drawn(head, row, context, position, replace(params, top_p=min(params.top_p, self._mass)))


class Beam:
    """The most probable chain that a beam of this width finds; a drafter that can go back asks for it (``search``).

    Nothing is drawn, so the chain is one-hot. Where a tree is verified, the beam's other chains stand beside it.
    """

    name = "beam"

    def __init__(self, width: int = 3) -> None:
        """Raises ``ConfigError``."""
        if width < 1:
            raise ConfigError(f"strategy beam:{width}: a width of at least 1")
        self.width = width

    def choose(self, head: HeadOutput, row: int, context: DraftContext, position: int) -> DraftToken:
        """Of a single step, which a beam of one step is."""
        return _best(head, row, context)

    def search(self, expand: Expand, most: int) -> tuple[Path, ...]:
        """Chains of ``most`` >= 1 tokens, the best first."""
        paths = [Path((), (), 0.0)]
        for _ in range(most):
            longer = []
            for path in paths:
                ids, logprobs = expand(path.tokens)
                for token, logprob in zip(ids[: self.width], logprobs[: self.width], strict=True):
                    chances = (*path.probabilities, float(np.exp(logprob)))
                    longer.append(Path((*path.tokens, int(token)), chances, path.score + float(logprob)))
            # Ties by the tokens: the same text whatever the order of the beam.
            paths = sorted(longer, key=lambda path: (-path.score, path.tokens))[: self.width]
        return tuple(paths)


@dataclass(frozen=True, slots=True)
class Path:
    """One chain of a beam."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    """[tokens] of each, given those before it."""
    score: float
    """Log-probability of the whole."""


def beside(paths: Sequence[Path], most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens and parents (see ``DraftProposal``) of the first chain and of ``most`` more tokens of the others."""
    tokens, parents = list(paths[0].tokens), list(range(-1, len(paths[0].tokens) - 1))
    nodes = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    for path in paths[1:]:
        node = -1
        for token in path.tokens:
            if (node, token) not in nodes:
                if len(tokens) == len(paths[0].tokens) + most:
                    return tuple(tokens), tuple(parents)
                nodes[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = nodes[node, token]
    return tuple(tokens), tuple(parents)


Expand = Callable[[tuple[int, ...]], tuple[Sequence[int], Sequence[float]]]
"""Drafted so far -> what may come next: ids by falling log-probability, and those."""

STRATEGIES = ("as-requested", "greedy", "top-k", "top-p", "beam")


def strategy_named(text: str) -> Strategy:
    """A name, for the last three with a number behind a colon if need be, as in ``top-k:8``. Raises ``ConfigError``."""
    name, colon, number = text.partition(":")
    try:
        if not colon:
            plain: dict[str, Callable[[], Strategy]]
            plain = {"as-requested": AsRequested, "greedy": Greedy, "top-k": TopK, "top-p": TopP, "beam": Beam}
            return plain[name]()
        if name == "top-p":
            return TopP(float(number))
        counted: dict[str, Callable[[int], Strategy]] = {"top-k": TopK, "beam": Beam}
        return counted[name](int(number))
    except (KeyError, ValueError):
        known = ", ".join(STRATEGIES[:2]) + ", top-k[:N], top-p[:MASS] and beam[:WIDTH]"
        raise ConfigError(f"strategy: {text!r} is none of {known}") from None


def _best(head: HeadOutput, row: int, context: DraftContext) -> DraftToken:
    scaled = float(head.candidate_logits[row, 0]) * context.params.inverse_temperature
    return DraftToken(int(head.argmax[row]), None, min(1.0, float(np.exp(scaled - head.logsumexp[row]))))


def _drawn(head: HeadOutput, row: int, context: DraftContext, position: int, params: SamplingParams) -> DraftToken:
    law = law_over_candidates(head.candidate_ids[row], head.candidate_logits[row], params)
    if context.seed is not None:
        token = gumbel_pick(law, gumbel(context.seed, position, law.ids))
        return DraftToken(token, None, law.prob(token))
    token = pick(law, context.uniform())
    return DraftToken(token, law, law.prob(token))


def _warm(params: SamplingParams) -> SamplingParams:
    return replace(params, temperature=1.0) if params.greedy else params
