"""Acceptance and cost learnt from steps, and the K they lead to. Knows no clock, no engine, no request.

Everything is frozen state and a function from state to state. What keeps the estimates honest: a position
counts as tried only if all before it were accepted (a fully accepted draft is censored), medians stand in for
means, and a parked decoder pays for its probes from a fixed share of its own time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edge_runtime.cost import Choice, CostTable, HeadMode, best_k, price, step_seconds


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """Exponentially weighted counts per draft position, with pseudo-counts in front of them."""

    accepted: tuple[float, ...] = ()
    """[positions seen]"""
    tried: tuple[float, ...] = ()
    """[positions seen]"""
    prior_mean: float = 0.6
    """Of the first position, before anything was seen."""
    prior_weight: float = 2.0
    """In trials; it gives way as trials fill the memory, or a draft that always fails would look better."""
    keep: float = 0.96
    """Weight left to the counts of a position by each new trial of it: a memory of 1 / (1 - keep) trials."""
    fade: float = 0.995
    """The same by each step that did not reach the position."""
    deeper: float = 0.97
    """Acceptance of a position that was never tried, relative to the one before it."""

    def rates(self, count: int) -> list[float]:
        """[count] chance of acceptance by position; the prior of each is its predecessor's, discounted."""
        rates: list[float] = []
        prior = self.prior_mean
        for position in range(count):
            if position < len(self.tried):
                tried = self.tried[position]
                weight = self.prior_weight * max(0.0, 1.0 - (1.0 - self.keep) * tried)
                prior = (self.accepted[position] + weight * prior) / (tried + weight)
            rates.append(prior)
            prior *= self.deeper
        return rates


def observe(state: AcceptanceEstimate, drafted: int, accepted: int, weight: float = 1.0) -> AcceptanceEstimate:
    """After a step that kept ``accepted`` of ``drafted``. Raises ``ValueError`` when the two do not fit.

    ``weight`` is ``KDecision.weight``: as many trials as this one stands for. A step that the end of the text
    cut short is told with its draft as far as it was judged.
    """
    if not 0 <= accepted <= drafted:
        raise ValueError(f"accepted {accepted} of {drafted} drafted tokens")
    if drafted == 0:
        return state
    reached = min(accepted + 1, drafted)
    kept, tried = list(state.accepted), list(state.tried)
    missing = reached - len(tried)
    kept += [0.0] * missing
    tried += [0.0] * missing
    keep = state.keep**weight
    trials = (1.0 - keep) / (1.0 - state.keep)  # of ``weight`` equal trials in a row
    for position in range(len(tried)):
        if position < reached:
            kept[position] = kept[position] * keep + trials * (position < accepted)
            tried[position] = tried[position] * keep + trials
        else:
            kept[position] *= state.fade
            tried[position] *= state.fade
    return replace(state, accepted=tuple(kept), tried=tuple(tried))


@dataclass(frozen=True, slots=True)
class KPolicy:
    """Settings of the measured policy."""

    park_below: float = 1.0
    """Park when the best draft gains less than this over plain decoding."""
    resume_above: float = 1.05
    """Draft again when it gains more; the gap is the hysteresis."""
    patience: float = 1.0
    """Plain steps that doubtful drafts may be expected to lose before they park."""
    probe_budget: float = 0.01
    """Share of the time that probes may cost, as if none of their tokens were kept."""
    catch_up_limit: float = 0.015
    """Share of plain decoding above which feeding a parked draft's cache, and so probing, is not worth it."""
    backoff: float = 2.0
    """Growth of the wait after a probe that was rejected."""
    longest_wait: int = 256
    """Steps between two probes at most, unless the budget asks for more."""
    probe_weight: float = 3.0
    """Trials that a probe counts as: it stands for the tokens since the last, and old evidence gives way."""
    saved_probes: float = 8.0
    """Probes that may be saved up, to follow a promising one at once."""
    deeper_every: int = 16
    """Steps between two tries of one position more than the best K."""


@dataclass(frozen=True, slots=True)
class KState:
    """Memory of ``choose_k`` between steps."""

    parked: bool = False
    doubt_s: float = 0.0
    """Seconds that drafting is expected to have lost since it last looked worth it."""
    saved_s: float = 0.0
    """Seconds that probes may still spend."""
    wait: int = 0
    """Steps before the next probe."""
    last_wait: int = 0
    """What a rejected probe multiplies."""
    probed_from: float | None = None
    """Accepted count of the first position when the last probe went out; ``None`` once it was judged."""


@dataclass(frozen=True, slots=True)
class KDecision:
    k: int
    head_mode: HeadMode
    reason: str
    """For the status, the log and the metrics."""
    state: KState
    weight: float = 1.0
    """For ``observe``."""


def choose_k(
    estimate: AcceptanceEstimate, table: CostTable, k_max: int, state: KState, policy: KPolicy | None = None
) -> KDecision:
    """The measured policy; called once before each step, with ``estimate`` up to the step before.

    ``k_max`` is what the request and the budget leave. Probes stay under ``probe_budget`` of all time.
    """
    policy = policy or KPolicy()
    if k_max <= 0:
        return KDecision(0, "batched", "K=0: no room to draft", state)
    rates = estimate.rates(k_max)
    best = best_k(rates, table, k_max, k_min=1)
    if state.parked:
        state = _judge_probe(estimate, table, state, policy)
        if best.gain > policy.resume_above:
            state = KState(wait=policy.deeper_every)
    elif best.gain < policy.park_below:
        plain_s = step_seconds(0, table)
        doubt_s = state.doubt_s + best.step_s - best.expected_tokens * plain_s
        parked = doubt_s > policy.patience * plain_s
        state = KState(parked=True) if parked else replace(state, doubt_s=doubt_s)
    elif state.doubt_s > 0.0:
        state = replace(state, doubt_s=0.0)
    if state.parked:
        return _parked_step(estimate, table, best, state, policy)
    return _drafting_step(rates, table, best, k_max, state, policy)


def _probe_extra_s(table: CostTable) -> float:
    """What a probe of K=1 costs above a plain step."""
    return max(0.0, step_seconds(1, table) - step_seconds(0, table))


def _judge_probe(estimate: AcceptanceEstimate, table: CostTable, state: KState, policy: KPolicy) -> KState:
    """After a kept probe the next may follow once it can be paid, after a rejected one the wait grows."""
    if state.probed_from is None:
        return state
    if estimate.accepted and estimate.accepted[0] > state.probed_from:
        return replace(state, probed_from=None, wait=0, last_wait=0)
    refill = _probe_extra_s(table) / (policy.probe_budget * step_seconds(0, table))
    wait = math.ceil(max(min(state.last_wait * policy.backoff, policy.longest_wait), refill))
    return replace(state, probed_from=None, wait=wait, last_wait=wait)


def _parked_step(
    estimate: AcceptanceEstimate, table: CostTable, best: Choice, state: KState, policy: KPolicy
) -> KDecision:
    plain_s = step_seconds(0, table)
    extra_s = _probe_extra_s(table)
    why = f"K={best.k} would give {best.gain:.2f}x"
    if table.catch_up_s > policy.catch_up_limit * plain_s:
        share = f"{100.0 * table.catch_up_s / plain_s:.1f}%"
        return KDecision(0, "batched", f"parked: {why}; keeping the draft warm would cost {share}", state)
    if state.wait <= 0 and state.saved_s >= extra_s:
        from_count = estimate.accepted[0] if estimate.accepted else 0.0
        spent = replace(state, saved_s=state.saved_s - extra_s, probed_from=from_count)
        return KDecision(1, "batched", f"probe: K=1, parked because {why}", spent, policy.probe_weight)
    saved_s = min(state.saved_s + policy.probe_budget * plain_s, policy.saved_probes * extra_s)
    state = replace(state, saved_s=saved_s, wait=max(0, state.wait - 1))
    return KDecision(0, "batched", f"parked: {why}", state)


def _drafting_step(
    rates: Sequence[float], table: CostTable, best: Choice, k_max: int, state: KState, policy: KPolicy
) -> KDecision:
    saved_s = state.saved_s + policy.probe_budget * best.step_s
    if best.k < k_max:
        further = price(best.k + 1, rates, table)
        extra_s = max(0.0, further.step_s - best.step_s)
        if state.wait <= 0 and state.saved_s >= extra_s:
            spent = replace(state, saved_s=state.saved_s - extra_s, wait=policy.deeper_every)
            return KDecision(further.k, further.head_mode, f"probe: K={further.k}, best is {best.k}", spent)
        saved_s = min(saved_s, policy.saved_probes * extra_s)
    state = replace(state, saved_s=min(saved_s, best.step_s), wait=max(0, state.wait - 1))
    return KDecision(best.k, best.head_mode, f"K={best.k}: expected {best.gain:.2f}x", state)


Task = Literal["general", "chat", "summary"]


def fixed_length(k: int, k_max: int) -> int:
    """Named policy ``fixed``: always the same K, as far as there is room."""
    return max(0, min(k, k_max))


def prompt_length(prompt_tokens: int, k_max: int, task: Task = "general") -> int:
    """Named policy ``prompt-length`` of the first source article: shorter drafts behind longer prompts."""
    wanted = {"general": max(20, min(80, 100 - prompt_tokens // 10)), "chat": 30, "summary": 60}
    return max(0, min(wanted[task], k_max))


_WINDOW = 5
_OUTLIER = 3.0


@dataclass(frozen=True, slots=True)
class RowCost:
    """Seconds at one row count."""

    level_s: float
    recent_s: tuple[float, ...]
    """[<= 5] latest samples that counted."""
    strays_s: tuple[float, ...] = ()
    """[< 5] outliers since the last sample that counted; as many in a row are a new level, not noise."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """An exponentially weighted level of medians of five, per row count, for one part of a step."""

    by_rows: tuple[RowCost | None, ...] = ()
    """[rows seen] for 1, 2, ... rows; ``None`` where nothing was measured."""
    weight: float = 0.2
    """Of a new median."""

    def measured(self) -> dict[int, float]:
        """Rows -> seconds, for ``cost.dense_by_rows``."""
        return {rows: cost.level_s for rows, cost in enumerate(self.by_rows, start=1) if cost is not None}


def observe_cost(state: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    """After a forward, a head call or a draft of ``rows`` that took ``seconds``. Raises ``ValueError``.

    A sample above three times the level is dropped; five such in a row (a clock that fell) become the level.
    """
    if rows < 1 or not (math.isfinite(seconds) and seconds > 0.0):
        raise ValueError(f"a cost needs rows >= 1 and seconds > 0, not {rows} and {seconds}")
    by_rows = list(state.by_rows)
    by_rows += [None] * (rows - len(by_rows))
    by_rows[rows - 1] = _updated(by_rows[rows - 1], seconds, state.weight)
    return replace(state, by_rows=tuple(by_rows))


def _updated(cost: RowCost | None, seconds: float, weight: float) -> RowCost:
    if cost is None:
        return RowCost(seconds, (seconds,))
    if seconds > _OUTLIER * cost.level_s:
        strays = (*cost.strays_s, seconds)
        if len(strays) < _WINDOW:
            return replace(cost, strays_s=strays)
        return RowCost(statistics.median(strays), strays)
    recent = (*cost.recent_s, seconds)[-_WINDOW:]
    median = statistics.median(recent)
    level_s = median if len(recent) < _WINDOW else cost.level_s + weight * (median - cost.level_s)
    return RowCost(level_s, recent)
