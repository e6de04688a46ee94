"""What steps cost on this very machine, learnt from the steps themselves. Knows no text and makes no choice.

Primed by a warm-up pass; steps go on measuring, apart for contexts of different lengths, and apart for each drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edge_runtime.budget import StepPower
from edge_runtime.cost import CostTable, dense_by_rows, under_power
from edge_runtime.row_cost import CostEstimate, observe_cost, prime_cost

from ..session import GRAMMAR, PREDICTION, StepResult

_DRAFTED = 2
"""Rows that stand for any number of them where it hardly matters: a step that drafted."""
_PLAIN_EVERY = 4
"""Plain steps of which one is measured, and the first behind a draft: they are many, and all alike."""
_TABLE_AGE = 24
"""Steps between two cost tables: estimates move slowly, and a table takes longer to make than to use."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Seconds of engine calls, measured by a warm-up pass."""

    body_s: Mapping[int, float]
    """By the target's rows."""
    head_s: Mapping[int, float]
    draft_s: float
    """Per drafted token; 0 for a drafter without an engine."""
    catch_up_s: float
    """Per token that a parked draft is fed."""


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """Seconds of one drafter, measured by a warm-up pass."""

    by_count_s: Mapping[int, float]
    """By the tokens of a draft."""
    catch_up_s: float = 0.0
    """Per token that it has to be fed; 0 for one without a cache."""
    window: int | None = None
    """See ``Drafter``."""


@dataclass(slots=True)
class _Draft:
    """One drafter's, in one context bucket."""

    by_count: CostEstimate = field(default_factory=CostEstimate)
    catch_up: CostEstimate = field(default_factory=CostEstimate)
    window: int | None = None


@dataclass(slots=True)
class _Bucket:
    """What the steps of one range of context lengths cost."""

    body: CostEstimate = field(default_factory=CostEstimate)
    head: CostEstimate = field(default_factory=CostEstimate)
    overhead: CostEstimate = field(default_factory=CostEstimate)
    """By 1 row and by more than one."""
    drafts: dict[str, _Draft] = field(default_factory=dict)
    tables: dict[tuple[str, int], CostTable] = field(default_factory=dict)
    """By drafter (``""`` where drafts cost nothing to make) and alternatives beside the chain."""
    unread: int = 0
    """Steps observed since ``tables`` were made."""
    plain: int = 0
    """Steps of one row since the last of more."""

    def copy(self) -> _Bucket:
        drafts = {name: replace(draft) for name, draft in self.drafts.items()}
        return _Bucket(self.body, self.head, self.overhead, drafts)


class StepCosts:
    def __init__(self, min_rows: int = 1) -> None:
        self._min_rows = min_rows
        self._buckets: dict[int, _Bucket] = {}
        self._power: StepPower | None = None

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return any(bucket.body.by_rows for bucket in self._buckets.values())

    def govern(self, power: StepPower | None) -> None:
        """Steps are priced by it from now on, waits included; the same object again changes nothing."""
        if power is not self._power:
            self._power = power
            for bucket in self._buckets.values():
                bucket.tables.clear()

    def prime(self, costs: MeasuredCosts, source: str = "") -> None:
        """Costs measured before the first text; the draft's are those of ``source``, if there is one."""
        bucket = self._bucket(0)
        for rows, seconds in costs.body_s.items():
            bucket.body = _primed(bucket.body, rows, seconds)
        for rows, seconds in costs.head_s.items():
            bucket.head = _primed(bucket.head, rows, seconds)
        bucket.tables.clear()
        if source:
            self.prime_draft(source, DraftCosts({1: costs.draft_s}, costs.catch_up_s))

    def prime_draft(self, source: str, costs: DraftCosts) -> None:
        bucket = self._bucket(0)
        draft = bucket.drafts.setdefault(source, _Draft())
        for count, seconds in costs.by_count_s.items():
            draft.by_count = _primed(draft.by_count, count, seconds)
        draft.catch_up = _primed(draft.catch_up, 1, costs.catch_up_s)
        draft.window = costs.window
        bucket.tables.clear()

    def table(self, kv_len: int, source: str = "", branches: int = 0) -> CostTable | None:
        """With drafts by ``source``, or with free ones; ``None`` before anything was measured."""
        bucket = self._bucket(kv_len)
        if bucket.unread >= _TABLE_AGE:
            bucket.tables.clear()
            bucket.unread = 0
        table = bucket.tables.get((source, branches))
        if table is None and bucket.body.by_rows:
            table = replace(_table(bucket, bucket.drafts.get(source), self._min_rows), branches=branches)
            table = under_power(table, self._power)
            bucket.tables[source, branches] = table
        return table

    def fresh(self, kv_len: int) -> bool:
        """Whether no step was observed since the tables of this context were made."""
        return self._bucket(kv_len).unread == 0

    def observe(self, result: StepResult, kv_len: int, source: str) -> None:
        """After a step that was planned with ``kv_len``; ``source``: the drafter that was asked, if any."""
        bucket, times = self._bucket(kv_len), result.times
        bucket.unread += 1
        bucket.plain = 0 if result.rows > 1 else bucket.plain + 1
        if bucket.plain and bucket.plain % _PLAIN_EVERY != 1:
            return
        bucket.body = _seen(bucket.body, result.rows, times.body_s)
        for rows, seconds in result.head_calls:
            bucket.head = _seen(bucket.head, rows, seconds)
        if source and result.source not in (GRAMMAR, PREDICTION):
            draft = bucket.drafts.setdefault(source, _Draft())
            if result.drafted:
                draft.by_count = _seen(draft.by_count, result.drafted, times.draft_s)
            if result.caught_up:
                draft.catch_up = _seen(draft.catch_up, 1, times.catch_up_s / result.caught_up)
        bucket.overhead = _seen(bucket.overhead, min(result.rows, _DRAFTED), times.overhead_s)

    def _bucket(self, kv_len: int) -> _Bucket:
        """Buckets double in length; a new one starts from what its neighbour knows."""
        number = (kv_len >> 9).bit_length()
        bucket = self._buckets.get(number)
        if bucket is None:
            near = min(self._buckets, key=lambda known: abs(known - number), default=None)
            bucket = _Bucket() if near is None else self._buckets[near].copy()
            self._buckets[number] = bucket
        return bucket


def _seen(estimate: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    # A part may be too quick for the clock; that is no measurement.
    return observe_cost(estimate, rows, seconds) if seconds > 0.0 else estimate


def _primed(estimate: CostEstimate, rows: int, seconds: float) -> CostEstimate:
    return prime_cost(estimate, rows, seconds) if seconds > 0.0 else estimate


def _table(bucket: _Bucket, draft: _Draft | None, min_rows: int) -> CostTable:
    head = bucket.head.measured()
    fixed_s, each_s = (0.0, 0.0) if draft is None else _line(draft.by_count.measured())
    overhead = bucket.overhead.measured()
    plain_s = overhead.get(1, 0.0)
    return CostTable(
        body_s=dense_by_rows(bucket.body.measured()),
        head_s=dense_by_rows(head) if head else (0.0,),
        draft_s=each_s,
        # To judge drafts takes the host longer than to judge none.
        draft_fixed_s=fixed_s + overhead.get(_DRAFTED, plain_s) - plain_s,
        overhead_s=plain_s,
        catch_up_s=0.0 if draft is None else draft.catch_up.measured().get(1, 0.0),
        window=None if draft is None else draft.window,
        min_rows=min_rows,
    )


def _line(by_count: Mapping[int, float]) -> tuple[float, float]:
    """(fixed, for each token) seconds of drafts: least squares, neither below 0; of one count, no fixed part."""
    if not by_count:
        return 0.0, 0.0
    counts, seconds = list(by_count), list(by_count.values())
    count, second = sum(counts) / len(counts), sum(seconds) / len(seconds)
    spread = sum((one - count) ** 2 for one in counts)
    if spread == 0.0:
        return 0.0, second / count
    each = sum((one - count) * (took - second) for one, took in zip(counts, seconds, strict=True)) / spread
    each = max(0.0, each)
    fixed = second - each * count
    return (0.0, second / count) if fixed < 0.0 else (fixed, each)
