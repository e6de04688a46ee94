"""Who drafts a step: the thin state around ``choice.decide``. Knows names of drafters, and what they find; no engine.

Drafters that cost nothing to ask are asked first. Whether they found anything, and on how much evidence, is what their
estimates are kept by; what others would say is known only once they were paid for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_runtime.calibration import Calibration, calibrated
from edge_runtime.choice import (
    Candidate,
    KPolicy,
    Shadow,
    SourceDecision,
    SourceMemory,
    SourceState,
    TextMemory,
    decide,
    judged,
    richer,
    stepped,
)
from edge_runtime.choice import refill_steps as steps_of_a_probe
from edge_runtime.cost import Choice, CostTable, best_k, step_seconds, stop_below
from edge_runtime.engines.protocol import Ids
from edge_runtime.estimate import AcceptanceEstimate, faded, observe, seeded
from edge_runtime.feeding import Fed, feeding

from ..session import GRAMMAR, PREDICTION, StepResult
from .costs import StepCosts
from .length import LengthPlan
from .priors import blank, first_estimate, key_of

_SEEDED = 3.0
"""Trials that what other texts showed counts as in a new one."""
_HOPE = 1.0
"""Standard errors by which a new text thinks better of a model than others showed: a few bad drafts would park it for
good, and the ledger bounds what trying costs."""
_TEXT_KEEP = 0.95
"""Of what texts showed of a model, with each new text: what is parked everywhere is hoped for again."""
_FIRST_REACH = 4
"""Largest K of a prediction before it has shown anything; it doubles with what was kept."""
_TYPICAL = 64.0
"""Tokens of an answer, before any was seen."""
_FEE = 0.5
"""Of what a model is expected to win in a text: what may be paid to feed it the prompt."""
_REST = 3
"""Plain steps that follow one without being decided on, while nobody offers anything: thinking takes time too."""
_SILENCE = 16
"""Steps for which a drafter that had nothing to say is left alone."""
_TRIALS = 2
"""Steps of each row count that are measured where no warm-up did; the first of them may set things up."""
_LOOK_SHARE, _LEAST_LOOK_SHARE = 0.01, 0.001
"""Of plain steps, for measuring again what costs are thought to be: at first, and where that was confirmed."""
_SLOW = 0.1
"""Weight of a new sample of what changes slowly."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A draft that cost nothing to make."""

    source: str
    tokens: Ids
    """[n], n >= 1"""
    evidence: int = 0

    @property
    def count(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is known of a step before it is planned."""

    room: int
    """Largest K that request and context leave."""
    length: int
    """Tokens of the text so far."""
    kv_len: int
    left: int
    """Tokens that the text may still get."""
    greedy: bool


class Chooser:
    """Among ``models``, which are paid for a draft, and whatever is offered for nothing."""

    name = "measured"

    def __init__(
        self,
        costs: StepCosts,
        models: Sequence[tuple[str, int]],
        k_max: int,
        free_k: int,
        policy: KPolicy | None = None,
        branches: int = 0,
    ) -> None:
        """``models``: name and largest K of each; ``branches``: alternatives that they may set beside a chain as well.

        ``k_max``: where the reach of an offer starts, ``free_k``: where it ends. Where ``costs`` know nothing yet, the
        first offers are tried out, and models wait for a price.
        """
        self.costs = costs
        self._models, self._k_max, self._free_k = tuple(models), k_max, free_k
        self._beside = (0, branches) if branches else (0,)
        self._names = frozenset(name for name, _ in models)
        self._policy = policy or KPolicy()
        self._records: dict[str, AcceptanceEstimate] = {}
        """By key, over all texts."""
        self._calibrations: dict[str, Calibration] = {}
        self._going: dict[str, tuple[float, ...]] = {}
        """By key: see ``cost.price``."""
        self._typical = _TYPICAL
        self._looks_s, self._look_share = 0.0, _LOOK_SHARE
        """Seconds that looking at costs again may take, and the share of plain steps that adds to them."""
        # The longest first: what its step costs bounds the rest.
        self._trials = [] if costs.known else [k_max, 1] * _TRIALS

    @property
    def free_k(self) -> int:
        """Most tokens of an offer that are of any use."""
        return self._free_k

    def calibration(self, plan: LengthPlan) -> Calibration:
        """Of the drafter that a plan names."""
        return self._calibrations.get(_plain(plan), Calibration())

    def record(self, source: str, greedy: bool, evidence: int | None = None) -> AcceptanceEstimate:
        """What texts so far showed of a source."""
        key = key_of(source, evidence, greedy)
        return self._records.get(key) or first_estimate(source, evidence, greedy)

    def choose(self, ask: Ask, offers: Sequence[Offer], memory: TextMemory) -> LengthPlan:
        """For the next step; ``memory`` is the text's, and is written to."""
        table = self.costs.table(ask.kv_len)
        if table is None:
            return LengthPlan(0, "batched", "K=0: nothing was measured yet")
        if ask.room < 1:
            return LengthPlan(0, "batched", "K=0: no room to draft")
        if self._trials and offers:
            k = max(1, min(self._trials.pop(0), offers[0].count, ask.room))
            return LengthPlan(k, "batched", f"K={k}: measuring what a step costs", source=offers[0].source)
        if memory.rest and not offers:
            memory.rest -= 1
            memory.choice = stepped(memory.choice, table.plain_s, table.plain_s, self._policy)
            self._looks_s += self._look_share * table.plain_s
            return LengthPlan(0, "batched", memory.resting)
        candidates = [self._offered(ask, offer, memory) for offer in offers]
        candidates += [
            self._model(ask, name, most, memory, beside)
            for name, most in self._models
            for beside in self._beside
            if most and not self._trials and not self._silent(name, ask.greedy, memory)
        ]
        decision = decide(candidates, ask.room, table, memory.choice, memory.ledger, self._policy)
        memory.choice = decision.text
        for key, state in decision.states.items():
            memory.sources[key].state = state
        for one, offer in zip(candidates, offers, strict=False):
            # What is not drafted is watched: whether the text goes along shows at no cost.
            if one.key != decision.key and one.key not in memory.shadows:
                memory.shadows[one.key] = Shadow(offer.tokens[: one.most].tolist())
        if not decision.k and (again := self._look_again(candidates, table, memory)) is not None:
            reason = f"probe: {again.source} K=1, what a step costs is measured again"
            decision = replace(decision, key=again.key, source=again.source, k=1, head_mode="batched", reason=reason)
        memory.rest = 0 if decision.k or offers else _REST
        if not decision.k:
            memory.resting = decision.reason
            return LengthPlan(0, "batched", decision.reason)
        memory.offered += decision.source not in self._names
        return self._plan(decision, next(one for one in candidates if one.key == decision.key), ask, memory)

    def observe(
        self, plan: LengthPlan, result: StepResult, kv_len: int, memory: TextMemory, confidences: Sequence[float] = ()
    ) -> None:
        """After the step of ``plan``, with ``kv_len`` as it was planned with."""
        model = plan.source if plan.source in self._names else ""
        self.costs.observe(result, kv_len, model)
        memory.committed += len(result.tokens)
        if result.finish_reason is not None:
            self._typical += _SLOW * (memory.committed - self._typical)
        if result.source == GRAMMAR:
            # What a grammar forces says nothing of what may be guessed, and pays for no guesses.
            memory.shadows.clear()
            return
        self._watch(result, memory)
        if plan.key:
            self._observe_source(plan, result, memory, confidences)
        table = self.costs.table(kv_len, model, plan.branches)
        if table is not None:
            # Both sides by the table: what counts is the choice, not what else the machine did meanwhile. Where an
            # alternative was taken, more was drafted than was judged.
            run = max(result.drafted, min(plan.k, result.rows - 1 - plan.branches)) if plan.branches else result.drafted
            kept = [1.0] * result.accepted + [0.0] * run
            step_s = step_seconds(run, table, result.head_mode, kept)
            step_s += max(0, result.caught_up - memory.granted) * table.catch_up_s
            plain_s = table.plain_s
            memory.ledger = memory.ledger.after(len(result.tokens), step_s, plain_s)
            won_s = len(result.tokens) * plain_s - step_s
            memory.choice = richer(memory.choice, won_s, plain_s, self._policy)
        memory.granted = 0 if result.caught_up else memory.granted

    def _look_again(self, candidates: Sequence[Candidate], table: CostTable, memory: TextMemory) -> Candidate | None:
        """Who drafts one token although nobody pays: costs that were measured in a bad moment would stay for good, for
        what nobody drafts by, nobody measures. Paid for by a share of all plain steps, and less each time."""
        self._looks_s += self._look_share * table.plain_s
        if not candidates or memory.ledger.balance_s < 0.0:
            return None
        one = min(candidates, key=lambda one: step_seconds(1, one.table) + one.upfront_s)
        takes_s = step_seconds(1, one.table) + one.upfront_s
        if one.upfront_s > table.plain_s or self._looks_s < takes_s - table.plain_s:
            return None
        self._looks_s, self._look_share = 0.0, max(0.5 * self._look_share, _LEAST_LOOK_SHARE)
        return one

    # Candidates

    def _offered(self, ask: Ask, offer: Offer, memory: TextMemory) -> Candidate:
        evidence = None if offer.source == PREDICTION else offer.evidence
        key = key_of(offer.source, evidence, ask.greedy)
        table = self.costs.table(ask.kv_len)
        assert table is not None  # asked for before
        first = _FIRST_REACH if offer.source == PREDICTION else self._k_max
        kept = self._remembered(key, memory, table, min(first, self._free_k), offer.source, evidence, ask.greedy)
        most = min(kept.reach, offer.count)
        best = self._best(key, kept, table, most)
        return Candidate(key, offer.source, kept.estimate, table, most, best, kept.state, free=True)

    def _model(self, ask: Ask, name: str, most: int, memory: TextMemory, beside: int) -> Candidate:
        key = key_of(f"{name}+{beside}" if beside else name, None, ask.greedy)
        table = self.costs.table(ask.kv_len, name, beside)
        assert table is not None  # asked for before
        kept = self._remembered(key, memory, table, most, key.split(" ")[0], None, ask.greedy)
        fed, to_come = memory.fed.get(name, Fed()), min(float(ask.left), self._typical)
        needs = feeding(fed, ask.length, table, memory.ledger.balance_s, to_come)
        best = self._best(key, kept, table, most)
        charged_s = upfront_s = needs.tokens * table.catch_up_s
        if table.window is None and not fed.upto:
            # The whole prompt is no guess's price but an entry fee: due where the answer is expected to win it back.
            # Steps that are drafted for nothing are not its own, and what is expected of it may not come true.
            share = _FEE * (1.0 - memory.offered / (memory.choice.step + 1))
            won_s = share * to_come * table.plain_s * max(0.0, 1.0 - 1.0 / best.gain)
            charged_s = 0.0 if upfront_s <= won_s else upfront_s
        going, estimate = self._going.get(key, ()), kept.estimate
        return Candidate(key, name, estimate, table, most, best, kept.state, upfront_s, charged_s, going, needs)

    def _silent(self, name: str, greedy: bool, memory: TextMemory) -> bool:
        kept = memory.sources.get(key_of(name, None, greedy))
        return kept is not None and memory.choice.step < kept.silent_until

    def _best(self, key: str, kept: SourceMemory, table: CostTable, most: int) -> Choice:
        going = self._going.get(key, ())
        # By identity: all of them are replaced, never changed.
        priced = (id(table), id(kept.estimate), id(going), most)
        if kept.best is None or kept.priced != priced:
            # Between two tables the best K does not move far.
            near = most if kept.best is None or kept.priced[0] != priced[0] else min(most, 2 * kept.best.k + 1)
            kept.best = best_k(kept.estimate.rates(near), table, near, k_min=1, going=going)
            kept.priced, kept.made_from = priced, (kept.estimate, table, going)
        return kept.best

    def _remembered(
        self,
        key: str,
        memory: TextMemory,
        table: CostTable,
        reach: int,
        source: str,
        evidence: int | None,
        greedy: bool,
    ) -> SourceMemory:
        """A source that a text has not met yet starts from what other texts showed of it."""
        kept = memory.sources.get(key)
        if kept is None:
            record = self.record(source, greedy, evidence)
            # What an offer would have brought is seen without drafting it; of a model only drafting tells.
            estimate = seeded(record, _SEEDED, _HOPE if evidence is None else 0.0)
            if evidence is None and key in self._records:
                self._records[key] = faded(record, _TEXT_KEEP)
            kept = memory.sources[key] = SourceMemory(estimate, reach)
            # What looks bad from the start must not spend what a text may lose; a probe will tell.
            best = self._best(key, kept, table, reach)
            kept.state = SourceState(parked=best.gain < self._policy.park_below)
        return kept

    def _plan(self, decision: SourceDecision, one: Candidate, ask: Ask, memory: TextMemory) -> LengthPlan:
        threshold, window = 0.0, None
        if one.source in self._names:
            if one.upfront_s and not one.charged_s:
                memory.granted = ask.length
            if one.feeding is not None:
                memory.fed[one.source], window = one.feeding.after, one.feeding.window
            worth = max(decision.tokens_per_s, 1.0 / one.table.plain_s)
            threshold = stop_below(decision.k, one.estimate.rates(1)[0], one.table, worth)
        beside = one.table.branches
        return LengthPlan(
            k=decision.k,
            head_mode=decision.head_mode,
            reason=f"{decision.reason}, {beside} beside it" if beside else decision.reason,
            stop_below=threshold,
            source=decision.source,
            key=decision.key,
            weight=decision.weight,
            branches=beside,
            window=window,
        )

    # What a step showed

    def _observe_source(
        self, plan: LengthPlan, result: StepResult, memory: TextMemory, confidences: Sequence[float]
    ) -> None:
        kept = memory.sources[plan.key]
        step = memory.choice.step
        if not result.drafted:
            kept.silent_until = step + _SILENCE
            kept.state = replace(kept.state, probing=False)
            return
        asked = result.drafted
        if (plan.stop_below > 0.0 or plan.branches) and result.kind != "ended" and result.drafted < plan.k:
            # One that stopped by itself, or left the chain for an alternative, gave up what lies behind.
            asked = plan.k
        kept.estimate = observe(kept.estimate, asked, result.accepted, plan.weight)
        record = self._records.get(plan.key) or blank(kept.estimate)
        self._records[plan.key] = observe(record, asked, result.accepted)
        if kept.state.probing:
            table = self.costs.table(0)
            wait = 0.0 if table is None else steps_of_a_probe(table, self._policy)
            kept.state = judged(kept.state, result.accepted > 0, step, wait, self._policy)
        if plan.source in self._names:
            fed = memory.fed[plan.source]
            memory.fed[plan.source] = replace(fed, upto=fed.upto + result.accepted)
            # Where alternatives stand beside a chain, where it was left says neither how far it went nor what was kept.
            chain = not plan.branches or result.accepted < result.drafted or result.drafted == plan.k
            if plan.stop_below > 0.0 and not plan.branches:
                self._went(plan.key, plan.k, result.drafted)
            if confidences and chain:
                state = self.calibration(plan)
                self._calibrations[_plain(plan)] = calibrated(state, confidences[: result.tried], result.accepted)
        elif result.accepted == result.drafted:
            kept.reach = min(max(kept.reach, 2 * result.drafted), self._free_k)

    def _watch(self, result: StepResult, memory: TextMemory) -> None:
        for key, shadow in list(memory.shadows.items()):
            right = shadow.follow(result.tokens)
            if right is None:
                continue
            del memory.shadows[key]
            tried = shadow.matched if right else shadow.matched + 1
            kept = memory.sources[key]
            kept.estimate = observe(kept.estimate, tried, shadow.matched)
            self._records[key] = observe(self._records.get(key) or blank(kept.estimate), tried, shadow.matched)

    def _went(self, key: str, k: int, drafted: int) -> None:
        going = list(self._going.get(key, ()))
        going += [going[-1] if going else 1.0] * (k - len(going))
        for place in range(1, k):
            going[place] += _SLOW * ((drafted > place) - going[place])
        # A draft that goes on has gone on before.
        for place in range(1, len(going)):
            going[place] = min(going[place], going[place - 1])
        self._going[key] = tuple(going)


def _plain(plan: LengthPlan) -> str:
    """The key without what stands beside a chain."""
    return key_of(plan.source, None, not plan.key.endswith("sampled"))
