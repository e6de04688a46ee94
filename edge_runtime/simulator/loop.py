"""A loop of decoding on a plant, faster than real time. Knows no governor beyond its pilot; draws what is accepted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ..budget import Activity, Limits, State
from .pilot import Governed, Pilot, Took
from .plant import Plant
from .scenario import Scenario

_RECORD_S = 0.25
_REST_S = 0.1
"""Longest wait before the sensors are looked at again."""


@dataclass(frozen=True, slots=True)
class Moment:
    time_s: float
    joules: float
    """Since the start, as drawn and not as read."""
    temperature_c: float
    clock_mhz: float
    k: int
    """As chosen."""
    tokens: int
    """Since the start."""
    state: State
    cap_w: float | None


@dataclass(slots=True)
class Trace:
    """What happened. The truth of the plant, which no governor sees."""

    scenario: Scenario
    moments: list[Moment] = field(default_factory=list)
    changes: list[tuple[float, State, str]] = field(default_factory=list)
    """(when, state, reason) of each change."""
    over_current_events: int = 0
    off_s: float | None = None
    """When the hardware switched itself off."""

    @property
    def off(self) -> bool:
        return self.off_s is not None


class Loop:
    def __init__(self, scenario: Scenario, pilot: Pilot) -> None:
        self._scenario, self._pilot = scenario, pilot
        self._plant = Plant(scenario.plant, scenario.seed)
        self._random = random.Random(f"acceptance {scenario.seed}")
        self._busy_s, self._rows, self._drafts, self._tokens, self._steps = 0.0, 0, 0, 0, 0
        self._limits, self._limits_end_s = scenario.limits(0.0), 0.0
        self._recorded_s = -1.0
        self._trace = Trace(scenario)

    def run(self) -> Trace:
        scenario, plant, pilot = self._scenario, self._plant, self._pilot
        while plant.time_s < scenario.lead_in_s:
            self._rest(_REST_S, False)
        while plant.time_s < scenario.seconds and not plant.off:
            if not pilot.budget.run:
                self._rest(_REST_S, True)
                continue
            k = pilot.k(plant.time_s)
            cost = plant.step(k)
            accepted = self._accepted(k)
            self._busy_s += cost.seconds
            self._rows += k + 1
            self._drafts += k
            self._steps += 1
            self._tokens += accepted + 1
            took = Took(k, accepted, cost)
            pilot.took(took)
            ended_s = plant.time_s
            self._look(True)
            while (left_s := ended_s + pilot.wait_s(took) - plant.time_s) > 1e-6 and plant.time_s < scenario.seconds:
                self._rest(min(left_s, _REST_S), True)
        while plant.time_s < scenario.seconds:
            self._rest(1.0, False)
        self._trace.over_current_events = plant.events
        return self._trace

    def _rest(self, seconds: float, waiting: bool) -> None:
        self._plant.rest(seconds)
        self._look(waiting)

    def _look(self, waiting: bool) -> None:
        plant, pilot = self._plant, self._pilot
        now_s = plant.time_s
        if plant.off and self._trace.off_s is None:
            self._trace.off_s = now_s
        if now_s >= self._limits_end_s:
            self._limits = self._limits_at(now_s)
        activity = Activity(self._busy_s, self._rows, self._drafts, self._tokens, self._steps, waiting)
        pilot.hear(plant.sample(), self._limits, activity, now_s)
        if now_s - self._recorded_s >= _RECORD_S:
            self._record(now_s)

    def _limits_at(self, now_s: float) -> Limits:
        """The same object until they change."""
        later = [since_s for since_s, _ in self._scenario.caps if since_s > now_s]
        self._limits_end_s = min(later, default=float("inf"))
        return self._scenario.limits(now_s)

    def _record(self, now_s: float) -> None:
        plant, budget, trace = self._plant, self._pilot.budget, self._trace
        self._recorded_s = now_s
        cap_mw = self._limits.power_mw
        k = self._pilot.chosen if isinstance(self._pilot, Governed) else self._pilot.k(now_s)
        trace.moments.append(
            Moment(
                now_s, plant.joules, plant.die_c, plant.clock_mhz, k, self._tokens, budget.state,
                None if cap_mw is None else cap_mw / 1e3,
            )
        )  # fmt: skip
        if not trace.changes or (budget.state, budget.reason) != trace.changes[-1][1:]:
            trace.changes.append((now_s, budget.state, budget.reason))

    def _accepted(self, k: int) -> int:
        first, decay = self._scenario.texts.at(self._plant.time_s)
        chance, accepted = first, 0
        while accepted < k and self._random.random() < chance:
            accepted += 1
            chance *= decay
        return accepted


def simulated(scenario: Scenario, pilot: Pilot) -> Trace:
    return Loop(scenario, pilot).run()
