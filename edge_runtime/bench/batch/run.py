"""``bench --view batch``: measures steps, then answers of sessions that differ in acceptance. Knows no table.

Whatever is compared runs back to back in every round, in an order that turns round with the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..stats import paired_ratio
from .record import BATCH, TURNS, StepCell, Way
from .replay import Answer, Price, answers, lengths_alone, lengths_together, price_of, uniform_length
from .stepping import Pair, Ran

SESSIONS, DRAFTS = (1, 2, 4, 8), (0, 1, 3, 7)
RATES = (0.3, 0.6, 0.9)
"""Of the sessions in turn: what drafters reach on open prose, on chat, and where text is copied."""
PADDED = "padded"
NONE, UNIFORM, OWN, ALONE = "none", "uniform", "own", "alone"
WAYS = (
    (TURNS, OWN), (TURNS, NONE), (TURNS, UNIFORM), (BATCH, NONE), (BATCH, UNIFORM), (BATCH, OWN), (BATCH, ALONE),
    (PADDED, ALONE),
)  # fmt: skip
"""The first is what the others are compared with: what the scheduler does today."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of a step by its rows."""

    turns: Price
    batch: Price


def measure_steps(pair: Pair, context: int, sessions: Sequence[int], rounds: int, progress: Progress) -> list[StepCell]:
    """Of every number of sessions and of drafts. A first round sets things up and does not count."""
    cells = [(count, drafts) for count in sessions for drafts in DRAFTS]
    found: dict[tuple[int, int], list[tuple[Ran, Ran]]] = {cell: [] for cell in cells}
    for number in range(-1, rounds):
        progress("steps", number + 1, rounds + 1)
        for count, drafts in cells:
            steps = pair.steps(range(count), [context] * count, [drafts + 1] * count)
            if number % 2:
                batch, turns = pair.batch(steps), pair.turns(steps)
            else:
                turns, batch = pair.turns(steps), pair.batch(steps)
            if number >= 0:
                found[(count, drafts)].append((turns, batch))
    return [_cell(*cell, found[cell]) for cell in cells]


def _cell(sessions: int, drafts: int, runs: Sequence[tuple[Ran, Ran]]) -> StepCell:
    turns, batch = [one.seconds for one, _ in runs], [one.seconds for _, one in runs]
    return StepCell(
        sessions=sessions,
        drafts=drafts,
        turns_s=median(turns),
        batch_s=median(batch),
        speedup=paired_ratio(turns, batch),
        apart=max(float(np.abs(one.logits - other.logits).max()) for one, other in runs),
        other_argmax=sum(int((one.argmax != other.argmax).sum()) for one, other in runs),
    )


def prices(cells: Sequence[StepCell]) -> Prices:
    """A batch costs what its rows cost, whoever they are of."""
    turns = {cell.drafts + 1: cell.turns_s for cell in cells if cell.sessions == 1}
    batch: dict[int, list[float]] = {}
    for cell in cells:
        batch.setdefault(cell.sessions * (cell.drafts + 1), []).append(cell.batch_s)
    return Prices(price_of(turns), price_of({rows: median(seconds) for rows, seconds in batch.items()}))


def measure_ways(
    pair: Pair, context: int, sessions: int, tokens: int, rounds: int, price: Prices, progress: Progress
) -> list[Way]:
    """All sessions begin at once and end after ``tokens`` each."""
    texts = answers([RATES[slot % len(RATES)] for slot in range(sessions)], tokens, seed=sessions)
    runs: dict[tuple[str, str], list[_Run]] = {way: [] for way in WAYS}
    for number in range(rounds):
        order = WAYS if number % 2 == 0 else tuple(reversed(WAYS))
        for place, (way, lengths) in enumerate(order):
            progress(f"answers of {sessions} sessions", number * len(WAYS) + place, rounds * len(WAYS))
            runs[(way, lengths)].append(_Run(pair, context, texts, way, lengths, price).to_the_end())
    base = [run.seconds for run in runs[WAYS[0]]]
    return [_way(sessions, way, lengths, runs[(way, lengths)], base, tokens) for way, lengths in WAYS]


def _way(
    sessions: int, way: str, lengths: str, runs: Sequence[_Run], base: Sequence[float], tokens: int
) -> Way:
    last = runs[-1]
    seconds = [run.seconds for run in runs]
    return Way(
        sessions=sessions,
        way=way,
        lengths=lengths,
        drafts=last.drafts(tuple(range(sessions))),
        tokens_per_s=sessions * tokens / median(seconds),
        over_turns=paired_ratio(base, seconds),
        rejected=last.rejected / last.rows,
        padded=last.padded / last.rows,
        idle=last.idle_lanes / last.lanes,
        first_done=median(run.first_done_s / run.seconds for run in runs),
    )


class _Run:
    """Answers by one way, once."""

    def __init__(
        self, pair: Pair, context: int, texts: Sequence[Answer], way: str, lengths: str, price: Prices
    ) -> None:
        self._pair, self._context, self._texts, self._way, self._lengths = pair, context, texts, way, lengths
        self._price = price
        self._drafts: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._done = [0] * len(texts)
        self.seconds = self.first_done_s = 0.0
        self.rows = self.rejected = self.padded = self.lanes = self.idle_lanes = 0

    def to_the_end(self) -> _Run:
        tokens = len(self._texts[0].guessed)
        while active := tuple(slot for slot, done in enumerate(self._done) if done < tokens):
            wanted = [
                min(drafts, tokens - self._done[slot] - 1)
                for slot, drafts in zip(active, self.drafts(active), strict=True)
            ]
            rows = [drafts + 1 for drafts in wanted]
            if self._way == PADDED:
                rows = [max(rows)] * len(rows)
            steps = self._pair.steps(active, [self._context + self._done[slot] for slot in active], rows)
            self.seconds += (self._pair.turns if self._way == TURNS else self._pair.batch)(steps).seconds
            self._commit(active, wanted, rows)
            if not self.first_done_s and tokens in self._done:
                self.first_done_s = self.seconds
        return self

    def drafts(self, active: tuple[int, ...]) -> tuple[int, ...]:
        """K of each, while these are at work."""
        if active not in self._drafts:
            self._drafts[active] = tuple(self._choose([self._texts[slot].rate for slot in active]))
        return self._drafts[active]

    def _choose(self, rates: Sequence[float]) -> list[int]:
        count, most = len(rates), DRAFTS[-1]
        if self._lengths == NONE:
            return [0] * count
        if self._lengths == UNIFORM:
            # Of turns each pays for itself.
            turns = self._price.turns
            price = self._price.batch if self._way != TURNS else lambda rows: count * turns(rows // count)
            return [uniform_length(rates, price, most)] * count
        if self._way == TURNS or self._lengths == ALONE:
            return lengths_alone(rates, self._price.turns, most)
        return lengths_together(rates, self._price.batch, most)

    def _commit(self, active: Sequence[int], wanted: Sequence[int], rows: Sequence[int]) -> None:
        for slot, drafts, count in zip(active, wanted, rows, strict=True):
            kept = self._texts[slot].kept(self._done[slot], drafts)
            self._done[slot] += kept + 1
            self.rows += count
            self.rejected += drafts - kept
            self.padded += count - drafts - 1
        self.lanes += len(self._done)
        self.idle_lanes += 0 if self._way == TURNS else len(self._done) - len(active)
