"""What a run held and what not, by the truth of the plant. Knows no governor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .loop import Trace

WINDOW_S = 10.0
OVER_C, OVER_S = 1.0, 5.0
"""What may happen to a temperature limit,"""
POWER_SHARE = 1.03
"""and to a power cap, for they are kept by somebody who does not know the plant."""
_GRID_S = 0.25
_CHANGES_S = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    over_c: float | None
    """The most by which the temperature was over its limit, below 0 where it never was; ``None`` without a limit."""
    over_s: float
    """The longest time for which it was over the limit."""
    power_share: float | None
    """The worst mean over ten seconds, relative to that of the cap; ``None`` without a cap."""
    tokens_per_s: float
    """Since there was work."""
    kept_tokens_per_s: float
    """The same, of the tokens alone that were made while limits were kept, as far as a study asks for that."""
    joules_per_token: float | None
    k_changes_per_minute: float
    """The mean,"""
    most_k_changes: int
    """and the most in any minute."""
    throttled_share: float
    """Of the time with work: with a clock below what the mode allows."""
    over_current_events: int
    critical_at_end: bool
    off: bool


def judged(trace: Trace) -> Verdict:
    scenario, moments = trace.scenario, trace.moments
    times = np.array([moment.time_s for moment in moments])
    degrees = np.array([moment.temperature_c for moment in moments])
    working = times >= scenario.lead_in_s
    over_c, over_s = None, 0.0
    if scenario.temperature_c is not None:
        excess = degrees - scenario.temperature_c
        over_c, over_s = float(excess.max()), _longest(times, excess > 0.0)
    worked_s = max(1e-9, scenario.seconds - scenario.lead_in_s)
    joules = moments[-1].joules - moments[int(np.argmax(working))].joules
    tokens = moments[-1].tokens
    mean, most = _k_changes(trace)
    highest = scenario.plant.hardware.clocks_mhz[-1]
    slow = np.array([moment.clock_mhz < 0.999 * highest for moment in moments])
    return Verdict(
        over_c,
        over_s,
        _worst_window(trace),
        tokens / worked_s,
        _kept_tokens(trace, times, degrees) / worked_s,
        joules / tokens if tokens else None,
        mean,
        most,
        float(slow[working].mean()),
        trace.over_current_events,
        moments[-1].state == "critical",
        trace.off,
    )


def _longest(times: np.ndarray, over: np.ndarray) -> float:
    longest_s, since_s = 0.0, math.nan
    for time_s, is_over in zip(times, over, strict=True):
        if not is_over:
            since_s = math.nan
        else:
            since_s = time_s if math.isnan(since_s) else since_s
            longest_s = max(longest_s, float(time_s - since_s))
    return longest_s


def _kept_tokens(trace: Trace, times: np.ndarray, degrees: np.ndarray) -> float:
    kept = np.ones(len(times), dtype=bool)
    if trace.scenario.temperature_c is not None:
        kept &= degrees <= trace.scenario.temperature_c + OVER_C
    ends, shares = _windows(trace)
    if len(ends):
        kept &= np.interp(times, ends, shares, left=0.0) <= POWER_SHARE
    tokens = np.array([moment.tokens for moment in trace.moments])
    return float((np.diff(tokens, prepend=0) * kept).sum())


def _worst_window(trace: Trace) -> float | None:
    _, shares = _windows(trace)
    return float(shares.max()) if len(shares) else None


def _windows(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """[n] ends and [n] mean powers, relative to that of the cap, of the windows in which there was one all the time."""
    moments = trace.moments
    grid = np.arange(0.0, moments[-1].time_s, _GRID_S)
    joules = np.interp(grid, [moment.time_s for moment in moments], [moment.joules for moment in moments])
    caps = [trace.scenario.cap_mw(time_s) for time_s in grid]
    known = np.array([cap is not None for cap in caps])
    allowed = np.concatenate([[0.0], np.cumsum([(cap or 0) / 1e3 * _GRID_S for cap in caps])])[:-1]
    lack = np.concatenate([[0], np.cumsum(~known)])[:-1]
    width = round(WINDOW_S / _GRID_S)
    drawn, may = joules[width:] - joules[:-width], allowed[width:] - allowed[:-width]
    whole = lack[width:] == lack[:-width]
    return grid[width:][whole], drawn[whole] / may[whole]


def _k_changes(trace: Trace) -> tuple[float, int]:
    ks = [(moment.time_s, moment.k) for moment in trace.moments if moment.time_s >= trace.scenario.lead_in_s]
    changed = [now[0] for before, now in pairwise(ks) if now[1] != before[1]]
    minutes = max(1e-9, (ks[-1][0] - ks[0][0]) / 60.0) if ks else 1.0
    most, first = 0, 0
    for last, time_s in enumerate(changed):
        while time_s - changed[first] > _CHANGES_S:
            first += 1
        most = max(most, last - first + 1)
    return len(changed) / minutes, most
