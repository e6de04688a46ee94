"""One answer's logits, shaped: bias, penalties, a grammar's mask. Knows no engine, no draft and no judge.

The state follows the walk over a draft token by token, and is rolled back with it. A law is made from the candidates
where they provably hold all of it, and from the full row otherwise; both ways lead to the same numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .engines.protocol import Floats, Ids
from .errors import EngineError, InputError
from .sampling import Distribution, Probs, SamplingParams, law_from_logits, law_from_top
from .shaping import ShapingParams
from .text.grammar import Grammar

Mask = NDArray[np.bool_]

_GREEDY = SamplingParams(temperature=0.0)

_TRIES = 4
"""Best tokens that a grammar is asked about one by one, before it is asked for all that it allows."""


class RowLogits(Protocol):
    """What the engine says behind one token, before any shaping."""

    @property
    def candidate_ids(self) -> Ids:
        """[C] by falling logit."""
        ...

    @property
    def candidate_logits(self) -> Floats:
        """[C]"""
        ...

    def full(self) -> Floats:
        """[vocab_size]"""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What is known of a row's law without the full row."""

    ids: Ids
    """[n] tokens that may come next, by falling logit, ties by rising id; perhaps none."""
    logits: Probs
    """[n] shaped"""
    bound: float
    """No other token that may come next has a shaped logit above it."""
    total: int
    """Tokens that may come next, these included."""
    mask: Mask | None = None
    """[vocab_size] those; ``None``: all. The grammar's, void with its next call."""


class Shaper:
    """Where one answer stands: how often it has which token, and what its grammar allows next."""

    def __init__(
        self, params: ShapingParams, grammar: Grammar | None, vocab_size: int, eos_ids: Collection[int] = ()
    ) -> None:
        """Raises ``InputError`` for a biased token that the vocabulary lacks."""
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise InputError(f"logit_bias names token {token}, outside 0..{vocab_size - 1}", "logit_bias")
        self._params, self._vocab_size, self._eos_ids = params, vocab_size, frozenset(eos_ids)
        self._grammar = None if grammar is None else grammar.start()
        self._tokens: list[int] = []
        self._counts: dict[int, int] = {}
        self._shifts: dict[int, float] = {}
        """Token -> what is added to its logit; zeros are left out."""
        self._raised: set[int] = set()
        """Those of them that are above zero."""
        for token in params.logit_bias:
            self._weigh(token)

    def follow(self, token: int) -> None:
        """Go on by a token of the answer. One that ends the text is no part of what a grammar spells."""
        if self._grammar is not None and token not in self._eos_ids:
            self._grammar.accept(token)
        self._tokens.append(token)
        self._counts[token] = self._counts.get(token, 0) + 1
        self._weigh(token)

    def roll_back(self, length: int) -> None:
        """Forget tokens until so many are left."""
        dropped = self._tokens[length:]
        if not dropped:
            return
        del self._tokens[length:]
        for token in dropped:
            self._counts[token] -= 1
            if not self._counts[token]:
                del self._counts[token]
            self._weigh(token)
        spelt = sum(token not in self._eos_ids for token in dropped)
        if self._grammar is not None and spelt:
            self._grammar.rollback(spelt)

    def agree(self, answer: Ids) -> None:
        """With what is committed, whatever a step that failed left behind."""
        self.roll_back(len(answer))
        for token in answer[len(self._tokens) :].tolist():
            self.follow(token)

    def forced(self, most: int) -> list[int]:
        """Tokens that the grammar leaves no choice about; none without a grammar."""
        return [] if self._grammar is None or most < 1 else self._grammar.forced(most)[:most]

    def valid_prefix(self, tokens: list[int]) -> int:
        """How many of a draft's tokens the grammar lets come next, one after the other."""
        return len(tokens) if self._grammar is None or not tokens else self._grammar.valid_prefix(tokens)

    def best(self, row: RowLogits) -> int:
        """The most probable token; of equal ones the lowest. Raises ``EngineError`` where nothing may come next."""
        ids, logits, bound = self._known(row)
        for token, logit in zip(ids[:_TRIES].tolist(), logits[:_TRIES].tolist(), strict=True):
            if not logit > bound:
                break
            if self._grammar is None or self._grammar.allows(token):
                return int(token)
        return int(self.law(row, _GREEDY).ids[0])

    def law(self, row: RowLogits, params: SamplingParams) -> Distribution:
        """Raises ``EngineError`` where nothing may come next, or where the row is not finite."""
        known = self.known(row)
        if known.total == 1 and known.mask is not None:
            return Distribution.one_hot(int(known.mask.argmax()))
        ids, logits = known.ids, known.logits
        if len(ids) < known.total:
            above = int(np.count_nonzero(logits > known.bound))
            ids, logits = ids[:above], logits[:above]
        law = law_from_top(ids, logits, known.bound, known.total - len(ids), params) if len(ids) else None
        return self._full_law(row, known.mask, params) if law is None else law

    def known(self, row: RowLogits) -> Known:
        ids, logits, bound = self._known(row)
        if self._grammar is None:
            return Known(ids, logits, bound, self._vocab_size)
        mask = self._grammar.allowed()
        kept = mask[ids]
        return Known(ids[kept], logits[kept], bound, int(np.count_nonzero(mask)), mask)

    def logits(self, row: RowLogits, ids: Ids | None = None) -> Probs:
        """[n] shaped, of ``ids`` [n] rising (``None``: of all); the grammar is not asked."""
        full = row.full()
        logits = (full if ids is None else full[ids]).astype(np.float64)
        if self._shifts:
            places = np.fromiter(self._shifts, np.int64, len(self._shifts))
            shifts = np.fromiter(self._shifts.values(), np.float64, len(self._shifts))
            if ids is not None:
                shifted, places = places, np.minimum(ids.searchsorted(places), len(ids) - 1)
                there = ids[places] == shifted
                places, shifts = places[there], shifts[there]
            logits[places] += shifts
        return logits

    def _known(self, row: RowLogits) -> tuple[Ids, Probs, float]:
        """Ids and shaped logits, by falling logit, ties by rising id; no other token has a logit above the third."""
        ids, logits = row.candidate_ids, row.candidate_logits.astype(np.float64)
        bound = float(logits[-1])
        # Only a token that is raised can pass those in front of it; what is not raised stays below the last candidate.
        missing = self._raised.difference(ids.tolist()) if self._raised else ()
        if missing:
            outside = np.fromiter(sorted(missing), np.int64, len(missing))
            ids = np.concatenate([ids, outside])
            logits = np.concatenate([logits, row.full()[outside].astype(np.float64)])
        if self._shifts:
            logits += [self._shifts.get(token, 0.0) for token in ids.tolist()]
            order = np.lexsort((ids, -logits))
            ids, logits = ids[order], logits[order]
        return ids, logits, bound

    def _full_law(self, row: RowLogits, mask: Mask | None, params: SamplingParams) -> Distribution:
        if mask is None:
            return law_from_logits(self.logits(row), params)
        ids = np.flatnonzero(mask)
        if len(ids) == 0:
            raise EngineError("the grammar allows no token: the text cannot go on")
        law = law_from_logits(self.logits(row, ids), params)
        return Distribution(ids[law.ids], law.probs)

    def _weigh(self, token: int) -> None:
        params, count = self._params, self._counts.get(token, 0)
        shift = params.logit_bias.get(token, 0.0)
        if count:
            shift -= params.presence_penalty + params.frequency_penalty * count
        self._raised.discard(token)
        if shift:
            self._shifts[token] = shift
            if shift > 0.0:
                self._raised.add(token)
        else:
            self._shifts.pop(token, None)


def shaper_for(
    params: ShapingParams, grammar: Grammar | None, vocab_size: int, eos_ids: Sequence[int] | Collection[int]
) -> Shaper | None:
    """``None`` where nothing is shaped: such a request costs nothing more."""
    return None if params.idle and grammar is None else Shaper(params, grammar, vocab_size, eos_ids)
