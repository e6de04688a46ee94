"""What a step yields and what it costs; the K that pays best. Knows no clock, no engine, no board.

Seconds come in as a measured table, acceptance as one chance per draft position (given that the ones before
were accepted). Source of the expected length: Leviathan et al. 2023 (arXiv 2211.17192), with an acceptance
that may differ by position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .budget import StepPower

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
    window: int | None = None
    """Tokens from the end of a text that are enough for the draft; ``None``: it needs all."""
    min_rows: int = 1
    """2 for an engine in its deterministic mode, where a lone row is run as two."""
    branches: int = 0
    """Alternatives beside the chain that every step which drafts verifies as well; their rows are seldom read out."""
    power: StepPower | None = None
    """Steps are then priced in *paced* seconds: as long as they and the wait behind them take. See ``under_power``."""
    plain_s: float = field(init=False, repr=False)
    """One step of plain decoding: what all else is compared with, at every step."""

    def __post_init__(self) -> None:
        if not self.body_s or not self.head_s or self.min_rows < 1:
            raise ValueError("a cost table needs body_s, head_s and min_rows >= 1")
        parts = (self.draft_s, self.draft_fixed_s, self.overhead_s, self.catch_up_s)
        if not all(math.isfinite(s) and s >= 0.0 for s in (*self.body_s, *self.head_s, *parts)):
            raise ValueError("costs must be finite and >= 0")
        plain_s = self.paced(self.body(1) + self.head(1) + self.overhead_s, 0)
        if plain_s <= 0.0:
            raise ValueError("a plain step must cost something")
        object.__setattr__(self, "plain_s", plain_s)

    def body(self, rows: int) -> float:
        return _at_rows(self.body_s, max(rows, self.min_rows))

    def head(self, rows: int) -> float:
        return _at_rows(self.head_s, max(rows, self.min_rows))

    def verify(self, k: int) -> float:
        """The body over K drafts, the token before them and what stands beside them."""
        return self.body(k + 1 + self.branches if k else 1)

    def draft(self, k: int) -> float:
        return self.draft_fixed_s + k * self.draft_s if k else 0.0

    def joules(self, seconds: float, k: int) -> float | None:
        """e(K) of the whole board over a step of K drafts; ``None`` where no power is known."""
        rows = k + 1 + self.branches if k else 1
        return None if self.power is None else self.power.joules(seconds, max(rows, self.min_rows), k)

    def paced(self, seconds: float, k: int) -> float:
        """A step of K drafts with the wait that its power asks for. Where nothing is allowed nothing runs: no wait."""
        if self.power is None or self.power.allowed_w <= self.power.idle_w:
            return seconds
        joules = self.joules(seconds, k)
        assert joules is not None  # there is a power
        return paced_seconds(seconds, joules, self.power.idle_w, self.power.allowed_w)


def under_power(table: CostTable, power: StepPower | None) -> CostTable:
    """The same parts priced in paced seconds: at a binding cap the K with the fewest joules per token becomes the best.

    Everything that is reckoned from a table (the best K, what a probe or a wrong guess costs) follows. Make it once for
    a table and a power: choosers tell tables apart by identity. Without a power it is the table itself.
    """
    if power is None or power.allowed_w <= power.idle_w:
        return table
    fed_s = paced_seconds(table.catch_up_s, power.joules(table.catch_up_s, 0, 1), power.idle_w, power.allowed_w)
    return replace(table, power=power, catch_up_s=fed_s if table.catch_up_s else 0.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """A draft length with its price."""

    k: int
    head_mode: HeadMode
    expected_tokens: float
    """Committed per step."""
    step_s: float
    """Expected: a head that stops early depends on the acceptance. With the wait behind it, see ``CostTable.power``."""
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
    """Expected seconds of a step of K drafts, paced; ``acceptance`` [>= k] matters only to a head in groups."""
    if k < 0:
        raise ValueError(f"k must be >= 0, not {k}")
    if k == 0:
        return table.plain_s
    if head_mode == "batched":
        head_s = table.head(k + 1)
    else:
        if len(acceptance) < k:
            raise ValueError("a head in groups is priced by the acceptance of every draft")
        head_s = head_seconds(survival(acceptance[:k]), table, head_mode)
    return table.paced(table.draft(k) + table.verify(k) + head_s + table.overhead_s, k)


def price(k: int, acceptance: Sequence[float], table: CostTable, going: Sequence[float] = ()) -> Choice:
    """K at its cheapest head mode. ``acceptance`` [>= k]. Equal prices go to the batched head.

    ``going`` [n]: share of drafts that go on to each position where they may stop early, from 1 down; positions past n
    are reached like the last one. ``acceptance`` then counts a draft that stopped as not kept behind its end.
    """
    if len(acceptance) < k:
        raise ValueError(f"K={k} needs the acceptance of {k} positions, not {len(acceptance)}")
    *_, last = _choices(acceptance[:k], table, k, going)
    return last


def _choices(acceptance: Sequence[float], table: CostTable, k_max: int, going: Sequence[float]) -> Iterator[Choice]:
    """Every K in 0..``k_max`` at its cheapest head mode; positions past ``acceptance`` accept like the last one.

    This runs before every step, so sums go on from one K to the next.
    """
    groups = range(table.min_rows, MAX_GROUP + 1)
    heads = [table.head(rows) for rows in range(MAX_GROUP + 1)]
    whole = dict.fromkeys(groups, 0.0)  # by group: the head over those that are complete
    stopped = dict.fromkeys((0, *groups), 0.0)  # by group, 0 the batched head: drafts that ended before K
    plain_s, chances, tokens, reached = 0.0, [1.0], 1.0, 1.0
    for k in range(k_max + 1):
        if k:
            chances.append(chances[-1] * acceptance[min(k, len(acceptance)) - 1])
            tokens += chances[-1]
        rest_s = table.draft(k) + table.verify(k) + table.overhead_s
        step_s = {0: rest_s + table.head(k + 1)}
        for group in groups:
            full, over = divmod(k + 1, group)
            if not over:
                whole[group] += chances[k + 1 - group] * heads[group]
            if group <= k:
                last_s = chances[full * group] * heads[over] if over else 0.0
                step_s[group] = rest_s + whole[group] + last_s
        if table.power is not None:
            step_s = {group: table.paced(seconds, k) for group, seconds in step_s.items()}
        plain_s = plain_s or step_s[0]
        # A step of fewer rows than a group has is one call, which is the batched head's.
        mean_s = {group: stopped[group] + reached * seconds for group, seconds in step_s.items()}
        best = min(mean_s, key=mean_s.__getitem__)
        yield Choice(k, best or "batched", tokens, mean_s[best], tokens / mean_s[best], tokens * plain_s / mean_s[best])
        if k and going:
            following = min(reached, going[min(k, len(going) - 1)])
            for group in stopped:
                stopped[group] += (reached - following) * step_s.get(group, step_s[0])
            reached = following


def best_k(
    acceptance_by_position: Sequence[float],
    table: CostTable,
    k_max: int,
    k_min: int = 0,
    going: Sequence[float] = (),
) -> Choice:
    """The K in ``k_min``..``k_max`` with the most tokens per second; equal ones go to the smaller K.

    ``acceptance_by_position`` [n]: positions past n are taken to accept like the last one; of an empty one
    only K=0 can be priced. ``k_min`` 1 asks for the best draft even where plain decoding is faster. ``going``: see
    ``price``.
    """
    known = len(acceptance_by_position)
    if not 0 <= k_min <= k_max or (k_min and not known):
        raise ValueError(f"no K to choose in {k_min}..{k_max} from {known} known positions")
    best: Choice | None = None
    for choice in _choices(acceptance_by_position, table, k_max if known else 0, going):
        if choice.k >= k_min and (best is None or choice.tokens_per_s > best.tokens_per_s):
            best = choice
    assert best is not None  # k_min is within the range
    return best


def stop_below(k: int, acceptance: float, table: CostTable, tokens_per_s: float) -> float:
    """The chance that all drafts so far are kept, below which one more costs more than it brings; 0 for K < 2.

    One more is worth its own ``acceptance`` once those before it are kept, and costs its draft and its row, at what a
    second is worth now: keep drafting while prod a_i > S (c + v) / a (compare SpecDec++, arXiv 2405.19715).
    """
    if k < 2:
        return 0.0
    if table.power is None:
        row_s = (table.body(k + 1) + table.head(k + 1) - table.body(2) - table.head(2)) / (k - 1)
        cost = tokens_per_s * (table.draft_s + max(0.0, row_s))
    else:
        cost = tokens_per_s * max(0.0, step_seconds(k, table) - step_seconds(1, table)) / (k - 1)
    return min(1.0, cost / acceptance) if acceptance > 0.0 else 1.0


@dataclass(frozen=True, slots=True)
class CostLine:
    """What steps of one K cost and gain, with the head in one batch and with one that stops at the first rejection."""

    k: int
    expected_tokens: float
    batched_s: float
    lazy_s: float
    """Expected, in the cheapest groups; equal to ``batched_s`` for K=0."""
    group: int | None
    """Rows of such a group; ``None`` for K=0."""
    batched_gain: float
    """Tokens per second over those of plain decoding."""
    lazy_gain: float


def cost_lines(acceptance: Sequence[float], table: CostTable, k_max: int) -> tuple[CostLine, ...]:
    """Step cost against K = 0..``k_max``; positions past ``acceptance`` [>= 1] accept like the last one."""
    plain_s = step_seconds(0, table)
    lines = []
    for k in range(k_max + 1):
        rates = [acceptance[min(place, len(acceptance) - 1)] for place in range(k)]
        tokens, batched_s = expected_tokens(rates), step_seconds(k, table)
        by_group = {group: step_seconds(k, table, group, rates) for group in range(table.min_rows, MAX_GROUP + 1) if k}
        group = min(by_group, key=by_group.__getitem__) if by_group else None
        lazy_s = batched_s if group is None else by_group[group]
        lines.append(
            CostLine(k, tokens, batched_s, lazy_s, group, tokens * plain_s / batched_s, tokens * plain_s / lazy_s)
        )
    return tuple(lines)


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
