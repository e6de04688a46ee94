"""The governor's place in the engine's loop: what was done goes in, what may be done comes out. Knows no engine, no
thread and no source; readings are whoever's that keeps them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from ..budget import Activity, Budget, Limits
from ..governor import GovernorMemory, govern
from ..pacing import pace_s, uneven
from ..telemetry.energy import Energy
from ..telemetry.sample import Sample

NO_LIMITS = Limits()
LISTEN_S = 0.25
"""Between two looks at the board while nothing runs: it cools, and readings may stop."""

_SPENT = 256
"""Turns that joules per token are told of."""

Turned = Callable[[Budget], None]
"""Told of every change of state, under the scheduler's lock."""
_LOG = logging.getLogger(__name__)


def _log(budget: Budget) -> None:
    _LOG.info("board state=%s reason=%s", budget.state, budget.reason)


class Readings(Protocol):
    """As ``telemetry.monitor.Monitor`` keeps them; none of these waits for a board."""

    @property
    def latest(self) -> Sample | None: ...

    @property
    def trouble(self) -> str | None: ...

    @property
    def is_fresh(self) -> bool: ...

    def energy(self) -> Energy: ...


@dataclass(frozen=True, slots=True)
class Done:
    """One turn: a step, or a chunk of a prompt."""

    ended_s: float
    seconds: float
    rows: int
    """Fed to the target."""
    drafts: int
    tokens: int
    """Committed."""
    steps: int


@dataclass(frozen=True, slots=True)
class BoardNow:
    """For status and metrics."""

    sample: Sample | None
    energy: Energy | None
    budget: Budget
    pace_s: float
    """Mean wait behind the last turns."""
    joules_per_token: float | None
    """Of the last turns, waits and prompts included."""
    busy_s: float
    """In turns since the start, waits left out."""
    trouble: str | None = None
    """Why there is no sample, or why it is old."""
    is_fresh: bool = True


class Governing:
    """Belongs to the engine's thread, but for ``limits`` and ``now``."""

    def __init__(self, limits: Limits = NO_LIMITS, readings: Readings | None = None, turned: Turned = _log) -> None:
        self.limits = limits
        """May be replaced, from any thread."""
        self.budget = Budget()
        self._readings, self._turned = readings, turned
        self._memory = GovernorMemory()
        self._activity = Activity()
        self._last: Done | None = None
        self._turns = 0
        self._pace_s = 0.0
        self._mark: Energy | None = None
        self._spent: deque[tuple[float, int]] = deque(maxlen=_SPENT)
        """(joules, tokens) of the last turns."""

    @property
    def listens(self) -> bool:
        """Whether it is to be asked now and then even while nothing runs."""
        return self.limits.power_mw is not None or self.limits.temperature_c is not None

    def ask(self, now_s: float, waiting: bool) -> Budget:
        """What holds from now on; cheap while nothing new was read."""
        if not self.listens and self.budget.state == "unmonitored":
            return self.budget
        sample = None if self._readings is None else self._readings.latest
        before = self.budget
        activity = replace(self._activity, waiting=waiting)
        self.budget, self._memory = govern(self._memory, self.limits, sample, activity, now_s)
        if self.budget.state != before.state:
            self._turned(self.budget)
        return self.budget

    def did(self, done: Done) -> None:
        self._activity = Activity(
            self._activity.busy_s + done.seconds,
            self._activity.rows + done.rows,
            self._activity.drafts + done.drafts,
            self._activity.tokens + done.tokens,
            self._activity.steps + done.steps,
        )
        self._last = done
        self._turns += 1
        wait_s = pace_s(done.seconds, done.rows, done.drafts, self.budget)
        if wait_s != float("inf"):
            self._pace_s += 0.1 * (wait_s - self._pace_s)

    def rests_s(self, now_s: float) -> float:
        """How long no turn may begin; infinite while the budget forbids any. To be asked again: budgets change."""
        if not self.budget.run:
            return float("inf")
        done = self._last
        if done is None:
            return 0.0
        wait_s = pace_s(done.seconds, done.rows, done.drafts, self.budget)
        return max(0.0, uneven(wait_s, self._turns) - (now_s - done.ended_s))

    # Energy

    def idles(self) -> None:
        """Nobody is there: what the board draws from now on is nobody's."""
        self._mark = None

    def taken_j(self) -> float | None:
        """After ``did``: joules since the last call, waits included; ``None`` where power is not read.

        What a wait takes is charged to whoever waited: the next turn's.
        """
        if self._readings is None:
            return None
        energy, before = self._readings.energy(), self._mark
        self._mark = energy
        if energy.last_w is None:
            return None
        joules = 0.0 if before is None else energy.joules - before.joules
        self._spent.append((joules, 0 if self._last is None else self._last.tokens))
        return joules

    def now(self) -> BoardNow:
        readings = self._readings
        if readings is None:
            return BoardNow(None, None, self.budget, self._pace_s, None, self._activity.busy_s)
        spent = list(self._spent)
        tokens = sum(count for _, count in spent)
        joules_per_token = sum(joules for joules, _ in spent) / tokens if tokens else None
        latest, energy = readings.latest, readings.energy()
        return BoardNow(
            latest, energy, self.budget, self._pace_s, joules_per_token, self._activity.busy_s,
            readings.trouble, readings.is_fresh,
        )  # fmt: skip
