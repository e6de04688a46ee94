"""How many tokens to draft: named policies, each a thin shell of state around pure functions. Knows no clock.

``fixed`` and ``prompt-length`` follow a rule; ``measured`` learns what steps cost and what they yield on this
very machine, and parks the drafter where it loses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from edge_runtime.cost import CostTable, HeadMode, dense_by_rows, step_seconds
from edge_runtime.estimate import (
    AcceptanceEstimate,
    CostEstimate,
    KPolicy,
    Task,
    choose_k,
    fixed_length,
    observe,
    observe_cost,
    prompt_length,
)
from edge_runtime.ledger import TextState, affordable_k

from ..session import GRAMMAR, PREDICTION, StepResult


@dataclass(frozen=True, slots=True)
class LengthPlan:
    k: int
    head_mode: HeadMode
    reason: str
    stop_below: float = 0.0
    """See ``DraftContext``."""


class LengthPolicy(Protocol):
    @property
    def name(self) -> str: ...

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        """K in 0..``k_max``, which is what context, request and drafter leave. Called once before each step, and where
        a prediction drafts once more for that, with a ``text`` of its own.

        ``text`` is what this policy remembers of the text; it may write to it.
        """
        ...

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        """After the step, with ``kv_len`` as it was planned with."""
        ...


class FixedLength:
    name = "fixed"

    def __init__(self, k: int, head_mode: HeadMode = "batched", stop_below: float = 0.0) -> None:
        if k < 0:
            raise ValueError(f"k must be >= 0, not {k}")
        self._k, self._head_mode, self._stop_below = k, head_mode, stop_below
        self._reason = f"fixed K={k}"

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        return LengthPlan(fixed_length(self._k, k_max), self._head_mode, self._reason, self._stop_below)

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        pass


class PromptLength:
    """Of the first source article: shorter drafts behind longer prompts."""

    name = "prompt-length"

    def __init__(self, task: Task = "general") -> None:
        self._task: Task = task

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        k = prompt_length(prompt_tokens, k_max, self._task)
        return LengthPlan(k, "batched", f"K={k} for a prompt of {prompt_tokens} tokens ({self._task})")

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        pass


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Seconds of engine calls, measured by a warm-up pass."""

    body_s: Mapping[int, float]
    """By the target's rows."""
    head_s: Mapping[int, float]
    draft_s: float
    """Per drafted token; 0 for a drafter without an engine."""
    catch_up_s: float
    """Per token that a parked draft is fed."""


_LEAST_PRIOR, _MOST_PRIOR = 0.3, 0.8
"""Bounds of the acceptance that a text is assumed to have before it shows its own."""
_FIRST_REACH = 4
"""Largest K of a prediction before it has shown anything; it doubles with what was kept."""


@dataclass(slots=True)
class _Costs:
    """What the steps of one context bucket cost."""

    body: CostEstimate
    head: CostEstimate
    draft: CostEstimate
    catch_up: CostEstimate
    overhead: CostEstimate
    table: CostTable | None = None
    unread: int = 0
    """Steps observed since ``table`` was made."""


class MeasuredLength:
    """The K that commits most tokens per second, from costs and acceptance measured while decoding."""

    name = "measured"

    _TABLE_AGE = 8
    """Steps between two cost tables: estimates move slowly, and a table takes longer to make than to use."""
    _TRIALS = 3
    """Steps of each row count that are measured before the table is trusted; the first of them may set things up."""

    def __init__(
        self,
        k_max: int,
        min_rows: int = 1,
        policy: KPolicy | None = None,
        acceptance: AcceptanceEstimate | None = None,
    ) -> None:
        if k_max < 0:
            raise ValueError(f"k_max must be >= 0, not {k_max}")
        self._k_max, self._min_rows = k_max, min_rows
        self._policy = policy or KPolicy()
        self.acceptance = acceptance or AcceptanceEstimate()
        """Over all texts; each text starts from it and then has its own."""
        self.parked = False
        """Whether the last step was parked."""
        self._buckets: dict[int, _Costs] = {}
        # Largest first: what a step of K=k_max costs bounds the rest, and 1 and 2 rows are what parking asks about.
        self._to_try = [k for k in dict.fromkeys((k_max, 0, 1, k_max // 2)) if k <= k_max] * self._TRIALS

    def prime(self, costs: MeasuredCosts) -> None:
        """Costs measured before the first text: no step of it is then spent on trials."""
        known = self._costs(0)
        for rows, seconds in costs.body_s.items():
            known.body = _seen(known.body, rows, seconds)
        for rows, seconds in costs.head_s.items():
            known.head = _seen(known.head, rows, seconds)
        known.draft = _seen(known.draft, 1, costs.draft_s)
        known.catch_up = _seen(known.catch_up, 1, costs.catch_up_s)
        known.table = None
        self._to_try = []

    def table(self, kv_len: int) -> CostTable | None:
        """What is known of a context length; ``None`` before the first trials are over."""
        if self._to_try or not self._buckets:
            return None
        costs = self._costs(kv_len)
        if costs.table is None or costs.unread >= self._TABLE_AGE:
            costs.table, costs.unread = _table(costs, self._min_rows), 0
        return costs.table

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        table = self.table(kv_len)
        if table is None:
            k = min(self._to_try[0], k_max) if self._to_try else 0
            return LengthPlan(k, "batched", f"K={k}: measuring what a step costs")
        longest = self._k_max if text.free_k is None else text.free_k
        if k_max < 1 or longest < 1:
            return LengthPlan(0, "batched", "K=0: no room to draft")
        if text.acceptance is None:
            prior = self._prior() if text.free_k is None else _MOST_PRIOR
            text.acceptance = replace(AcceptanceEstimate(), prior_mean=prior)
        table, reach = _priced(table, text), self._reach(kv_len, text)
        # Decided as if there were room, and cut afterwards: the end of a text must not park the next one.
        decision = choose_k(text.acceptance, table, reach, text.k_state, self._policy)
        if text.free_k is None:
            self.parked = decision.state.parked
        text.reach = min(decision.k + 1 if text.free_k is None else max(2 * decision.k, _FIRST_REACH), longest)
        affordable = affordable_k(text.ledger, table, decision.k)
        reason = (
            decision.reason if affordable == decision.k else f"K={affordable} of {decision.k}: a draft must pay first"
        )
        k = min(affordable, k_max)
        if k == decision.k:
            text.k_state, text.weight = decision.state, decision.weight
        else:
            # A probe that does not go out costs nothing and shows nothing: only whether it is parked may change.
            text.k_state, text.weight = replace(text.k_state, parked=decision.state.parked), 1.0
        return LengthPlan(k, decision.head_mode, reason)

    def _reach(self, kv_len: int, text: TextState) -> int:
        if text.free_k is not None:
            return min(text.reach or _FIRST_REACH, text.free_k)
        return self._k_max if self._costs(kv_len).unread == 0 or text.reach is None else text.reach

    def _prior(self) -> float:
        return min(max(self.acceptance.rates(1)[0], _LEAST_PRIOR), _MOST_PRIOR)

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        # What a grammar forces says nothing of what may be guessed, and pays for no guesses.
        if result.source != GRAMMAR:
            self._observe_guesses(result, kv_len, text)
        costs, times = self._costs(kv_len), result.times
        costs.body = _seen(costs.body, result.rows, times.body_s)
        for rows, seconds in result.head_calls:
            costs.head = _seen(costs.head, rows, seconds)
        if result.drafted and result.source not in (GRAMMAR, PREDICTION):
            costs.draft = _seen(costs.draft, 1, times.draft_s / result.drafted)
        if result.caught_up:
            costs.catch_up = _seen(costs.catch_up, 1, times.catch_up_s / result.caught_up)
        costs.overhead = _seen(costs.overhead, 1, times.overhead_s)
        costs.unread += 1

    def _observe_guesses(self, result: StepResult, kv_len: int, text: TextState) -> None:
        if self._to_try and result.k == self._to_try[0]:
            self._to_try.pop(0)
        elif self._to_try and result.k < self._to_try[0]:
            # The room near the end of a text is less than the trial wants: it stays for the next one.
            self._to_try.append(self._to_try.pop(0))
        if text.free_k is None:
            self.acceptance = observe(self.acceptance, result.drafted, result.accepted)
        if text.acceptance is not None:
            text.acceptance = observe(text.acceptance, result.drafted, result.accepted, text.weight)
        table = self.table(kv_len)
        if table is not None:
            table = _priced(table, text)
            # Both sides by the table: what counts is the choice, not what else the machine did meanwhile.
            step_s = step_seconds(
                result.drafted, table, result.head_mode, [1.0] * result.accepted + [0.0] * result.drafted
            )
            step_s += result.caught_up * table.catch_up_s
            text.ledger = text.ledger.after(len(result.tokens), step_s, step_seconds(0, table))

    def _costs(self, kv_len: int) -> _Costs:
        """Buckets double in length; a new one starts from what its neighbour knows."""
        bucket = (kv_len >> 9).bit_length()
        costs = self._buckets.get(bucket)
        if costs is None:
            near = min(self._buckets, key=lambda known: abs(known - bucket), default=None)
            known = self._buckets[near] if near is not None else None
            empty = CostEstimate()
            costs = (
                _Costs(known.body, known.head, known.draft, known.catch_up, known.overhead)
                if known is not None
                else _Costs(empty, empty, empty, empty, empty)
            )
            self._buckets[bucket] = costs
        return costs


def _seen(estimate: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    # A part may be too quick for the clock; that is no measurement.
    return observe_cost(estimate, rows, seconds) if seconds > 0.0 else estimate


def _level(estimate: CostEstimate) -> float:
    return estimate.measured().get(1, 0.0)


def _priced(table: CostTable, text: TextState) -> CostTable:
    return table if text.free_k is None else replace(table, draft_s=0.0, draft_fixed_s=0.0, catch_up_s=0.0)


def _table(costs: _Costs, min_rows: int) -> CostTable | None:
    body, head = costs.body.measured(), costs.head.measured()
    if not body:
        return None
    return CostTable(
        body_s=dense_by_rows(body),
        head_s=dense_by_rows(head) if head else (0.0,),
        draft_s=_level(costs.draft),
        overhead_s=_level(costs.overhead),
        catch_up_s=_level(costs.catch_up),
        min_rows=min_rows,
    )
