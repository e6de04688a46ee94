"""Which source drafts the next step, and how much: by expected gain. Pure; knows no drafter, no engine and no clock.

Every source (a drafter, with how much it has to go by) has an estimate of its own. The one that is expected to gain
most runs; sources that lose park, each with its reason, and one budget for all of them pays for looking again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .cost import Choice, CostTable, HeadMode, best_k, price, step_seconds
from .estimate import AcceptanceEstimate, observe
from .feeding import Fed, Feeding
from .ledger import Ledger, affordable_k

_SPREAD = 16
"""Steps that pay for feeding a draft what it lacks, where sources are compared."""
_MOST_SAVED = 4.0
"""Plain steps that probes may save up."""
_TOLD = 2
"""Parked sources that a reason names."""


@dataclass(frozen=True, slots=True)
class KPolicy:
    """Settings of the choice."""

    park_below: float = 1.0
    """Park when the best draft gains less than this over plain decoding."""
    resume_above: float = 1.05
    """Draft again when it gains more; the gap is the hysteresis."""
    patience: float = 1.0
    """Plain steps that doubtful drafts may be expected to lose before they park."""
    probe_budget: float = 0.01
    """Share of the time that probes may cost, as if none of their tokens were kept."""
    won_share: float = 0.02
    """Share of what drafting has won that probes may cost as well."""
    sure: float = 0.75
    """Acceptance of the first token that a free offer needs while the text could not afford to fail twice: a better
    one often follows at the next step, and a text that is out of credit drafts nothing for long."""
    backoff: float = 2.0
    """Growth of the wait after a probe that was rejected."""
    longest_wait: int = 256
    """Steps between two probes at most, unless the budget asks for more."""
    probe_weight: float = 3.0
    """Trials that a probe counts as: it stands for the tokens since the last, and old evidence gives way."""
    deeper_every: int = 16
    """Steps between two tries of one position more than the best K."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """Memory of one source between the steps of a text."""

    parked: bool = False
    doubt_s: float = 0.0
    """Seconds that it is expected to have lost since it last looked worth it."""
    due: int = 0
    """Step of the text before which it is not probed."""
    wait: int = 0
    """What a rejected probe multiplies."""
    probing: bool = False
    """Whether its last draft was a probe that is not judged yet."""


@dataclass(frozen=True, slots=True)
class TextChoice:
    """What all sources of a text share."""

    step: int = 0
    saved_s: float = 0.0
    """Seconds that probes may still spend."""
    deeper_due: int = 0
    """Step before which no position beyond the best K is tried."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source that could draft the next step."""

    key: str
    """What its estimate is kept by."""
    source: str
    estimate: AcceptanceEstimate
    table: CostTable
    """With its own costs of drafting."""
    most: int
    """Largest K that it is priced for, at least 1."""
    best: Choice
    """Its best K >= 1."""
    state: SourceState
    upfront_s: float = 0.0
    """Feeding it what it lacks."""
    charged_s: float = 0.0
    """As much of that as the ledger has to pay for."""
    going: tuple[float, ...] = ()
    """See ``cost.price``."""
    feeding: Feeding | None = None
    """What it is fed, where it has a cache."""
    free: bool = False
    """Whether it is an offer: it cost nothing, and what it goes by grows while it is right."""

    def worth(self, plain_s: float) -> float:
        """Its gain, with what it lacks spread over some steps."""
        return self.best.expected_tokens * plain_s / (self.best.step_s + self.upfront_s / _SPREAD)


@dataclass(slots=True)
class SourceMemory:
    """What is remembered of one source in one text."""

    estimate: AcceptanceEstimate
    reach: int
    """Largest K that is priced."""
    state: SourceState = field(default_factory=SourceState)
    silent_until: int = 0
    """Step before which it is not asked: it had nothing to say."""
    best: Choice | None = None
    priced: tuple[int, ...] = ()
    """Which parts ``best`` was made from, by identity."""
    made_from: tuple[object, ...] = ()
    """The parts themselves, so that their identity stays theirs."""


@dataclass(slots=True)
class Shadow:
    """An offer that was not drafted, and how far the text went along with it."""

    tokens: list[int]
    matched: int = 0

    def follow(self, committed: Sequence[int]) -> bool | None:
        """Whether it is right to its end; ``None``: so far."""
        for token in committed:
            if self.matched == len(self.tokens):
                break
            if token != self.tokens[self.matched]:
                return False
            self.matched += 1
        return True if self.matched == len(self.tokens) else None


@dataclass(slots=True)
class TextMemory:
    """What is remembered of one text; a session holds it."""

    ledger: Ledger = field(default_factory=Ledger)
    choice: TextChoice = field(default_factory=TextChoice)
    sources: dict[str, SourceMemory] = field(default_factory=dict)
    """By key; as many as there are kinds of sources."""
    shadows: dict[str, Shadow] = field(default_factory=dict)
    """By key, at most one each."""
    fed: dict[str, Fed] = field(default_factory=dict)
    """By source: what its cache has of the text."""
    resting: str = ""
    """Why the last step was a plain one, while that is not asked again."""
    rest: int = 0
    """Steps left of that."""
    granted: int = 0
    """Tokens that it may be fed without the ledger's paying."""
    offered: int = 0
    """Steps that were drafted for nothing: a model had no part in them."""
    committed: int = 0


@dataclass(frozen=True, slots=True)
class SourceDecision:
    key: str
    """Empty: a plain step."""
    source: str
    k: int
    head_mode: HeadMode
    reason: str
    text: TextChoice
    states: dict[str, SourceState]
    """Of the sources whose state changed."""
    tokens_per_s: float
    """What is expected of the step."""
    weight: float = 1.0
    """Trials that the step counts as."""


def decide(
    candidates: Sequence[Candidate], room: int, table: CostTable, text: TextChoice, ledger: Ledger, policy: KPolicy
) -> SourceDecision:
    """Called once before each step. ``room`` >= 1 is what request and context leave; ``table`` prices plain decoding.

    Worth is judged as if there were room, so that the end of a text parks nobody.
    """
    plain_s = table.plain_s
    states: dict[str, SourceState] = {}
    running, poor = [], False
    for one in candidates:
        if one.state.parked and one.best.gain > policy.resume_above:
            states[one.key] = SourceState(due=text.step)
        if not states.get(one.key, one.state).parked:
            running.append(one)
    running.sort(key=lambda one: one.worth(plain_s), reverse=True)
    chosen: tuple[Candidate, int] | None = None
    for one in running:
        state = _doubted(one, states.get(one.key, one.state), plain_s, policy)
        if state != states.get(one.key, one.state):
            states[one.key] = state
        if state.parked:
            continue
        k = _affordable(one, min(one.best.k, room), plain_s, ledger, policy)
        if k:
            chosen = one, k
            break
        poor = True
    plain = Choice(0, "batched", 1.0, plain_s, 1.0 / plain_s, 1.0)
    now = plain if chosen is None else _at(chosen[0], chosen[1])
    text = stepped(text, now.step_s, plain_s, policy)
    probe = _probe(candidates, states, chosen, now, plain_s, text, ledger, policy)
    if probe is not None:
        return probe
    if chosen is None:
        reason = _parked(candidates, poor)
        return SourceDecision("", "", 0, "batched", reason, text, states, plain.tokens_per_s)
    return _drafting(chosen[0], now, room, text, states, ledger, policy)


def stepped(text: TextChoice, step_s: float, plain_s: float, policy: KPolicy) -> TextChoice:
    """One step on, whether anybody decided on it or not: its share is saved for probes."""
    saved_s = min(text.saved_s + policy.probe_budget * step_s, _MOST_SAVED * plain_s)
    return TextChoice(text.step + 1, saved_s, text.deeper_due)


def richer(text: TextChoice, won_s: float, plain_s: float, policy: KPolicy) -> TextChoice:
    """After a step that won so many seconds over plain decoding (or lost, below 0): part of it pays for probes."""
    if won_s <= 0.0:
        return text
    saved_s = min(text.saved_s + policy.won_share * won_s, _MOST_SAVED * plain_s)
    return TextChoice(text.step, saved_s, text.deeper_due)


def judged(state: SourceState, kept: bool, step: int, refill_steps: float, policy: KPolicy) -> SourceState:
    """After a step by this source: behind a probe that was kept the next may follow at once, behind a rejected one the
    wait grows."""
    if not state.probing:
        return state
    if kept:
        return replace(state, probing=False, due=step, wait=0)
    wait = math.ceil(max(min(state.wait * policy.backoff, policy.longest_wait), refill_steps))
    return replace(state, probing=False, due=step + wait, wait=wait)


def refill_steps(table: CostTable, policy: KPolicy) -> float:
    """Plain steps whose share for probes pays for one of K=1."""
    plain_s = table.plain_s
    return max(0.0, step_seconds(1, table) - plain_s) / (policy.probe_budget * plain_s)


def _affordable(one: Candidate, most: int, plain_s: float, ledger: Ledger, policy: KPolicy) -> int:
    """The largest K that the ledger allows, and that leaves enough for another try if nothing of it is kept.

    Out of credit a text drafts nothing for long, so the last try is a short one, and no offer that a better one may
    follow at once.
    """
    k = affordable_k(ledger, one.table, most, one.charged_s)
    if not k:
        return 0
    again_s = max(0.0, step_seconds(1, one.table) - plain_s)
    twice = affordable_k(ledger, one.table, k, one.charged_s + again_s)
    if twice:
        return twice
    return 0 if one.free and one.estimate.rates(1)[0] < policy.sure else 1


def _doubted(one: Candidate, state: SourceState, plain_s: float, policy: KPolicy) -> SourceState:
    if one.best.gain >= policy.park_below:
        return replace(state, doubt_s=0.0) if state.doubt_s > 0.0 else state
    doubt_s = state.doubt_s + one.best.step_s - one.best.expected_tokens * plain_s
    if doubt_s > policy.patience * plain_s:
        return SourceState(parked=True, due=state.due, wait=state.wait)
    return replace(state, doubt_s=doubt_s)


def _at(one: Candidate, k: int) -> Choice:
    return one.best if k == one.best.k else price(k, one.estimate.rates(k), one.table, one.going)


def _drafting(
    one: Candidate, now: Choice, room: int, text: TextChoice, states: dict[str, SourceState], ledger: Ledger,
    policy: KPolicy,
) -> SourceDecision:  # fmt: skip
    if now.k == one.best.k < min(one.most, room) and text.step >= text.deeper_due:
        further = price(now.k + 1, one.estimate.rates(now.k + 1), one.table)
        extra_s = max(0.0, further.step_s - now.step_s)
        if text.saved_s >= extra_s and affordable_k(ledger, one.table, further.k, one.charged_s) == further.k:
            text = replace(text, saved_s=text.saved_s - extra_s, deeper_due=text.step + policy.deeper_every)
            reason = f"probe: {one.source} K={further.k}, best is {now.k}"
            return SourceDecision(
                one.key, one.source, further.k, further.head_mode, reason, text, states, now.tokens_per_s
            )
    reason = f"{one.source} K={now.k}: expected {now.gain:.2f}x"
    if now.k < min(one.best.k, room):
        reason = f"{one.source} K={now.k} of {one.best.k}: a draft must pay first"
    return SourceDecision(one.key, one.source, now.k, now.head_mode, reason, text, states, now.tokens_per_s)


def _probe(
    candidates: Sequence[Candidate], states: dict[str, SourceState], chosen: tuple[Candidate, int] | None, now: Choice,
    plain_s: float, text: TextChoice, ledger: Ledger, policy: KPolicy,
) -> SourceDecision | None:  # fmt: skip
    """A look at the most promising of the others, where that is due and paid for: as if nothing of it were kept."""
    best: tuple[float, float, Candidate] | None = None
    for one in candidates:
        state = states.get(one.key, one.state)
        if one.free or (chosen is not None and one is chosen[0]) or state.due > text.step:
            # What an offer would have brought is seen without drafting it.
            continue
        extra_s = step_seconds(1, one.table) + one.charged_s - 1.0 / now.tokens_per_s
        # What a text begins with is for chances that look good.
        reserve_s = one.charged_s + ledger.start_steps * plain_s
        if text.saved_s < extra_s or not affordable_k(ledger, one.table, 1, reserve_s):
            continue
        hope = one.best.gain if state.parked and chosen is None else _hope(one)
        if chosen is not None and hope <= now.gain:
            continue
        if best is None or hope > best[0]:
            best = hope, extra_s, one
    if best is None:
        return None
    _, extra_s, one = best
    state = states.get(one.key, one.state)
    states[one.key] = replace(state, probing=True)
    text = replace(text, saved_s=text.saved_s - max(0.0, extra_s))
    what = f"parked because K={one.best.k} would give" if state.parked else f"K={one.best.k} is expected to give"
    reason = f"probe: {one.source} K=1, {what} {one.best.gain:.2f}x"
    weight = policy.probe_weight if state.parked else 1.0
    return SourceDecision(one.key, one.source, 1, "batched", reason, text, states, now.tokens_per_s, weight)


def _hope(one: Candidate) -> float:
    """Its gain if it turned out better than it looks: with one more success, of whole length."""
    lucky = observe(one.estimate, one.best.k, one.best.k, 2.0)
    return best_k(lucky.rates(one.most), one.table, one.most, k_min=1).gain


def _parked(candidates: Sequence[Candidate], poor: bool) -> str:
    if poor:
        return "K=0: a draft must pay first"
    best: dict[str, Choice] = {}
    for one in sorted(candidates, key=lambda one: one.best.gain, reverse=True):
        best.setdefault(one.source, one.best)
    if not best:
        return "K=0: nobody has a draft"
    told = [f"{source} parked: K={best[source].k} would give {best[source].gain:.2f}x" for source in best]
    return "; ".join(told[:_TOLD])
