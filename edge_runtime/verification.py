"""How the target judges a draft, row by row. Knows no drafter, no cache and no text.

A row is what the head says behind one token. Most laws live in its candidates; where one does not, the full row
is fetched, and only once a decision needs it.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from .acceptance import (
    RowDecision,
    accept_by_probability,
    greedy_row,
    gumbel_pick,
    pick,
    recover,
    threshold_row,
)
from .engines.protocol import Engine, Floats, HeadOutput, Ids
from .errors import EngineError
from .noise import gumbel, ids_above
from .sampling import Distribution, Probs, SamplingParams, law_from_candidates, law_from_logits, probability
from .session import Session, Top
from .shaper import Known, Shaper

_PLAIN = SamplingParams()

_MANY = 4096
"""Tokens of a law below which it is made as a whole: quicker than to ask all ids of the vocabulary for their noise."""

_LEAST_LOGPROB = -1e3
"""Of a draft: one that is impossible must not make a mean of nothing else."""

_ROUNDING = 1e-6
"""Of a difference of probabilities, one of them by a float32 log-sum-exp, summed over a vocabulary."""

_DRAWS = 32
"""Tries of an unfiltered residual before its law is computed in full."""


class Row:
    """One row of the last head output; of no use after the engine's next call.

    ``argmax`` and ``law`` are shaped as the request asks for it, all else is the model's.
    """

    __slots__ = ("_engine", "_full", "_head", "_index", "_scratch", "_shaper", "inverse_temperature", "logsumexp")

    def __init__(
        self,
        engine: Engine,
        head: HeadOutput,
        index: int,
        inverse_temperature: float,
        scratch: Probs,
        shaper: Shaper | None = None,
    ) -> None:
        """``head`` is usable (``refuse_unusable``). ``scratch`` [2, vocab_size] is written to. ``shaper`` stands behind
        the last token before the row."""
        self._engine, self._head, self._index, self._shaper = engine, head, index, shaper
        self._scratch = scratch
        self._full: Floats | None = None
        self.inverse_temperature = inverse_temperature
        self.logsumexp = float(head.logsumexp[index])
        """Of logits * inverse temperature over the whole vocabulary."""

    @property
    def argmax(self) -> int:
        return int(self._head.argmax[self._index]) if self._shaper is None else self._shaper.best(self)

    @property
    def vocab_size(self) -> int:
        return self._engine.info.vocab_size

    @property
    def candidate_ids(self) -> Ids:
        ids: Ids = self._head.candidate_ids[self._index]
        return ids

    @property
    def candidate_logits(self) -> Floats:
        logits: Floats = self._head.candidate_logits[self._index]
        return logits

    @property
    def gathered(self) -> float:
        """Logit of the draft token of this row."""
        assert self._head.gathered is not None  # the judge asked for it
        return float(self._head.gathered[self._index])

    @property
    def draft_logprob(self) -> float:
        """Of the draft token of this row, at the request's temperature, before any filter."""
        return max(_LEAST_LOGPROB, min(0.0, self.gathered * self.inverse_temperature - self.logsumexp))

    def full(self) -> Floats:
        """[vocab_size]"""
        if self._full is None:
            full = self._engine.logits(self._index)
            # One that is not a number is the largest as well.
            if not math.isfinite(float(full.max())):
                raise EngineError("a row of logits is not finite: the engine's output is not usable")
            self._full = full
        return self._full

    def law(self, params: SamplingParams) -> Distribution:
        if self._shaper is not None:
            return self._shaper.law(self, params)
        law = law_from_candidates(
            self.candidate_ids, self.candidate_logits, self.logsumexp, params, self._engine.info.vocab_size
        )
        return law_from_logits(self.full(), params) if law is None else law

    def known(self) -> Known:
        """What of the law the candidates hold."""
        if self._shaper is not None:
            return self._shaper.known(self)
        vocab_size = self._engine.info.vocab_size
        logits = self.candidate_logits.astype(np.float64)
        return Known(self.candidate_ids, logits, float(logits[-1]), vocab_size)

    def logits(self, ids: Ids) -> Probs:
        """[n] of ``ids`` [n] rising, shaped but for the grammar."""
        return self.full()[ids].astype(np.float64) if self._shaper is None else self._shaper.logits(self, ids)

    def logprob(self, token: int) -> float:
        """At the request's temperature, before any filter."""
        return min(0.0, self._logit(token) * self.inverse_temperature - self.logsumexp)

    def raw_logprobs(self, token: int, count: int) -> tuple[float, Top]:
        """At temperature 1: the token's own, and the best ``count`` <= C."""
        logsumexp = self.logsumexp
        if self.inverse_temperature != 1.0:
            full = self._scratch[0]
            full[...] = self.full()
            top = float(full.max())
            full -= top
            logsumexp = top + math.log(float(np.exp(full, out=full).sum()))
        ids, logits = self.candidate_ids[:count].tolist(), self.candidate_logits[:count].tolist()
        best = tuple((int(one), min(0.0, logit - logsumexp)) for one, logit in zip(ids, logits, strict=True))
        return min(0.0, self._logit(token) - logsumexp), best

    def _logit(self, token: int) -> float:
        ids = self.candidate_ids
        place = 0 if ids[0] == token else int((ids == token).argmax())
        return float(self.candidate_logits[place] if ids[place] == token else self.full()[token])

    def draw(self, uniform: float) -> tuple[int, float]:
        """A token of the unfiltered law and its probability.

        The candidates come first in the cumulative law, so that the full row is needed only when the draw
        falls behind all of them.
        """
        head, index = self._head, self._index
        logits = head.candidate_logits[index].astype(np.float64)
        cumulative = np.exp(logits * self.inverse_temperature - self.logsumexp).cumsum()
        place = int(cumulative.searchsorted(uniform, side="right"))
        if place < len(cumulative):
            return int(head.candidate_ids[index, place]), self._probability(logits[place])
        full, rest, behind = self.full(), self._probabilities(), self._scratch[1]
        rest[head.candidate_ids[index]] = 0.0
        np.cumsum(rest, out=behind)
        if behind[-1] <= 0.0:  # the candidates are everything, and rounding left a gap behind them
            return int(head.candidate_ids[index, 0]), self._probability(logits[0])
        wanted = min((uniform - cumulative[-1]) / max(1.0 - cumulative[-1], 1e-300), 1.0) * behind[-1]
        token = int(behind.searchsorted(wanted, side="right"))
        token = token if token < len(behind) else int(behind.searchsorted(behind[-1]))
        return token, self._probability(float(full[token]))

    def residual(self, uniform: float, draft: int, law: Distribution | None) -> int:
        """``acceptance.recover`` under the unfiltered law, without making that law."""
        rest, behind = self._probabilities(), self._scratch[1]
        if law is None:
            rest[draft] = 0.0
        else:
            rest[law.ids] -= law.probs
            np.maximum(rest, 0.0, out=rest)
        if np.cumsum(rest, out=behind)[-1] <= (0.0 if law is None else _ROUNDING):  # that alone led to the rejection
            np.cumsum(self._probabilities(), out=behind)
        token = int(behind.searchsorted(uniform * behind[-1], side="right"))
        return token if token < len(behind) else int(behind.searchsorted(behind[-1]))

    def _probabilities(self) -> Probs:
        """[vocab_size] of the unfiltered law, until the next call."""
        rest: Probs = self._scratch[0]
        rest[...] = self.full()
        rest *= self.inverse_temperature
        rest -= self.logsumexp
        return np.exp(rest, out=rest)

    def _probability(self, logit: float) -> float:
        return min(1.0, math.exp(float(logit) * self.inverse_temperature - self.logsumexp))


class Judge(Protocol):
    """One rule, for one request."""

    @property
    def inverse_temperature(self) -> float:
        """Of the log-sum-exp that its rows carry."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether its rows carry the logit of their draft token."""
        ...

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        """On a draft token for ``position``, drawn from ``law`` (``None``: one-hot)."""
        ...

    def draw(self, row: Row, position: int) -> int:
        """The bonus token."""
        ...


def judge_for(session: Session) -> Judge:
    shaped = session.shaper is not None
    if session.policy == "threshold":
        return _ShapedThreshold(session.threshold) if shaped else _Threshold(session.threshold)
    if session.params.greedy:
        return _GREEDY_JUDGE
    if session.seed is not None:
        return _SharedNoise(session.params, session.seed)
    if session.policy == "exact":
        # Noise that nobody shares, new for each step.
        return _SharedNoise(session.params, int(session.rng.integers(1 << 63)))
    if shaped and not session.params.filtered:
        return _ShapedRejection(session.params, session.rng)
    if session.params.filtered:
        return _Rejection(session.params, session.rng)
    return _UnfilteredRejection(session.params, session.rng)


class _Greedy:
    inverse_temperature = 1.0
    gathers = False

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        return greedy_row(row.argmax, draft)

    def draw(self, row: Row, position: int) -> int:
        return row.argmax


_GREEDY_JUDGE = _Greedy()


class _Threshold:
    """LOSSY: keeps any draft that the target gives at least the threshold (first source article)."""

    inverse_temperature = 1.0
    gathers = True

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        target_prob = min(1.0, math.exp(row.gathered - row.logsumexp))
        return threshold_row(target_prob, draft, row.argmax, self._threshold)

    def draw(self, row: Row, position: int) -> int:
        return row.argmax


class _ShapedThreshold:
    """The same on a law that one logit does not give."""

    inverse_temperature = 1.0
    gathers = False

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        return threshold_row(row.law(_PLAIN).prob(draft), draft, row.argmax, self._threshold)

    def draw(self, row: Row, position: int) -> int:
        return row.argmax


class _SharedNoise:
    """The token of a position is a function of the seed and the law: no draft can change it."""

    gathers = False

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self._params, self._seed = params, seed
        self.inverse_temperature = params.inverse_temperature

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        return greedy_row(self.draw(row, position), draft)

    def draw(self, row: Row, position: int) -> int:
        return _keyed_token(row, self._params, self._seed, position)


def _keyed_token(row: Row, params: SamplingParams, seed: int, position: int) -> int:
    """A draw from the row's law, by the noise of a (seed, position)."""
    token = None if params.filtered else _from_known(row, params.inverse_temperature, seed, position)
    if token is not None:
        return token
    target = row.law(params)
    return gumbel_pick(target, gumbel(seed, position, target.ids))


def _from_known(row: Row, inverse_temperature: float, seed: int, position: int) -> int | None:
    """The same of an unfiltered law, without making a law of the whole vocabulary; ``None``: make it.

    Another token than the known ones can win only by its noise, and how much of that it needs is known: what the best
    of them has above the bound of the others.
    """
    known = row.known()
    if not len(known.ids) or known.total < _MANY:
        return None
    ids, scores = known.ids, known.logits * inverse_temperature + gumbel(seed, position, known.ids)
    best = float(scores.max())
    if not math.isfinite(best):
        return None
    others = ids_above(best - known.bound * inverse_temperature, seed, position, row.vocab_size)
    if known.mask is not None:
        others = others[known.mask[others]]
    if len(others):
        more = row.logits(others) * inverse_temperature + gumbel(seed, position, others)
        ids, scores = np.concatenate([ids, others]), np.concatenate([scores, more])
    return int(ids[scores == scores.max()].min())


class _Rejection:
    """Maximal coupling under a law with filters."""

    gathers = False

    def __init__(self, params: SamplingParams, rng: np.random.Generator) -> None:
        self._params, self._rng = params, rng
        self.inverse_temperature = params.inverse_temperature

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        target = row.law(self._params)
        draft_prob = 1.0 if law is None else law.prob(draft)
        if accept_by_probability(target.prob(draft), draft_prob, self._rng.random()):
            return RowDecision(True, draft)
        return RowDecision(False, recover(target, law, draft, self._rng.random()))

    def draw(self, row: Row, position: int) -> int:
        return pick(row.law(self._params), self._rng.random())


class _ShapedRejection(_Rejection):
    """The same under a pure temperature law that was shaped, which as a whole is dear to make.

    To a draft that was not drawn, drawing the row's token and comparing is the same coupling.
    """

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        return greedy_row(self.draw(row, position), draft) if law is None else super().decide(row, draft, law, position)

    def draw(self, row: Row, position: int) -> int:
        return _keyed_token(row, self._params, int(self._rng.integers(1 << 63)), position)


class _UnfilteredRejection:
    """Maximal coupling under a pure temperature law, which no set of candidates contains.

    One gathered logit accepts or rejects. The residual max(target - draft, 0) is drawn without being computed:
    a token drawn from the target is kept with the share of it that the draft does not cover. Tokens come with
    the right odds whatever the number of tries, and on average a step needs one.
    """

    gathers = True

    def __init__(self, params: SamplingParams, rng: np.random.Generator) -> None:
        self._params, self._rng = params, rng
        self.inverse_temperature = params.inverse_temperature

    def decide(self, row: Row, draft: int, law: Distribution | None, position: int) -> RowDecision:
        target_prob = probability(row.gathered, row.logsumexp, self._params)
        draft_prob = 1.0 if law is None else law.prob(draft)
        if accept_by_probability(target_prob, draft_prob, self._rng.random()):
            return RowDecision(True, draft)
        return RowDecision(False, self._recover(row, draft, law))

    def _recover(self, row: Row, draft: int, law: Distribution | None) -> int:
        for _ in range(_DRAWS):
            token, target_prob = row.draw(self._rng.random())
            covered = float(token == draft) if law is None else law.prob(token)
            if self._rng.random() * target_prob < target_prob - covered:
                return token
        return row.residual(self._rng.random(), draft, law)

    def draw(self, row: Row, position: int) -> int:
        return row.draw(self._rng.random())[0]
