"""The best constant K and pace of a plant, by search: what a governor is compared with. Knows everything of the plant.

A constant has to hold the limits themselves, at every moment; it knows beforehand what is to come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cost import expected_tokens
from .plant import resting, step_cost
from .scenario import MOST_DRAFTS, Scenario

_TICK_S = 0.5
_LONGEST_STRETCH = 40.0
"""Of the time of a step by the wait behind it; with less than that there is hardly any work."""
_COARSE, _FINE = 40, 16

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Best:
    """``stretch`` is infinite where only a board without work holds the limits."""

    k: int
    stretch: float
    tokens: float
    """In the whole run."""
    idle_holds: bool
    """Whether a board without work stays within the limits."""


def best_constant(scenario: Scenario) -> Best:
    coarse = np.geomspace(1.0, _LONGEST_STRETCH, _COARSE)
    ks = np.arange(MOST_DRAFTS + 1)
    grid = np.concatenate([np.repeat(coarse[None, :], len(ks), 0), np.full((len(ks), 1), np.inf)], 1)
    holds = _hold(scenario, grid)
    if not holds[0, -1]:
        return Best(0, np.inf, 0.0, False)
    # Between the first that holds and the one before it.
    first = np.argmax(holds, axis=1)
    if np.all(first == len(coarse)):
        return Best(0, np.inf, 0.0, True)
    low = np.where(first == 0, 1.0, grid[ks, np.maximum(first - 1, 0)])
    high = np.minimum(grid[ks, first], 2.0 * _LONGEST_STRETCH)
    fine = low[:, None] * (high / low)[:, None] ** np.linspace(0.0, 1.0, _FINE)[None, :]
    fine[:, -1] = grid[ks, first]
    within = _hold(scenario, fine)
    stretch = fine[ks, np.argmax(within, axis=1)]
    tokens = _yields(scenario) / stretch
    k = int(np.argmax(tokens))
    return Best(k, float(stretch[k]), float(tokens[k]), True)


def _steps(scenario: Scenario) -> tuple[Floats, Floats]:
    """[K] seconds and joules above idle of a step. One that trips the over-current alarm runs pulsed all the time."""
    plant = scenario.plant
    costs = []
    for k in range(MOST_DRAFTS + 1):
        cost = step_cost(plant, k, 1.0, 1.0)
        drawn_w = plant.electrics.idle_w + plant.electrics.leakage(60.0) + cost.joules / cost.seconds
        costs.append(step_cost(plant, k, 0.5, 1.0) if drawn_w > plant.hardware.over_current_w else cost)
    return np.array([cost.seconds for cost in costs]), np.array([cost.joules for cost in costs])


def _yields(scenario: Scenario) -> Floats:
    """[K] tokens of the run without waits."""
    seconds, _ = _steps(scenario)
    tokens = np.zeros(len(seconds))
    began_s = scenario.lead_in_s
    for end_s, first, decay in zip(*_stretches(scenario), strict=True):
        lasted_s = min(end_s, scenario.seconds) - began_s
        if lasted_s <= 0.0:
            continue
        chances = [first * decay**place for place in range(MOST_DRAFTS)]
        each = np.array([expected_tokens(chances[:k]) for k in range(MOST_DRAFTS + 1)])
        tokens += lasted_s / seconds * each
        began_s += lasted_s
    return tokens


def _stretches(scenario: Scenario) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    return scenario.texts.ends_s, scenario.texts.first, scenario.texts.decay


def _hold(scenario: Scenario, stretch: Floats) -> NDArray[np.bool_]:
    """[K, n] whether the limits hold through the run, for the stretches [K, n] of every K."""
    cooling, electrics = scenario.plant.cooling, scenario.plant.electrics
    seconds, joules = _steps(scenario)
    work_w = joules[:, None] / (seconds[:, None] * stretch)
    rest_c, sink_rest_c, fan_rest = resting(scenario.plant)
    die: Floats = np.full(stretch.shape, rest_c)
    sink: Floats = np.full(stretch.shape, sink_rest_c)
    fan: Floats = np.full(stretch.shape, fan_rest)
    holds = np.ones(stretch.shape, dtype=bool)
    limit_c = scenario.temperature_c
    for tick in range(int(scenario.seconds / _TICK_S)):
        now_s = tick * _TICK_S
        drawn_w = electrics.idle_w + electrics.leakage(die) + work_w * (now_s >= scenario.lead_in_s)
        inner_w, outer_w = cooling.flows(die, sink, fan)
        die = die + _TICK_S * (drawn_w - inner_w) / cooling.die_j_per_c
        sink = sink + _TICK_S * (inner_w - outer_w) / cooling.sink_j_per_c
        fan = fan + (cooling.fan_wanted(die) - fan) * (_TICK_S / (cooling.fan_lag_s + _TICK_S))
        # What has failed has failed; it must not run away.
        die = np.minimum(die, 150.0)
        cap_mw = scenario.cap_mw(now_s)
        if cap_mw is not None:
            holds &= drawn_w <= cap_mw / 1e3
        if limit_c is not None:
            holds &= die <= limit_c
    return holds
