"""Answers on their way: events hop from the engine's thread to the loop. Knows no format.

The engine never waits for a client: what it sends is queued here, and no more of it than the answers are long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from types import TracebackType

from ..scheduler.request import Event, Failed, Finished, Request, Sink
from .reading import Receive, until_left
from .service import Model, Turns


class Flight:
    """Of one HTTP request. Leaving the context cancels what has not ended; so does a client that goes away, at once."""

    def __init__(self, model: Model, scheduler: Turns, requests: Sequence[Request], receive: Receive) -> None:
        """Raises ``InputError`` and ``Unavailable``."""
        self.model, self.count = model, len(requests)
        self.left = False
        """Whether the client went away."""
        self.started_s = time.monotonic()
        self._scheduler, self._receive = scheduler, receive
        self._open = len(requests)
        self._events: asyncio.Queue[tuple[int, Event, float] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        asked = [(request, self._sink(loop, index)) for index, request in enumerate(requests)]
        self._tickets = scheduler.submit(model.served, asked)
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Flight:
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not kept: its end holds its frame, that holds this, and this the model: until a collection, some day.
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
        if self._open:
            self._cancel("the request was given up")

    async def next(self) -> tuple[int, Event, float] | None:
        """(choice, event, when it was made); ``None`` once all answers have ended, or the client left."""
        if not self._open or self.left:
            return None
        item = await self._events.get()
        if self.left or item is None:
            return None
        if isinstance(item[1], Finished | Failed):
            self._open -= 1
        return item

    def _sink(self, loop: asyncio.AbstractEventLoop, index: int) -> Sink:
        def sink(event: Event) -> None:
            # A loop that is closed raises: the daemon stops, and nobody listens.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._events.put_nowait, (index, event, time.monotonic()))

        return sink

    async def _watch(self) -> None:
        await until_left(self._receive)
        self.left = True
        self._cancel("the client went away")
        self._events.put_nowait(None)

    def _cancel(self, reason: str) -> None:
        for ticket in self._tickets:
            self._scheduler.cancel(ticket, reason)
