"""Paired samples to one ratio with its interval. Pure; knows no clock and no engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
_SEED = 20240229


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios and its 95% bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True, slots=True)
class Middle:
    """Median of samples and its 95% bootstrap interval."""

    median: float
    low: float
    high: float
    count: int

    def times(self, factor: float) -> Middle:
        return Middle(factor * self.median, factor * self.low, factor * self.high, self.count)


def student(freedom: int) -> float:
    """97.5% point of Student's t, to 4% from two degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )  # fmt: skip
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


def middle(values: Sequence[float]) -> Middle:
    """Raises ``ValueError`` for none."""
    if not values:
        raise ValueError("no values have no median")
    return Middle(*_median(np.asarray(values, np.float64)), len(values))


def paired_ratio(baseline: Sequence[float], ours: Sequence[float]) -> Ratio:
    """Of seconds: above 1 means ours is faster. The pairs were measured back to back, so drift cancels.

    Raises ``ValueError`` for no pairs or unequal counts.
    """
    if not baseline or len(baseline) != len(ours):
        raise ValueError(f"{len(baseline)} and {len(ours)} samples are no pairs")
    ratios = np.asarray(baseline, np.float64) / np.asarray(ours, np.float64)
    return Ratio(*_median(ratios), len(ratios))


def _median(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """With the ends of its interval."""
    rng = np.random.default_rng(_SEED)
    medians = np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def summed(rows: Iterable[Sequence[int]]) -> list[int]:
    """Place by place, of rows of different length."""
    total: list[int] = []
    for row in rows:
        total += [0] * (len(row) - len(total))
        for place, count in enumerate(row):
            total[place] += count
    return total
