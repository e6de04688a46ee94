"""How far a draft may be trusted: from its own probability of a token to the chance that the target keeps it.

Pure; knows no drafter and no target. A map of a few points, monotone, that starts as the identity: what a draft says of
itself is some evidence, and small drafts are too sure of themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_EDGES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95)
_CENTRES = (0.02, 0.1, 0.22, 0.4, 0.6, 0.78, 0.9, 0.98)
_PRIOR = 4.0
"""Trials that the identity counts as."""
_KEEP = 0.99
"""Weight left to a bin's counts by each new trial of it."""
_NONE = (0.0,) * len(_CENTRES)


@dataclass(frozen=True, slots=True)
class Calibration:
    kept: tuple[float, ...] = _NONE
    """[bins]"""
    tried: tuple[float, ...] = _NONE
    """[bins]"""
    levels: tuple[float, ...] = _CENTRES
    """[bins] chance at the middle of each bin, rising."""

    def chance(self, probability: float) -> float:
        """Of a token that the draft gives so much; linear between the middles of bins."""
        right = bisect_right(_CENTRES, probability)
        if right == 0:
            return self.levels[0]
        if right == len(_CENTRES):
            return self.levels[-1]
        low, high = _CENTRES[right - 1], _CENTRES[right]
        share = (probability - low) / (high - low)
        return self.levels[right - 1] + share * (self.levels[right] - self.levels[right - 1])


def calibrated(state: Calibration, confidences: Sequence[float], accepted: int) -> Calibration:
    """After a draft of such probabilities, as far as it was judged, of which ``accepted`` were kept."""
    judged = confidences[: accepted + 1]
    if not judged:
        return state
    kept, tried = list(state.kept), list(state.tried)
    for place, probability in enumerate(judged):
        index = bisect_right(_EDGES, probability)
        kept[index] = kept[index] * _KEEP + (place < accepted)
        tried[index] = tried[index] * _KEEP + 1.0
    return Calibration(tuple(kept), tuple(tried), _rising(kept, tried))


def _rising(kept: Sequence[float], tried: Sequence[float]) -> tuple[float, ...]:
    """Pool adjacent violators: the nearest rising levels, each bin weighted by its trials and the prior."""
    pools: list[tuple[float, float, int]] = []
    for centre, one_kept, one_tried in zip(_CENTRES, kept, tried, strict=True):
        weight, bins = one_tried + _PRIOR, 1
        level = (one_kept + _PRIOR * centre) / weight
        while pools and pools[-1][0] > level:
            other, other_weight, other_bins = pools.pop()
            level = (level * weight + other * other_weight) / (weight + other_weight)
            weight, bins = weight + other_weight, bins + other_bins
        pools.append((level, weight, bins))
    return tuple(level for level, _, bins in pools for _ in range(bins))
