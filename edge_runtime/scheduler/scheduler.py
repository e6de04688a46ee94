"""One engine thread makes all answers, in turn. Knows no HTTP and no text; of models, that a decoder steps sessions.

The thread owns engines, decoders and sessions, and sends every event. Other threads reach it through one lock, which
is never held while an engine computes or a sink is called; what they ask for happens at the next turn.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..drafting import Clock
from ..errors import Cancelled, EdgeError, EngineError, Stopped
from ..pressure import Pressure
from ..session import StepResult
from .answer import check, generation
from .book import Asked, Book
from .entry import Entry, Line
from .governing import LISTEN_S, Done, Governing
from .request import Event, Failed, Finished, Limits, Request, Sink, Started, Ticket
from .served import Served
from .snapshot import Snapshot

_LOG = logging.getLogger(__name__)
_STOPS = "the daemon stops"


class Scheduler:
    """Every method may be called from any thread; ``drain`` and ``close`` wait, and so not from a sink."""

    def __init__(
        self,
        served: Served,
        limits: Limits,
        clock: Clock = time.monotonic,
        governing: Governing | None = None,
    ) -> None:
        self._clock = clock
        self._governing = governing or Governing()
        self._changed = threading.Condition()
        """The lock; told of everything that may end somebody's wait."""
        self._book = Book(served, limits)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._idle = True
        self._beat_s = clock()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="edge-engine", daemon=True)
        self._thread.start()

    def submit(self, served: Served, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        """All or none. Of several, the others start once the first one's prompt is in its slot, and copy it.

        ``served`` is the model that the requests were made for. Raises, before any event, ``InputError`` for what
        the model refuses, ``QueueFull``, and ``Unavailable`` when it is not served (any more).
        """
        cap = self._book.admission.limits.max_tokens
        checked = [Asked(request, sink, _least(request.max_tokens, cap)) for request, sink in asked]
        for one in checked:
            check(served, one.request, one.max_tokens)
        with self._changed:
            tickets = self._book.admit(served, checked, self._clock())
            self._changed.notify_all()
        return tickets

    def cancel(self, ticket: Ticket, reason: str = "the request was cancelled") -> None:
        """Its last event follows within one turn, if it was not sent yet."""
        with self._changed:
            self._book.doom(ticket.number, reason)
            self._changed.notify_all()

    def set_limits(self, limits: Limits) -> None:
        """For requests to come, and for who may start of those that wait."""
        with self._changed:
            self._book.admission.limits = limits
            self._changed.notify_all()

    def press(self, pressure: Pressure) -> None:
        """What the machine's memory asks for: idle slots forget, and new requests may be refused."""
        with self._changed:
            self._book.press(pressure)
            self._changed.notify_all()

    def swap(self, served: Served) -> None:
        """New requests go to ``served``. Those that are there end on the old model, which is closed after them.

        Raises ``Unavailable`` once the scheduler drains; ``served`` is then the caller's to close.
        """
        with self._changed:
            self._book.swap(served)
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Refuse what comes, end what is there; after ``timeout_s`` the rest fails with ``Stopped``.

        Returns once every last event was sent: whether no answer had to be broken off.
        """
        with self._changed:
            self._book.refusal = self._book.refusal or f"draining: {_STOPS}"
            complete = self._changed.wait_for(self._empty, timeout_s)
            self._book.doom_all(f"{_STOPS}, and the answer was not complete within {timeout_s:g} s")
            self._changed.notify_all()
            if self._thread is not None:
                self._changed.wait_for(self._empty)
        return complete

    def close(self) -> None:
        """Cancel what is there, close the models, end the thread. Again is harmless."""
        with self._changed:
            self._closing = True
            self._book.refusal = f"{_STOPS}: it is closed"
            self._book.doom_all(_STOPS)
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        else:
            self._abandon(Stopped(_STOPS))

    def snapshot(self) -> Snapshot:
        """Cheap; at most a moment's wait for the engine thread's bookkeeping, never for an engine."""
        with self._changed:
            return self._book.snapshot(self._clock(), self._beat_s, self._idle, self._governing.now())

    def _empty(self) -> bool:
        return not self._book.entries

    # The engine thread

    def _run(self) -> None:
        error: Cancelled | EngineError = Stopped(_STOPS)
        try:
            while self._round():
                pass
        except _Altered as problem:
            error = problem
            _LOG.error("the model cannot be served any more: %s", problem)
        except Exception as problem:  # noqa: BLE001 - whoever waits shall not wait in vain
            error = _unexpected("the scheduler", problem)
        finally:
            self._abandon(error)

    def _round(self) -> bool:
        """Everything that is due, and one turn. False: closed, and nobody is there any more."""
        with self._changed:
            now_s = self._beat_s = self._clock()
            governing, there = self._governing, bool(self._book.entries)
            self._book.allow(governing.ask(now_s, there), now_s)
            rests_s = governing.rests_s(now_s)
            work = self._book.work(now_s, rests=rests_s > 0.0)
            if work.idle:
                if self._closing and not (there and rests_s > 0.0):
                    return False
                if not there:
                    governing.idles()
                self._idle = not (there and rests_s > 0.0)
                self._changed.wait(self._patience_s(now_s, rests_s if there else 0.0))
                self._idle = False
                return True
        for entry in work.ends:
            self._tell_last(entry)
        _close(work.retired)
        _forget(work.forgotten)
        if work.start is not None:
            self._begin(work.start)
        if work.turn is not None and not work.turn.ended:
            self._turn(work.turn)
        return True

    def _patience_s(self, now_s: float, rests_s: float) -> float | None:
        """Until something is due, while nothing is to be done; ``None``: until somebody says so."""
        due_s = self._book.due_s
        waits = [] if due_s is None else [max(0.0, due_s - now_s)]
        if rests_s > 0.0:
            waits.append(rests_s)
        if rests_s > 0.0 or self._governing.listens:
            waits.append(LISTEN_S)
        return min(waits, default=None)

    def _begin(self, entry: Entry) -> None:
        placement, request, served = entry.placement, entry.request, entry.line.served
        assert placement is not None  # it was placed a moment ago
        try:
            undrafted = served.decoder.forget_drafts(placement.slot) if placement.moved else ""
            if placement.source != placement.slot:
                served.decoder.target.copy_prefix(placement.source, placement.slot, placement.shared)
            entry.generation = generation(served, request, entry.max_tokens, placement.slot, placement.shared)
            entry.generation.session.undrafted = undrafted
        except Exception as problem:  # noqa: BLE001 - the others' answers go on
            self._fail(entry, problem)
            return
        self._tell(entry, Started(entry.started_s - entry.arrived_s, len(request.prompt), placement.shared))

    def _turn(self, entry: Entry) -> None:
        made = entry.generation
        assert made is not None  # it began
        _refuse_altered(entry.line)
        entry.line.served.decoder.govern(self._book.budget)
        kv_len, before_s = made.session.kv_len, self._clock()
        try:
            piece = made.turn()
        except Exception as problem:  # noqa: BLE001 - the others' answers go on
            if not entry.line.served.decoder.goes_on_without(made.session, problem):
                self._fail(entry, problem)
            return
        # Once more, before anybody hears of it.
        _refuse_altered(entry.line)
        with self._changed:
            now_s = self._beat_s = self._clock()
            self._governing.did(
                _done(None if piece is None else made.last, made.session.kv_len - kv_len, before_s, now_s)
            )
            entry.charge(self._governing.taken_j())
            self._book.after_turn(entry, piece, made.last, before_s, now_s)
        if piece is not None:
            self._tell(entry, piece)
            if piece.finish_reason is not None and entry.doom is None:
                self._end(entry, Finished(replace(made.result(), joules=entry.joules)))

    def _fail(self, entry: Entry, problem: Exception) -> None:
        """This request alone: what its slot holds is unknown, the others' are as they were."""
        number = entry.ticket.number
        if isinstance(problem, EdgeError):
            error = problem
            _LOG.error("request %d failed: %s", number, error)
        else:
            error = _unexpected(f"request {number}", problem)
        if entry.placement is not None:
            entry.line.served.decoder.forget_drafts(entry.placement.slot)
        self._end(entry, Failed(error), lost=True)

    def _end(self, entry: Entry, event: Finished | Failed, lost: bool = False) -> None:
        with self._changed:
            self._book.end(entry, event, self._clock(), lost)
        self._tell_last(entry)

    def _tell_last(self, entry: Entry) -> None:
        if not entry.told and entry.last is not None:
            entry.told = True
            self._tell(entry, entry.last)
        with self._changed:
            self._book.settle(entry)
            self._changed.notify_all()

    def _tell(self, entry: Entry, event: Event) -> None:
        try:
            entry.sink(event)
        except BaseException as problem:  # noqa: BLE001 - whatever a sink does, it does to its own request alone
            _unexpected(f"the reader of request {entry.ticket.number}", problem)
            with self._changed:
                self._book.doom(entry.ticket.number, "its reader failed")

    def _abandon(self, error: Cancelled | EngineError) -> None:
        with self._changed:
            ends, lines = self._book.abandon(error, self._clock())
            self._idle = True
        for entry in ends:
            self._tell_last(entry)
        _close(lines)


class _Altered(EngineError):
    """What a model is made of is not what was checked: no word of it goes out any more."""


def _refuse_altered(line: Line) -> None:
    if problem := line.served.altered():
        raise _Altered(f"{line.served.name}: {problem}")


def _done(step: StepResult | None, fed: int, before_s: float, now_s: float) -> Done:
    """``step`` ``None``: only a cache was filled, with ``fed`` tokens if it was the target's."""
    if step is None:
        return Done(now_s, now_s - before_s, fed, 0, 0, 0)
    return Done(now_s, now_s - before_s, step.rows, step.drafted + step.caught_up, len(step.tokens), 1)


def _close(lines: Iterable[Line]) -> None:
    for line in lines:
        try:
            line.served.close()
        except Exception as problem:  # noqa: BLE001 - nobody needs it any more
            _unexpected("closing a model", problem)


def _forget(forgotten: Iterable[tuple[Line, list[int]]]) -> None:
    for line, slots in forgotten:
        try:
            line.served.forget(slots)
        except Exception as problem:  # noqa: BLE001 - the slots are empty, whatever memory they hold
            _unexpected("giving memory back", problem)


def _unexpected(where: str, problem: BaseException) -> EngineError:
    """Log what no test has foreseen. Not its message: it may quote what somebody wrote."""
    frames = "".join(traceback.format_tb(problem.__traceback__))
    _LOG.error("%s: %s\n%s", where, type(problem).__name__, frames.rstrip())
    return EngineError(f"{where}: {type(problem).__name__}; the log says where")


def _least(wanted: int | None, cap: int | None) -> int | None:
    if wanted is None or cap is None:
        return cap if wanted is None else wanted
    return min(wanted, cap)
