"""Sessions that take turns on one engine, by the daemon's own scheduler. Knows no socket, no figure and no table.

All but one are in the middle of their answers when the last one comes: what it waits for its first token, and what all
of them get while it is answered, is what a daemon's clients would find, but for the socket.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...engines.protocol import Ids
from ...errors import EngineError
from ...generation import Piece
from ...loading import LoadedBundle
from ...resident import resident
from ...sampling import SamplingParams
from ...scheduler.request import Event, Failed, Finished, Limits, Request, Ticket
from ...scheduler.scheduler import Scheduler
from ...scheduler.served import Served
from .context import bytes_per_token
from .record import Shared, Way
from .stepping import text_of

Progress = Callable[[str, int, int], None]
_SAMPLED = SamplingParams(temperature=1.0, top_k=64, top_p=0.95)
"""A greedy base model goes in circles, which flatters a drafter that copies."""
_WAYS: tuple[Way, ...] = ("plain", "drafted")
_PATIENCE_S = 600.0
"""For one answer."""


@dataclass(frozen=True, slots=True)
class SessionsPlan:
    counts: tuple[int, ...]
    """Rising."""
    rounds: int
    prompt_tokens: int = 128
    tokens: int = 64
    """Of the newcomer's answer."""


@dataclass(slots=True)
class _Reader:
    """A sink that remembers when how many tokens came."""

    came: list[tuple[float, int]] = field(default_factory=list)
    last: Finished | Failed | None = None
    first: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Piece):
            self.came.append((time.perf_counter(), len(event.tokens)))
            self.first.set()
        elif isinstance(event, Finished | Failed):
            self.last = event
            self.first.set()
            self.done.set()

    def between(self, first_s: float, last_s: float) -> int:
        return sum(count for at_s, count in self.came if first_s < at_s <= last_s)


def slot_bytes(bundle: LoadedBundle) -> int:
    """Of one session's caches, full."""
    return bytes_per_token(bundle) * bundle.target.info.capacity


def measure_sessions(
    bundle: LoadedBundle, plan: SessionsPlan, progress: Progress = lambda what, done, total: None
) -> tuple[Shared, ...]:
    """As many slots as the largest count. The bundle is the caller's to close. Raises ``EngineError``."""
    text = text_of(bundle, 4 * plan.prompt_tokens * (1 + plan.counts[-1]))
    served = Served(bundle.manifest.name, bundle.decoder(), bundle.tokenizer.piece_bytes, (), lambda: None)
    scheduler = Scheduler(served, Limits())
    scheduler.start()
    crowd = _Crowd(scheduler, served, plan, text)
    try:
        for way in _WAYS:
            crowd.run(1, way, 0)  # whatever is done for the first time
        found = []
        for number in range(plan.rounds):
            for place, count in enumerate(plan.counts):
                progress("sessions", number * len(plan.counts) + place, plan.rounds * len(plan.counts))
                ways = _WAYS if (number + place) % 2 == 0 else _WAYS[::-1]
                found += [crowd.run(count, way, number) for way in ways]
        return tuple(found)
    finally:
        scheduler.close()


class _Crowd:
    def __init__(self, scheduler: Scheduler, served: Served, plan: SessionsPlan, text: Ids) -> None:
        self._scheduler, self._served, self._plan, self._text = scheduler, served, plan, text
        self._asked = 0

    def run(self, count: int, way: Way, number: int) -> Shared:
        others = [_Reader() for _ in range(count - 1)]
        tickets = [self._ask(reader, way, None) for reader in others]
        for reader in others:
            _wait(reader.first, reader)
        newcomer, began_s = _Reader(), time.perf_counter()
        self._ask(newcomer, way, self._plan.tokens)
        _wait(newcomer.done, newcomer)
        for ticket, reader in zip(tickets, others, strict=True):
            self._scheduler.cancel(ticket)
            _wait(reader.done, reader, cancelled=True)
        first_s, last_s = newcomer.came[0][0], newcomer.came[-1][0]
        last = newcomer.last
        assert isinstance(last, Finished) and last.result.tpot_s is not None  # it has two tokens at least
        return Shared(
            sessions=count,
            way=way,
            round=number,
            ttft_s=first_s - began_s,
            window_s=last_s - first_s,
            window_tokens=sum(reader.between(first_s, last_s) for reader in (*others, newcomer)),
            tpot_s=(last_s - first_s) / max(1, newcomer.between(first_s, last_s)),
            loop_s=last.result.overhead_s / max(1, last.result.steps),
            resident=resident(),
        )

    def _ask(self, reader: _Reader, way: Way, tokens: int | None) -> Ticket:
        """Each prompt begins elsewhere in the text: none is a prefix that a slot remembers."""
        size = self._plan.prompt_tokens
        start = self._asked * (size // 2 + 1) % (len(self._text) - size)
        self._asked += 1
        request = Request(
            self._text[start : start + size], _SAMPLED, tokens,
            max_draft_tokens=0 if way == "plain" else None, client=self._asked,
        )  # fmt: skip
        (ticket,) = self._scheduler.submit(self._served, [(request, reader)])
        return ticket


def _wait(event: threading.Event, reader: _Reader, *, cancelled: bool = False) -> None:
    """Raises what an answer failed with."""
    if not event.wait(_PATIENCE_S):
        raise EngineError(f"an answer did not come within {_PATIENCE_S:g} s")
    if isinstance(reader.last, Failed) and not cancelled:
        raise reader.last.error
