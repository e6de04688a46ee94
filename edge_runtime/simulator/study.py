"""Whether the governor keeps its promises, over many random plants. Knows what is promised, not how it is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .loop import simulated
from .pilot import Constant, Governed
from .scenario import MOST_DRAFTS, Scenario, full_w, random_scenario
from .search import Best, best_constant
from .verdict import OVER_C, OVER_S, POWER_SHARE, Verdict, judged

OF_THE_BEST = 0.95
MOST_K_CHANGES = 12
"""In any minute."""
FIXED_K = 4
_MARGINAL_STRETCH = 20.0
"""Where even the best constant waits for more than so many times its steps, hardly any work fits."""
_WARM_C = 99.0
_HELD_BACK = 0.02
"""Share of the time at a lower clock from which hardware counts as throttling."""

Kind = Literal["ordinary", "marginal", "impossible"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One plant."""

    seed: int
    kind: Kind
    """Marginal: hardly any work fits within the limits. Impossible: a board without work does not keep them."""
    best: Best
    best_per_s: float
    governed: Verdict
    ungoverned: Verdict
    """Fixed K=4 without waits: what holds it back is the hardware alone."""

    @property
    def of_the_best(self) -> float:
        return self.governed.tokens_per_s / self.best_per_s if self.best_per_s else 1.0

    @property
    def of_the_ungoverned(self) -> float:
        return self.governed.tokens_per_s / max(1e-9, self.ungoverned.tokens_per_s)

    @property
    def of_the_ungoverned_within(self) -> float:
        """Of what the ungoverned makes while it keeps the limits."""
        return self.governed.tokens_per_s / max(1e-9, self.ungoverned.kept_tokens_per_s)

    @property
    def hardware_throttles(self) -> bool:
        """Whether the hardware holds the ungoverned back."""
        one = self.ungoverned
        return one.off or one.throttled_share > _HELD_BACK

    @property
    def ungoverned_holds(self) -> bool:
        """Whether the ungoverned keeps the limits all the same."""
        one = self.ungoverned
        warm = one.over_c is not None and (one.over_c > OVER_C or one.over_s > OVER_S)
        return not one.off and not warm and (one.power_share is None or one.power_share <= POWER_SHARE)


@dataclass(frozen=True, slots=True)
class Floor:
    name: str
    wanted: str
    figure: str
    """The worst of all plants that it is asked of."""
    plants: int
    failing: tuple[int, ...]
    """Seeds."""

    @property
    def held(self) -> bool:
        return not self.failing


def found(scenario: Scenario) -> Finding:
    best = _confirmed(scenario, best_constant(scenario))
    kind: Kind = "ordinary"
    if not best.idle_holds:
        kind = "impossible"
    elif best.stretch > _MARGINAL_STRETCH:
        kind = "marginal"
    return Finding(
        scenario.seed,
        kind,
        best,
        best.tokens / max(1e-9, scenario.seconds - scenario.lead_in_s),
        judged(simulated(scenario, Governed(MOST_DRAFTS))),
        judged(simulated(scenario, Constant(FIXED_K))),
    )


def _confirmed(scenario: Scenario, best: Best) -> Best:
    """By a run of the plant, where an over-current alarm is near: the search does not know at what warmth it trips."""
    if best.tokens == 0.0 or full_w(scenario.plant, best.k, _WARM_C) <= scenario.plant.hardware.over_current_w:
        return best
    made = simulated(scenario, Constant(best.k, best.stretch)).moments[-1].tokens
    return replace(best, tokens=min(best.tokens, float(made)))


def study(
    seeds: Iterable[int], seconds: float, report: Callable[[Finding], None] = lambda finding: None
) -> tuple[Finding, ...]:
    findings = []
    for seed in seeds:
        findings.append(found(random_scenario(seed, seconds)))
        report(findings[-1])
    return tuple(findings)


def floors(findings: Sequence[Finding]) -> tuple[Floor, ...]:
    possible = [one for one in findings if one.kind != "impossible"]
    ordinary = [one for one in findings if one.kind == "ordinary"]
    warm, capped = _warm(findings), _capped(findings)
    impossible = [one for one in findings if one.kind == "impossible"]
    return (
        _floor("highest temperature, of its limit", f"<= {OVER_C:g} C above", warm,
               lambda one: one.governed.over_c or 0.0, OVER_C, against_limit),
        _floor("longest time above its limit", f"<= {OVER_S:g} s", warm, lambda one: one.governed.over_s, OVER_S,
               "{:.1f} s".format),
        _floor("mean power over 10 s, of its cap", f"<= {POWER_SHARE - 1:.0%} over", capped,
               lambda one: one.governed.power_share or 0.0, POWER_SHARE, "{:.3f}".format),
        _floor("throughput, of the best constant", f">= {OF_THE_BEST:.0%}", ordinary, lambda one: one.of_the_best,
               OF_THE_BEST, "{:.3f}".format, least=True),
        _floor(f"throughput, of K={FIXED_K} alone within limits", "> 1", ordinary,
               lambda one: one.of_the_ungoverned_within, 1.0, "{:.3f}".format, least=True),
        _floor("changes of K in any minute", f"<= {MOST_K_CHANGES}", possible,
               lambda one: one.governed.most_k_changes, MOST_K_CHANGES, "{:.0f}".format),
        Floor("nothing can hold: ends in critical", "all", f"{sum(one.governed.critical_at_end for one in impossible)}",
              len(impossible), tuple(one.seed for one in impossible if not one.governed.critical_at_end)),
        Floor("the hardware never switches off", "all", f"{sum(not one.governed.off for one in possible)}",
              len(possible), tuple(one.seed for one in possible if one.governed.off)),
    )  # fmt: skip


def _floor(
    name: str, wanted: str, asked: Sequence[Finding], figure: Callable[[Finding], float], bound: float,
    form: Callable[[float], str], least: bool = False,
) -> Floor:  # fmt: skip
    figures = [(figure(one), one.seed) for one in asked]
    worst = (min if least else max)(figures, default=None)
    failing = tuple(seed for value, seed in figures if (value < bound if least else value > bound))
    return Floor(name, wanted, "-" if worst is None else form(worst[0]), len(asked), failing)


def _warm(findings: Sequence[Finding]) -> list[Finding]:
    """Those with a limit of temperature that can be kept."""
    return [one for one in findings if one.kind != "impossible" and one.governed.over_c is not None]


def _capped(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.kind != "impossible" and one.governed.power_share is not None]


def against_limit(over_c: float) -> str:
    """In words: no temperature is over its limit by less than nothing."""
    return f"{abs(over_c):.2f} C {'above' if over_c > 0.0 else 'below'}"


@dataclass(frozen=True, slots=True)
class Summary:
    plants: int
    warm: int
    """With a limit of temperature that can be kept,"""
    capped: int
    """and with such a cap of power."""
    marginal: int
    impossible: int
    of_the_best: float | None
    """Geometric mean."""
    throttled: int
    """Ordinary plants whose hardware throttles fixed K without a governor."""
    of_the_throttled: float | None
    """Geometric mean of the governor's throughput over that. No floor: it breaks limits that the governor keeps, and a
    lower clock and voltage take less energy than a wait at full clock."""
    throttled_and_slower: int
    ungoverned_breaks: int
    """Ordinary plants in which fixed K without a governor leaves the limits."""


def summed_up(findings: Sequence[Finding]) -> Summary:
    ordinary = [one for one in findings if one.kind == "ordinary"]
    throttled = [one for one in ordinary if one.hardware_throttles]
    return Summary(
        len(findings),
        len(_warm(findings)),
        len(_capped(findings)),
        sum(one.kind == "marginal" for one in findings),
        sum(one.kind == "impossible" for one in findings),
        _mean([one.of_the_best for one in ordinary]),
        len(throttled),
        _mean([one.of_the_ungoverned for one in throttled]),
        sum(one.of_the_ungoverned > 1.0 for one in throttled),
        sum(not one.ungoverned_holds for one in ordinary),
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values and min(values) > 0.0 else None
