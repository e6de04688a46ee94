"""The law a request asks for, as a sparse distribution. Knows no draft, no engine, no randomness.

Filters run in the order of transformers' ``generate``: temperature, top_k, top_p, min_p. Where logits tie,
the lower token id comes first and ``top_k`` keeps exactly k (transformers keeps all that tie with the k-th).
The candidates an engine returns answer a request only when its law lives inside them; the functions here say
so, and never approximate: ``None`` means "fetch the full row".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import EngineError, InputError

Ids = NDArray[np.int64]
Probs = NDArray[np.float64]
Logits = NDArray[np.float32] | NDArray[np.float64]

GREEDY_BELOW = 1e-5
"""A lower temperature is greedy: float32 logits cannot carry it."""

MASS_SLACK = 1e-5
"""Relative doubt in a mass computed from an engine's float32 log-sum-exp."""

_FIRST_CUT = 1024
"""Tokens of a full row that are sorted before top_p asks for more."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request may ask for. Raises ``InputError``."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    min_p: float = 0.0
    """In [0, 1]; relative to the most probable token; 0 is off."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise InputError(f"temperature must be a finite number >= 0, not {self.temperature}", "temperature")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise InputError(f"top_k must be a whole number >= 0 (0 is off), not {self.top_k}", "top_k")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], not {self.top_p}", "top_p")
        if not 0.0 <= self.min_p <= 1.0:
            raise InputError(f"min_p must be in [0, 1], not {self.min_p}", "min_p")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def inverse_temperature(self) -> float:
        """What the head's log-sum-exp is asked at; 1.0 for greedy requests."""
        return 1.0 if self.greedy else 1.0 / self.temperature

    @property
    def filtered(self) -> bool:
        """False for a pure temperature law, where one logit and the log-sum-exp give a probability."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A law over tokens; ids that are absent have probability zero. Not checked here: see :meth:`of`."""

    ids: Ids
    """[n] strictly rising, n >= 1"""
    probs: Probs
    """[n] each > 0, sum 1"""

    @staticmethod
    def of(ids: Ids, weights: Probs) -> Distribution:
        """From n distinct ids in any order and weights >= 0 of any positive sum. Raises ``ValueError``."""
        ids = np.asarray(ids, dtype=np.int64)
        weights = np.asarray(weights, dtype=np.float64)
        if ids.ndim != 1 or ids.shape != weights.shape or len(np.unique(ids)) != len(ids):
            raise ValueError("a distribution needs distinct ids [n] and weights [n]")
        if not (np.isfinite(weights).all() and (weights >= 0.0).all() and weights.sum() > 0.0):
            raise ValueError("weights of a distribution must be finite, >= 0 and of positive sum")
        keep = weights > 0.0
        return _by_id(ids[keep], weights[keep])

    @staticmethod
    def one_hot(token: int) -> Distribution:
        return Distribution(np.array([token], dtype=np.int64), np.ones(1))

    def prob(self, token: int) -> float:
        index = int(self.ids.searchsorted(token))
        return float(self.probs[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def probs_at(self, ids: Ids) -> Probs:
        """[m] probabilities of any ``ids`` [m]."""
        index = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        return np.where(self.ids[index] == ids, self.probs[index], 0.0)


def probability(logit: float, logsumexp: float, params: SamplingParams) -> float:
    """Of one token under a pure temperature law.

    ``logit`` at temperature 1, ``logsumexp`` of logits * inverse temperature over the whole vocabulary.
    Raises ``ValueError`` for a greedy or a filtered request: its law is not given by these two.
    """
    if params.greedy or params.filtered:
        raise ValueError("one logit gives a probability only under a pure temperature law")
    return min(1.0, math.exp(float(logit) * params.inverse_temperature - float(logsumexp)))


def law_from_candidates(
    candidate_ids: Ids, candidate_logits: Logits, logsumexp: float, params: SamplingParams, vocab_size: int
) -> Distribution | None:
    """The exact law, or ``None`` when the candidates do not contain it.

    ``candidate_ids`` [C] and ``candidate_logits`` [C] fall by logit (ties by rising id), at temperature 1;
    ``logsumexp`` of logits * ``params.inverse_temperature`` over the whole vocabulary. It is float32 in an
    engine: where the last token of a top_p set hangs on less than ``MASS_SLACK``, the answer is ``None`` too.
    Raises ``EngineError`` when the row is not finite.
    """
    top = _finite(float(candidate_logits[0]))
    if params.greedy:
        return Distribution.one_hot(int(candidate_ids[0]))
    count = len(candidate_ids)
    limit = min(params.top_k or vocab_size, vocab_size)
    if limit < count:
        candidate_ids, candidate_logits = candidate_ids[:limit], candidate_logits[:limit]
    weights = _weights(candidate_logits, top, params)
    size = len(weights)
    by_min_p = _size_by_min_p(weights, params)
    if limit <= count:
        size = min(by_min_p, _size_by_top_p(weights.cumsum(), None, params))
    else:
        reach = size + 1  # a set that reaches past the candidates
        low = high = reach
        if params.top_p < 1.0:
            cumulative = weights.cumsum()
            least, most = _mass_bounds(cumulative, weights, limit, top, logsumexp, params)
            low = _size_by_top_p(cumulative, least, params)
            high = _size_by_top_p(cumulative, most, params)
        by_min_p = reach if by_min_p == size else by_min_p
        size = min(low, by_min_p)
        if size == reach or size != min(high, by_min_p):
            return None
    return _by_id(candidate_ids[:size], weights[:size])


def law_from_top(ids: Ids, logits: Logits, bound: float, others: int, params: SamplingParams) -> Distribution | None:
    """The exact law where ``others`` further tokens are only known to lie at ``bound`` or below, ``None`` where that
    is not enough.

    ``ids`` [n] and ``logits`` [n] fall by logit (ties by rising id), above ``bound`` if there are others; n >= 1.
    Raises ``EngineError`` when the largest logit is not finite.
    """
    top = _finite(float(logits[0]))
    if params.greedy:
        return Distribution.one_hot(int(ids[0]))
    limit = min(params.top_k or len(ids) + others, len(ids) + others)
    ids, logits = ids[:limit], logits[:limit]
    weights = _weights(logits, top, params)
    count, others = len(weights), limit - len(weights)
    by_min_p = _size_by_min_p(weights, params)
    cumulative = weights.cumsum()
    if others == 0:
        size = min(by_min_p, _size_by_top_p(cumulative, None, params))
        return _by_id(ids[:size], weights[:size])
    reach = count + 1  # a set that may reach past what is known
    highest = math.exp(min(0.0, (bound - top) * params.inverse_temperature))
    if by_min_p == count and not (params.min_p > 0.0 and highest < params.min_p):
        by_min_p = reach
    low = high = reach
    if params.top_p < 1.0:
        least = float(cumulative[-1])
        low = _size_by_top_p(cumulative, least * (1.0 - MASS_SLACK), params)
        high = _size_by_top_p(cumulative, (least + others * highest) * (1.0 + MASS_SLACK), params)
    size = min(low, by_min_p)
    if size == reach or size != min(high, by_min_p):
        return None
    return _by_id(ids[:size], weights[:size])


def law_over_candidates(candidate_ids: Ids, candidate_logits: Logits, params: SamplingParams) -> Distribution:
    """The law as if the candidates ([C], by falling logit) were the whole vocabulary.

    For a draft: any law may propose, so long as it is the one the draft token was drawn from.
    """
    law = law_from_candidates(candidate_ids, candidate_logits, 0.0, params, len(candidate_ids))
    assert law is not None  # C candidates always contain a vocabulary of C
    return law


def law_from_logits(logits: Logits, params: SamplingParams) -> Distribution:
    """The exact law from a full row [vocab_size] at temperature 1.

    Masked tokens are -inf. Raises ``EngineError`` when the row holds NaN, +inf, or nothing but -inf.
    """
    top = _finite(float(logits.max()))
    if params.greedy:
        return Distribution.one_hot(int(logits.argmax()))
    vocab_size = len(logits)
    limit = min(params.top_k or vocab_size, vocab_size)
    if limit == vocab_size and params.top_p >= 1.0:
        weights = _weights(logits, top, params)
        ids = np.flatnonzero(weights >= params.min_p if params.min_p > 0.0 else weights > 0.0)
        return _normalised(ids, weights[ids])
    total = float(_weights(logits, top, params).sum()) if limit == vocab_size > _FIRST_CUT else None
    cut = limit if total is None else _FIRST_CUT
    while True:
        ids = _falling(logits, cut)
        weights = _weights(logits[ids], top, params)
        size = _size_by_top_p(weights.cumsum(), total, params)
        if size <= cut or cut == vocab_size:
            break
        cut = min(16 * cut, vocab_size)
    size = min(size, cut)  # rounding may leave even all tokens short of top_p
    size = min(size, _size_by_min_p(weights, params))
    return _by_id(ids[:size], weights[:size])


def _finite(top: float) -> float:
    if not math.isfinite(top):
        raise EngineError(f"the largest logit of a row is {top}: the engine's output is not usable")
    return top


def _weights(logits: Logits, top: float, params: SamplingParams) -> Probs:
    """Probabilities relative to that of the most probable token."""
    weights = logits.astype(np.float64)
    weights -= top
    weights *= params.inverse_temperature
    return np.exp(weights, out=weights)


def _size_by_top_p(cumulative: Probs, total: float | None, params: SamplingParams) -> int:
    """Length of the smallest prefix whose mass reaches top_p of ``total`` (``None``: of all that is given).

    One more than ``cumulative`` has when it does not reach it.
    """
    size = len(cumulative)
    if params.top_p >= 1.0:
        return size
    if total is None:
        return min(size, int(cumulative.searchsorted(params.top_p * cumulative[-1])) + 1)
    return int(cumulative.searchsorted(params.top_p * total)) + 1


def _size_by_min_p(weights: Probs, params: SamplingParams) -> int:
    return int(np.count_nonzero(weights >= params.min_p)) if params.min_p > 0.0 else len(weights)


def _mass_bounds(
    cumulative: Probs, weights: Probs, limit: int, top: float, logsumexp: float, params: SamplingParams
) -> tuple[float, float]:
    """Least and most that the tokens which top_p looks at can weigh: all, or a top_k beyond C."""
    inside = float(cumulative[-1])
    # Beyond 700 exp overflows; so flat a row reaches no top_p inside the candidates.
    total = math.exp(min(700.0, float(logsumexp) - top * params.inverse_temperature))
    least = most = max(total, inside)
    if params.top_k:
        least = inside
        most = min(most, inside + (limit - len(weights)) * float(weights[-1]))
    # A float32 log-sum-exp is known to a share of itself, which a low temperature makes large.
    slack = MASS_SLACK + 2.0**-22 * abs(float(logsumexp))
    return least * (1.0 - slack), most * (1.0 + slack)


def _falling(logits: Logits, count: int) -> Ids:
    """[count] indices of the largest logits, by falling logit, ties by rising index."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, len(logits) - count)[len(logits) - count]
    above = np.flatnonzero(logits > edge)
    above = above[np.argsort(-logits[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(logits == edge)[: count - len(above)]])


def _by_id(ids: Ids, weights: Probs) -> Distribution:
    order = ids.argsort()
    return _normalised(ids[order], weights[order])


def _normalised(ids: Ids, weights: Probs) -> Distribution:
    """``ids`` [n] rising. Weights that underflowed to zero are dropped."""
    if weights.min() <= 0.0:
        keep = weights > 0.0
        ids, weights = ids[keep], weights[keep]
    return Distribution(ids, weights / weights.sum())
