"""Who decides K and pace of a simulated loop: the governor, with the real prices and estimates, or constants.
Knows nothing of the plant but what its steps took and what its sensors say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..budget import Activity, Budget, Limits
from ..cost import Choice, CostTable, best_k, dense_by_rows, price, under_power
from ..estimate import AcceptanceEstimate, observe
from ..governor import GovernorMemory, govern
from ..pacing import most_drafts, pace_s, uneven
from ..row_cost import CostEstimate, observe_cost
from ..telemetry.sample import Sample
from .plant import StepCost

_CHOOSE_S = 2.0
"""Between two looks at K; a real chooser looks before every step."""
_DEEPER_EVERY = 32
"""Steps between two tries of one position more than the best K."""
_COSTS_EVERY = 4
"""Steps of which one is measured: they differ little."""
_STAY = 0.03
"""A K stays while the best would gain no more than this: estimates move all the time."""
_WARM_UP = (0, 1, 2, 4, 8)
_WARM_UP_STEPS = 4
_LISTEN_S = 0.5
"""Between two calls of the governor without a sample: that nothing is heard is to be noticed too."""


@dataclass(frozen=True, slots=True)
class Took:
    """One step, as a loop sees it."""

    k: int
    accepted: int
    cost: StepCost


class Pilot(Protocol):
    budget: Budget

    def hear(self, sample: Sample | None, limits: Limits, activity: Activity, now_s: float) -> None: ...

    def k(self, now_s: float) -> int:
        """Of the next step."""
        ...

    def took(self, step: Took) -> None: ...

    def wait_s(self, step: Took) -> float:
        """Behind the step; asked again while it is waited."""
        ...


class Constant:
    """The same K and the same pace, whatever happens."""

    def __init__(self, k: int, stretch: float = 1.0) -> None:
        """``stretch``: time of a step and its wait, over that of the step."""
        self.budget = Budget()
        self._k, self._stretch = k, stretch

    def hear(self, sample: Sample | None, limits: Limits, activity: Activity, now_s: float) -> None:
        pass

    def k(self, now_s: float) -> int:
        return self._k

    def took(self, step: Took) -> None:
        pass

    def wait_s(self, step: Took) -> float:
        return (self._stretch - 1.0) * step.cost.seconds


class Governed:
    def __init__(self, k_max: int) -> None:
        self.budget = Budget()
        self.memory = GovernorMemory()
        self.chosen = 0
        """The K that was chosen last; probes left out."""
        self._k_max = k_max
        self._limits: Limits | None = None
        self._listened_s = -1.0
        self._chose_s = -1.0
        self._estimate = AcceptanceEstimate()
        self._body, self._draft, self._host = CostEstimate(), CostEstimate(), CostEstimate()
        self._steps = 0

    def hear(self, sample: Sample | None, limits: Limits, activity: Activity, now_s: float) -> None:
        if sample is None and limits is self._limits and now_s - self._listened_s < _LISTEN_S:
            return
        self._limits, self._listened_s = limits, now_s
        self.budget, self.memory = govern(self.memory, limits, sample, activity, now_s)

    def k(self, now_s: float) -> int:
        self._steps += 1
        place = (self._steps - 1) // _WARM_UP_STEPS
        if place < len(_WARM_UP):
            return most_drafts(min(_WARM_UP[place], self._k_max), self.budget)
        if now_s - self._chose_s >= _CHOOSE_S:
            self._chose_s = now_s
            self.chosen = self._choice(most_drafts(self._k_max, self.budget)).k
        k = most_drafts(self.chosen, self.budget)
        if self._steps % _DEEPER_EVERY == 0 and k < most_drafts(self._k_max, self.budget):
            return k + 1
        return k

    def took(self, step: Took) -> None:
        self._estimate = observe(self._estimate, step.k, step.accepted)
        if self._steps % _COSTS_EVERY == 0 or self._steps <= _WARM_UP_STEPS * len(_WARM_UP):
            self._body = observe_cost(self._body, step.k + 1, step.cost.body_s)
            self._host = observe_cost(self._host, 1, step.cost.host_s)
            if step.k:
                self._draft = observe_cost(self._draft, 1, step.cost.draft_s / step.k)

    def wait_s(self, step: Took) -> float:
        return uneven(pace_s(step.cost.seconds, step.k + 1, step.k, self.budget), self._steps)

    def _choice(self, k_max: int) -> Choice:
        table = under_power(self._table(), self.budget.power)
        rates = self._estimate.rates(max(1, k_max))
        best = best_k(rates, table, k_max)
        if best.k == self.chosen or self.chosen > k_max:
            return best
        stay = price(self.chosen, rates, table)
        return stay if stay.tokens_per_s * (1.0 + _STAY) > best.tokens_per_s else best

    def _table(self) -> CostTable:
        return CostTable(
            body_s=dense_by_rows(self._body.measured()),
            head_s=(0.0,),
            draft_s=self._draft.measured().get(1, 0.0),
            overhead_s=self._host.measured().get(1, 0.0),
        )
