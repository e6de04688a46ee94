"""A run in equal stretches of time, for tables and pictures. Knows neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .loop import Trace

_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Series:
    """[n] each, at the end of its stretch."""

    minutes: tuple[float, ...]
    temperature_c: tuple[float, ...]
    """The highest of the stretch."""
    power_w: tuple[float, ...]
    """The mean."""
    cap_w: tuple[float | None, ...]
    clock_mhz: tuple[float, ...]
    """The mean."""
    k: tuple[float, ...]
    """The mean."""
    tokens_per_s: tuple[float, ...]


def series(trace: Trace, stretch_s: float) -> Series:
    moments = trace.moments
    times = np.array([moment.time_s for moment in moments])
    edges = np.arange(0.0, times[-1] + 1e-9, stretch_s)
    cuts = np.searchsorted(times, edges)
    rows = []
    for first, last in pairwise(cuts):
        inside = moments[first : max(last, first + 1)]
        start, end = moments[max(0, first - 1)], inside[-1]
        seconds = max(1e-9, end.time_s - start.time_s)
        rows.append(
            (
                end.time_s / 60.0,
                max(one.temperature_c for one in inside),
                (end.joules - start.joules) / seconds,
                end.cap_w,
                sum(one.clock_mhz for one in inside) / len(inside),
                sum(one.k for one in inside) / len(inside),
                (end.tokens - start.tokens) / seconds,
            )
        )
    columns = tuple(zip(*rows, strict=True))
    return Series(*columns)


def sparkline(values: Sequence[float], low: float, high: float) -> str:
    """One character each."""
    span = max(1e-9, high - low)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * min(1.0, max(0.0, (value - low) / span)))] for value in values)
