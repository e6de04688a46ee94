"""Acceptance and cost learnt from steps, and lengths by a rule. Knows no clock, no engine, no request.

Everything is frozen state and a function from state to state. What keeps the estimates honest: a position
counts as tried only if all before it were accepted (a fully accepted draft is censored), and medians stand in for
means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """Exponentially weighted counts per draft position, with pseudo-counts in front of them."""

    accepted: tuple[float, ...] = ()
    """[positions seen]"""
    tried: tuple[float, ...] = ()
    """[positions seen]"""
    prior_mean: float = 0.6
    """Of the first position, before anything was seen."""
    prior_weight: float = 2.0
    """In trials; it gives way as trials fill the memory, or a draft that always fails would look better."""
    keep: float = 0.96
    """Weight left to the counts of a position by each new trial of it: a memory of 1 / (1 - keep) trials."""
    fade: float = 0.995
    """The same by each step that did not reach the position."""
    deeper: float = 0.97
    """Acceptance of a position that was never tried, relative to the one before it."""

    def rates(self, count: int) -> list[float]:
        """[count] chance of acceptance by position; the prior of each is its predecessor's, discounted."""
        rates: list[float] = []
        prior = self.prior_mean
        for position in range(count):
            if position < len(self.tried):
                tried = self.tried[position]
                weight = self.prior_weight * max(0.0, 1.0 - (1.0 - self.keep) * tried)
                prior = (self.accepted[position] + weight * prior) / (tried + weight)
            rates.append(prior)
            prior *= self.deeper
        return rates


def observe(state: AcceptanceEstimate, drafted: int, accepted: int, weight: float = 1.0) -> AcceptanceEstimate:
    """After a step that kept ``accepted`` of ``drafted``. Raises ``ValueError`` when the two do not fit.

    ``weight``: as many trials as this one stands for. A step that the end of the text
    cut short is told with its draft as far as it was judged.
    """
    if not 0 <= accepted <= drafted:
        raise ValueError(f"accepted {accepted} of {drafted} drafted tokens")
    if drafted == 0:
        return state
    reached = min(accepted + 1, drafted)
    kept, tried = list(state.accepted), list(state.tried)
    missing = reached - len(tried)
    kept += [0.0] * missing
    tried += [0.0] * missing
    keep = state.keep**weight
    trials = (1.0 - keep) / (1.0 - state.keep)  # of ``weight`` equal trials in a row
    for position in range(len(tried)):
        if position < reached:
            kept[position] = kept[position] * keep + trials * (position < accepted)
            tried[position] = tried[position] * keep + trials
        else:
            kept[position] *= state.fade
            tried[position] *= state.fade
    return replace(state, accepted=tuple(kept), tried=tuple(tried))


def faded(record: AcceptanceEstimate, keep: float) -> AcceptanceEstimate:
    """The same rates, known less well."""
    return replace(
        record, accepted=tuple(keep * one for one in record.accepted), tried=tuple(keep * one for one in record.tried)
    )


def seeded(record: AcceptanceEstimate, most: float, hope: float) -> AcceptanceEstimate:
    """What a new text starts from: the rates that others showed, counted as at most ``most`` trials of each position.

    The first one is better by ``hope`` standard errors of what is known of it.
    """
    rates = record.rates(len(record.tried))
    if rates:
        error = math.sqrt(rates[0] * (1.0 - rates[0]) / (record.tried[0] + record.prior_weight))
        rates[0] = min(1.0, rates[0] + hope * error)
    weights = [min(tried, most) for tried in record.tried]
    return AcceptanceEstimate(
        accepted=tuple(rate * weight for rate, weight in zip(rates, weights, strict=True)),
        tried=tuple(weights),
        prior_mean=rates[0] if rates else record.prior_mean,
        deeper=record.deeper,
    )


Task = Literal["general", "chat", "summary"]


def fixed_length(k: int, k_max: int) -> int:
    """Named policy ``fixed``: always the same K, as far as there is room."""
    return max(0, min(k, k_max))


def prompt_length(prompt_tokens: int, k_max: int, task: Task = "general") -> int:
    """Named policy ``prompt-length`` of the first source article: shorter drafts behind longer prompts."""
    wanted = {"general": max(20, min(80, 100 - prompt_tokens // 10)), "chat": 30, "summary": 60}
    return max(0, min(wanted[task], k_max))


@dataclass(frozen=True, slots=True)
class Climb:
    """Named policy ``confidence`` of the second source article: K stands a little above what is kept."""

    kept: float = 1.5
    """Mean accepted length of late."""

    @property
    def k(self) -> int:
        return min(_HIGHEST, int(self.kept) + 2)


_CLIMB_WEIGHT = 0.15
"""Of a new draft in the mean."""
_HIGHEST = 10


def climbed(state: Climb, accepted: int) -> Climb:
    """After a draft: K grows for as long as the mean accepted length grows with it."""
    return Climb(state.kept + _CLIMB_WEIGHT * (accepted - state.kept))
