"""Who is there: what waits, what runs, in which slots, for which models. Knows no thread, no lock and no engine.

Whoever calls it holds the scheduler's lock; it says what is to be done, and is told what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..budget import Budget
from ..drafters.protocol import NO_TOKENS
from ..errors import Cancelled, DeadlineExceeded, EngineError, Stopped, Unavailable
from ..generation import Piece
from ..pressure import NO_PRESSURE, Pressure
from ..session import StepResult
from ..status import RequestStatus
from .admission import Admission
from .entry import Entry, Line
from .governing import BoardNow
from .request import Failed, Finished, Limits, Request, Sink, Ticket
from .served import Served
from .snapshot import Snapshot
from .tally import Tally
from .turns import Turns

_RETRY_S = 10.0
_STANDS_S = 30.0
"""For so long answers stand still where no step is allowed, before they end with the reason."""
"""What a client is told where the board says nothing of it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the model does not refuse."""

    request: Request
    sink: Sink
    max_tokens: int | None
    """As far as the limits allow it."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done now, in this order."""

    ends: list[Entry]
    """That their sinks do not know of yet."""
    retired: list[Line]
    """Models that nobody needs."""
    forgotten: list[tuple[Line, list[int]]]
    """Slots whose entries nobody will use again."""
    start: Entry | None
    """At most one: the next may copy from its slot."""
    turn: Entry | None

    @property
    def idle(self) -> bool:
        return not (self.ends or self.retired or self.forgotten or self.turn)


class Book:
    def __init__(self, served: Served, limits: Limits) -> None:
        self.admission = Admission(limits)
        self.tally = Tally()
        self.refusal = ""
        """Why nothing is accepted; empty while it is."""
        self.entries: dict[int, Entry] = {}
        """By number, until the last event was sent."""
        self.due_s: float | None = None
        """No deadline passes before."""
        self.budget = Budget()
        """What the board allows now,"""
        self._stands_since_s: float | None = None
        """and since when that is no step at all."""
        self._pressure = NO_PRESSURE
        self._forgets = False
        self._running: dict[int, Entry] = {}
        self._doomed: list[Entry] = []
        self._turns = Turns()
        self._current = Line(served)
        self._lines = [self._current]
        """The current one, and those that were swapped while requests were there for them."""
        self._numbers = 0

    def admit(self, served: Served, asked: Sequence[Asked], now_s: float) -> list[Ticket]:
        """All or none. Raises ``QueueFull``, ``Unavailable``."""
        self.tally.received += len(asked)
        try:
            line = self._line(served)
            if self._pressure.level == "shed":
                raise Unavailable(self._pressure.reason, self._pressure.retry_after_s)
            if not self.budget.admit:
                raise Unavailable(f"{self.budget.state}: {self.budget.reason}", self.budget.retry_after_s or _RETRY_S)
            self.admission.check([one.request.client for one in asked], line.slots.free)
        except Unavailable:
            self.tally.refused += len(asked)
            raise
        tickets: list[Ticket] = []
        leader: Entry | None = None
        for one in asked:
            self._numbers += 1
            ticket, deadline_s = Ticket(self._numbers), one.request.deadline_s
            if deadline_s is None and self.admission.limits.deadline_s is not None:
                deadline_s = now_s + self.admission.limits.deadline_s
            entry = Entry(ticket, one.request, one.sink, line, one.max_tokens, deadline_s, now_s, leader)
            leader = leader or entry
            self.entries[ticket.number] = entry
            self.admission.add(entry.waiter)
            self._expect(deadline_s)
            line.entries += 1
            tickets.append(ticket)
        return tickets

    def _line(self, served: Served) -> Line:
        if self.refusal:
            raise Unavailable(self.refusal)
        for line in self._lines:
            if line.served is served:
                return line
        raise Unavailable(f"model {served.name!r} is not served any more: another bundle took its place")

    def allow(self, budget: Budget, now_s: float) -> None:
        """What the board allows from now on. Answers outlast a short halt; after a long one whoever waits is told."""
        self.budget = budget
        if budget.run:
            self._stands_since_s = None
            return
        since_s = self._stands_since_s = now_s if self._stands_since_s is None else self._stands_since_s
        if now_s - since_s < _STANDS_S:
            return
        for entry in self.entries.values():
            if entry.doom is None and not entry.ended:
                after = f"the answer stopped after {entry.sent} tokens" if entry.sent else "no step was taken"
                reason = f"{budget.state}: {budget.reason}; {after}"
                entry.doom = Unavailable(reason, budget.retry_after_s or _RETRY_S)
                self._doomed.append(entry)

    def press(self, pressure: Pressure) -> None:
        """Told again and again: slots that have become free since are forgotten too."""
        self._pressure = pressure
        self._forgets = pressure.lets_go

    def swap(self, served: Served) -> None:
        if self.refusal:
            raise Unavailable(self.refusal)
        if served is not self._current.served:
            self._current = Line(served)
            self._lines.append(self._current)

    def doom(self, number: int, reason: str, kind: type[Cancelled] = Cancelled) -> None:
        """It is to end at the next turn, if it is still there."""
        entry = self.entries.get(number)
        if entry is not None and entry.doom is None and not entry.ended:
            entry.doom = kind(reason)
            self._doomed.append(entry)

    def doom_all(self, reason: str) -> None:
        """The daemon stops."""
        for number in self.entries:
            self.doom(number, reason, Stopped)

    def work(self, now_s: float, rests: bool = False) -> Work:
        """``rests``: nobody may have a turn now."""
        ends = []
        for entry in self._doomed:
            if entry.doom is not None and not entry.ended:
                self.end(entry, Failed(entry.doom), now_s)
                ends.append(entry)
        self._doomed = []
        for entry in self._overdue(now_s):
            self.end(entry, Failed(_too_late(entry, self.budget)), now_s)
            ends.append(entry)
        retired = [line for line in self._lines if line is not self._current and not line.entries]
        self._lines = [line for line in self._lines if line not in retired]
        forgotten = self._forget()
        start = None if rests else self._start(now_s)
        number = None if rests else self._turns.next()
        return Work(ends, retired, forgotten, start, None if number is None else self._running[number])

    def _forget(self) -> list[tuple[Line, list[int]]]:
        if not self._forgets:
            return []
        self._forgets = False
        found = [(line, line.slots.forget()) for line in self._lines]
        return [(line, slots) for line, slots in found if slots]

    def _overdue(self, now_s: float) -> list[Entry]:
        if self.due_s is None or now_s < self.due_s:
            return []
        self.due_s = None
        overdue = []
        for entry in self.entries.values():
            if entry.ended or entry.doom is not None or entry.deadline_s is None:
                continue
            if now_s >= entry.deadline_s:
                overdue.append(entry)
            else:
                self._expect(entry.deadline_s)
        return overdue

    def _expect(self, deadline_s: float | None) -> None:
        if deadline_s is not None and (self.due_s is None or deadline_s < self.due_s):
            self.due_s = deadline_s

    def _start(self, now_s: float) -> Entry | None:
        if not (self.admission.waiting and any(line.slots.free for line in self._lines)):
            return None
        waiter = self.admission.start(self._may_start)
        if waiter is None:
            return None
        entry = self.entries[waiter.number]
        entry.placement = entry.line.slots.place(entry.request.prompt, entry.request.owner)
        assert entry.placement is not None  # a slot was free
        entry.started_s, entry.leader = now_s, None
        self._running[waiter.number] = entry
        self._turns.join(waiter.number, waiter.priority)
        self.tally.start(len(entry.request.prompt), entry.placement.shared)
        return entry

    def _may_start(self, number: int) -> bool:
        entry = self.entries[number]
        return entry.line.slots.free > 0 and (entry.leader is None or entry.leader.fed)

    def after_turn(
        self, entry: Entry, piece: Piece | None, step: StepResult | None, before_s: float, now_s: float
    ) -> None:
        """It had a turn since ``before_s``; ``piece`` and ``step`` are ``None`` for a chunk of its prompt."""
        assert entry.placement is not None and entry.generation is not None  # it runs
        session = entry.generation.session
        self._turns.charge(entry.ticket.number, now_s - before_s)
        entry.line.slots.grow(entry.placement.slot, session.tokens[: session.kv_len])
        if piece is None or step is None:
            return
        if entry.first_s is None:
            entry.first_s = now_s
            self.tally.waited(now_s - entry.arrived_s)
        else:
            self.tally.step(step)
        entry.sent += len(piece.tokens)
        self.tally.sent(len(piece.tokens), now_s)
        if piece.finish_reason is not None and entry.sent > 1:
            self.tally.took((now_s - entry.first_s) / (entry.sent - 1))

    def end(self, entry: Entry, event: Finished | Failed, now_s: float, lost: bool = False) -> None:
        """Its slot is free from now on; what ``event`` it was told last follows. ``lost``: the slot's entries are."""
        self._finish(entry, event, now_s)
        if entry.placement is None:
            self.admission.remove(entry.waiter)
        else:
            session = None if entry.generation is None or lost else entry.generation.session
            tokens = NO_TOKENS if session is None else session.tokens[: session.kv_len]
            entry.line.slots.release(entry.placement.slot, tokens, now_s)
            self.admission.end(entry.request.client)
            self._turns.leave(entry.ticket.number)
            del self._running[entry.ticket.number]

    def _finish(self, entry: Entry, event: Finished | Failed, now_s: float) -> None:
        entry.last = event
        if isinstance(event, Finished):
            self.tally.finished += 1
        elif isinstance(event.error, Cancelled):
            self.tally.cancelled += 1
        else:
            self.tally.failed += 1
            if isinstance(event.error, EngineError):
                self.tally.fault, self.tally.fault_s = str(event.error), now_s

    def settle(self, entry: Entry) -> None:
        """Its last event was sent."""
        del self.entries[entry.ticket.number]
        entry.line.entries -= 1

    def abandon(self, error: Cancelled | EngineError, now_s: float) -> tuple[list[Entry], list[Line]]:
        """Everything ends here: whose last events are still to be sent, and the models to close.

        Not by way of ``end``: it may be the book itself that has gone wrong.
        """
        self.refusal = self.refusal or str(error)
        for entry in self.entries.values():
            if not entry.ended:
                self._finish(entry, Failed(entry.doom or error), now_s)
        self.admission = Admission(self.admission.limits)
        lines, self._lines, self._running = self._lines, [], {}
        return list(self.entries.values()), lines

    def snapshot(self, now_s: float, beat_s: float, idle: bool, board: BoardNow | None = None) -> Snapshot:
        tally = self.tally
        return Snapshot(
            model=self._current.served.name,
            refusal=self.refusal,
            requests=RequestStatus(
                running=len(self._running),
                waiting=self.admission.waiting,
                queue_limit=self.admission.limits.queue,
                received=tally.received,
                finished=tally.finished,
                failed=tally.failed,
                cancelled=tally.cancelled,
                refused=tally.refused,
                last_failure=tally.fault,
                last_failure_age_s=max(0.0, now_s - tally.fault_s) if tally.fault else None,
            ),
            running=tuple(entry.running(now_s) for entry in self._running.values()),
            slots=self._current.slots.status(now_s),
            speculation=tally.speculation(),
            speed=tally.speed(now_s),
            steps=tally.totals.steps,
            tried_by_position=tuple(tally.totals.tried_by_position),
            accepted_by_position=tuple(tally.totals.accepted_by_position),
            beat_s=beat_s,
            idle=idle,
            board=board,
        )


def _too_late(entry: Entry, budget: Budget) -> DeadlineExceeded:
    halt = "" if budget.run else f", and no step is allowed: {budget.state}: {budget.reason}"
    if entry.placement is None:
        return DeadlineExceeded(f"the deadline passed while the request waited in the queue{halt}")
    return DeadlineExceeded(f"the deadline passed after {entry.sent} tokens of the answer{halt}")
