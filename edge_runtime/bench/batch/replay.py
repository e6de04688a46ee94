"""Drafts whose fate is given: how many of a draft are kept, and how long a draft pays. Pure; knows no engine.

A text's position is guessed right or not, whoever drafts it and however long: so all ways to run the same answers
commit the same tokens, and differ in seconds alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost import CostTable, dense_by_rows, expected_tokens

Price = Callable[[int], float]
"""Seconds of a step by its rows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One session's text."""

    rate: float
    """Chance that a draft is kept, if those before it are."""
    guessed: NDArray[np.bool_]
    """[tokens] of each position."""

    def kept(self, position: int, drafts: int) -> int:
        """Of ``drafts`` tokens for the places from ``position`` on."""
        wrong = np.flatnonzero(~self.guessed[position : position + drafts])
        return int(wrong[0]) if len(wrong) else min(drafts, len(self.guessed) - position)


def answers(rates: Sequence[float], tokens: int, seed: int) -> list[Answer]:
    random = np.random.default_rng(seed)
    return [Answer(rate, random.random(tokens) < rate) for rate in rates]


def expected(rate: float, drafts: int) -> float:
    """Tokens that a step commits: those kept and one more."""
    return expected_tokens([rate] * drafts)


def lengths_alone(rates: Sequence[float], price: Price, most: int) -> list[int]:
    """For each the K with the most tokens a second of a step of its own."""
    return [max(range(most + 1), key=lambda drafts: expected(rate, drafts) / price(drafts + 1)) for rate in rates]


def lengths_together(rates: Sequence[float], price: Price, most: int) -> list[int]:
    """The K of each with the most tokens a second of all together.

    A batch's price hangs on its rows alone, so the next row is always that of the draft likeliest to be kept.
    """
    lengths = [0] * len(rates)
    best, gain = list(lengths), float(len(rates))
    fastest = gain / price(len(rates))
    for rows in range(len(rates) + 1, len(rates) * (most + 1) + 1):
        open_lanes = [lane for lane, drafts in enumerate(lengths) if drafts < most]
        lane = max(open_lanes, key=lambda one: rates[one] ** (lengths[one] + 1))
        lengths[lane] += 1
        gain += rates[lane] ** lengths[lane]
        if gain / price(rows) > fastest:
            best, fastest = list(lengths), gain / price(rows)
    return best


def uniform_length(rates: Sequence[float], price: Price, most: int) -> int:
    """The one K for all with the most tokens a second of all together."""
    return max(
        range(most + 1),
        key=lambda drafts: sum(expected(rate, drafts) for rate in rates) / price(len(rates) * (drafts + 1)),
    )


def price_of(known: dict[int, float]) -> Price:
    """From measured numbers of rows, as the chooser reckons between and beyond them."""
    return CostTable(body_s=dense_by_rows(known), head_s=(0.0,), draft_s=0.0).body
