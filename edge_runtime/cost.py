"""What a step yields and what it costs; the K that pays best. Knows no clock, no engine, no board.

Seconds come in as a measured table, acceptance as one chance per draft position (given that the ones before
were accepted). Source of the expected length: Leviathan et al. 2023 (arXiv 2211.17192), with an acceptance
that may differ by position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

HeadMode = Literal["batched"] | int
"""How the head reads a step's rows: all at once, or in groups of so many rows until the first rejection."""

MAX_GROUP = 4
"""Largest group tried: beyond it a group hardly ever stops early."""


def dense_by_rows(measured: Mapping[int, float]) -> tuple[float, ...]:
    """Values for rows 1..max from some measured row counts (>= 1), linear in between, flat below the first.

    Raises ``ValueError`` when nothing was measured.
    """
    known = sorted(measured)
    if not known or known[0] < 1:
        raise ValueError("a cost table needs at least one measured row count, each >= 1")
    values: list[float] = []
    for rows in range(1, known[-1] + 1):
        above = next(index for index, row in enumerate(known) if row >= rows)
        right = known[above]
        left = known[above - 1] if above else right
        share = (rows - left) / (right - left) if right > left else 0.0
        values.append(measured[left] + share * (measured[right] - measured[left]))
    return tuple(values)


def _at_rows(values: tuple[float, ...], rows: int) -> float:
    """By rows >= 1; past the table it goes on with the mean slope of its second half, never falling."""
    if rows <= len(values):
        return values[rows - 1]
    half = len(values) // 2
    run = len(values) - 1 - half
    slope = (values[-1] - values[half]) / run if run else values[-1] - values[half - 1] if half else 0.0
    return values[-1] + max(0.0, slope) * (rows - len(values))


@dataclass(frozen=True, slots=True)
class CostTable:
    """Seconds of the parts of a step, for one engine, clock and context. Raises ``ValueError``."""

    body_s: tuple[float, ...]
    """[rows measured] the target without its head, by T = 1, 2, ..."""
    head_s: tuple[float, ...]
    """[rows measured] one call of the head, by the rows it reads; (0.0,) where the body includes it."""
    draft_s: float
    """Per drafted token."""
    draft_fixed_s: float = 0.0
    """Once per step that drafts."""
    overhead_s: float = 0.0
    """Once per step: acceptance, sampling, the loop."""
    catch_up_s: float = 0.0
    """Per token that the draft did not see while parked, fed in chunks; 0 if it has no cache."""
    min_rows: int = 1
    """2 for an engine in its deterministic mode, where a lone row is run as two."""

    def __post_init__(self) -> None:
        if not self.body_s or not self.head_s or self.min_rows < 1:
            raise ValueError("a cost table needs body_s, head_s and min_rows >= 1")
        parts = (self.draft_s, self.draft_fixed_s, self.overhead_s, self.catch_up_s)
        if not all(math.isfinite(s) and s >= 0.0 for s in (*self.body_s, *self.head_s, *parts)):
            raise ValueError("costs must be finite and >= 0")
        if self.body(1) + self.head(1) + self.overhead_s <= 0.0:
            raise ValueError("a plain step must cost something")

    def body(self, rows: int) -> float:
        return _at_rows(self.body_s, max(rows, self.min_rows))

    def head(self, rows: int) -> float:
        return _at_rows(self.head_s, max(rows, self.min_rows))

    def draft(self, k: int) -> float:
        return self.draft_fixed_s + k * self.draft_s if k else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft length with its price."""

    k: int
    head_mode: HeadMode
    expected_tokens: float
    """Committed per step."""
    step_s: float
    """Expected: a head that stops early depends on the acceptance."""
    tokens_per_s: float
    gain: float
    """Tokens per second over those of plain decoding."""


def survival(acceptance: Sequence[float]) -> list[float]:
    """[K+1] chance that the first i drafts are all accepted, i = 0..K."""
    chances = [1.0]
    for chance in acceptance:
        chances.append(chances[-1] * chance)
    return chances


def expected_tokens(acceptance: Sequence[float]) -> float:
    """A(K) = 1 + sum over i of prod over j <= i of a_j, committed tokens of a step of K = len(acceptance)."""
    return sum(survival(acceptance))


def head_seconds(chances: Sequence[float], table: CostTable, head_mode: HeadMode) -> float:
    """Expected seconds of the head over K+1 rows, whose ``chances`` [K+1] of mattering are ``survival``.

    A group runs when its first row matters, that is, when every draft before it was accepted.
    """
    rows = len(chances)
    if head_mode == "batched":
        return table.head(rows)
    if head_mode < 1:
        raise ValueError(f"a group of the head needs at least one row, not {head_mode}")
    return sum(chances[first] * table.head(min(head_mode, rows - first)) for first in range(0, rows, head_mode))


def step_seconds(k: int, table: CostTable, head_mode: HeadMode = "batched", acceptance: Sequence[float] = ()) -> float:
    """Expected seconds of a step of K drafts; ``acceptance`` [>= k] matters only to a head in groups."""
    if k < 0:
        raise ValueError(f"k must be >= 0, not {k}")
    if head_mode == "batched":
        head_s = table.head(k + 1)
    else:
        if len(acceptance) < k:
            raise ValueError("a head in groups is priced by the acceptance of every draft")
        head_s = head_seconds(survival(acceptance[:k]), table, head_mode)
    return table.draft(k) + table.body(k + 1) + head_s + table.overhead_s


def price(k: int, acceptance: Sequence[float], table: CostTable) -> Choice:
    """K at its cheapest head mode. ``acceptance`` [>= k]. Equal prices go to the batched head."""
    if len(acceptance) < k:
        raise ValueError(f"K={k} needs the acceptance of {k} positions, not {len(acceptance)}")
    return _price(k, survival(acceptance[:k]), table, step_seconds(0, table))


def _price(k: int, chances: Sequence[float], table: CostTable, plain_s: float) -> Choice:
    head_mode: HeadMode = "batched"
    head_s = table.head(k + 1)
    for group in range(table.min_rows, min(k, MAX_GROUP) + 1):
        seconds = head_seconds(chances, table, group)
        if seconds < head_s:
            head_mode, head_s = group, seconds
    tokens = sum(chances)
    step_s = table.draft(k) + table.body(k + 1) + head_s + table.overhead_s
    return Choice(k, head_mode, tokens, step_s, tokens / step_s, tokens * plain_s / step_s)


def best_k(acceptance_by_position: Sequence[float], table: CostTable, k_max: int, k_min: int = 0) -> Choice:
    """The K in ``k_min``..``k_max`` with the most tokens per second; equal ones go to the smaller K.

    ``acceptance_by_position`` [n]: positions past n are taken to accept like the last one; of an empty one
    only K=0 can be priced. ``k_min`` 1 asks for the best draft even where plain decoding is faster.
    """
    known = len(acceptance_by_position)
    if not 0 <= k_min <= k_max or (k_min and not known):
        raise ValueError(f"no K to choose in {k_min}..{k_max} from {known} known positions")
    plain_s = step_seconds(0, table)
    best: Choice | None = None
    chances = [1.0]
    for k in range(k_max + 1 if known else 1):
        if k:
            chances.append(chances[-1] * acceptance_by_position[min(k, known) - 1])
        if k >= k_min:
            choice = _price(k, chances, table, plain_s)
            if best is None or choice.tokens_per_s > best.tokens_per_s:
                best = choice
    assert best is not None  # k_min is within the range
    return best


def paced_seconds(seconds: float, joules: float, idle_w: float, allowed_w: float) -> float:
    """t' = max(t, (e - P_idle t) / (P_allow - P_idle)): a step stretched until its mean power is allowed.

    ``joules`` is what the whole board draws over the step. Infinite when nothing above idle is allowed.
    """
    if allowed_w <= idle_w:
        return math.inf
    return max(seconds, (joules - idle_w * seconds) / (allowed_w - idle_w))


def speculation_gain(acceptance: float, draft_cost: float, verify_cost: float, k: int) -> float:
    """S = [(1 - a^(K+1)) / (1 - a)] / [1 + (c + v) K], for reasoning before anything is measured.

    ``draft_cost`` and the added ``verify_cost`` are per token, relative to one plain target step.
    """
    return expected_tokens([acceptance] * k) / (1.0 + (draft_cost + verify_cost) * k)
