"""Who waits, who may start, who is refused. Pure; knows no engine and no thread.

Everything is bounded: the queue by limits, and what is kept of clients by the requests that are there.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..errors import QueueFull
from .request import Limits


@dataclass(frozen=True, slots=True, order=True)
class Waiter:
    """Ordered as they are served."""

    priority: int
    number: int
    """Of the request, by arrival."""
    client: int = field(compare=False)


class Admission:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        """May be replaced; whoever waits already goes on waiting."""
        self._waiting: list[Waiter] = []
        self._waiting_by: Counter[int] = Counter()
        self._running_by: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def running_of(self, client: int) -> int:
        return self._running_by[client]

    def check(self, clients: Iterable[int], free: int) -> None:
        """Whether one more request of each of ``clients`` may come. Raises ``QueueFull``.

        Those that will have one of the ``free`` slots in a moment do not count as waiting: whether somebody is
        refused does not depend on how quick the engine's thread is.
        """
        limits, coming = self.limits, Counter(clients)
        waiting = len(self._waiting) - free
        if waiting + coming.total() > limits.queue:
            raise QueueFull(
                f"the queue is full: {max(waiting, 0)} requests wait of at most {limits.queue}"
                + _and_now(coming.total())
            )
        for client, count in coming.items():
            startable = free
            if limits.running_per_client is not None:
                startable = min(free, limits.running_per_client - self._running_by[client])
            waiting = self._waiting_by[client] - startable
            if waiting + count > limits.queue_per_client:
                raise QueueFull(
                    f"client {client} has {max(waiting, 0)} requests waiting of at most {limits.queue_per_client}"
                    + _and_now(count)
                )

    def add(self, waiter: Waiter) -> None:
        insort(self._waiting, waiter)
        self._waiting_by[waiter.client] += 1

    def remove(self, waiter: Waiter) -> None:
        """It waits no more, and was not started."""
        self._waiting.remove(waiter)
        _less(self._waiting_by, waiter.client)

    def start(self, may: Callable[[int], bool]) -> Waiter | None:
        """The first whose client may run one more and whose number ``may``; it counts as running from now on."""
        most = self.limits.running_per_client
        for place, waiter in enumerate(self._waiting):
            if (most is None or self._running_by[waiter.client] < most) and may(waiter.number):
                del self._waiting[place]
                _less(self._waiting_by, waiter.client)
                self._running_by[waiter.client] += 1
                return waiter
        return None

    def end(self, client: int) -> None:
        """One that was started is over."""
        _less(self._running_by, client)


def _less(counts: Counter[int], client: int) -> None:
    counts[client] -= 1
    if counts[client] < 1:
        del counts[client]


def _and_now(count: int) -> str:
    return f", and {count} came at once" if count > 1 else ""
