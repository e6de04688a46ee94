"""Requests from their first byte to the scheduler: what one client may have on the way. Knows no HTTP and no request.

A body is held until a request was made of it, and that may take seconds of a core: JSON, templates, tokenizers,
grammars. So a client's bodies together are bounded, and its requests are prepared two at a time, in threads that the
daemon itself does not need: it waits for its own, and others do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import QueueFull
from .reading import ClientLeft, Receive, until_left

T = TypeVar("T")

MOST_BODIES = 16
"""As large as one may be, that one client may have here at once."""
AT_ONCE = 2
"""Requests of one client that are prepared at the same time."""
_THREADS = 8


@dataclass(eq=False)
class Share:
    """Of one client."""

    client: int
    most_bytes: int
    threads: ThreadPoolExecutor
    visits: int = 0
    held_bytes: int = 0
    waiting: int = 0
    """Requests that are whole and not prepared."""
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


class Visit:
    """One request's. Of the event loop's thread."""

    def __init__(self, share: Share) -> None:
        self._share, self._bytes = share, 0

    def hold(self, size: int) -> None:
        """So many bytes more of its body are kept from now on. Raises ``QueueFull``."""
        share = self._share
        if share.held_bytes + size > share.most_bytes:
            raise QueueFull(
                f"client {share.client} has {share.held_bytes} bytes of requests that are not answered yet, of at most "
                f"{share.most_bytes}"
            )
        self._bytes += size
        share.held_bytes += size

    async def prepare(self, most: int, work: Callable[[], T], receive: Receive) -> T:
        """What ``work`` makes in a thread, once it is its turn. Raises ``QueueFull`` where ``most`` of this client's
        are waited for already, and ``ClientLeft`` as soon as it goes away before that."""
        share = self._share
        if share.waiting >= most:
            raise QueueFull(f"client {share.client} has {share.waiting} requests that are being read of at most {most}")
        share.waiting += 1
        try:
            await _take(share.turn, receive)
            try:
                return await asyncio.get_running_loop().run_in_executor(share.threads, work)
            finally:
                share.turn.release()
        finally:
            share.waiting -= 1

    def leave(self) -> None:
        self._share.held_bytes -= self._bytes


class Intake:
    def __init__(self, most_body_bytes: int) -> None:
        self._most_bytes = MOST_BODIES * most_body_bytes
        self._shares: dict[int, Share] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "edge-preparing")

    @contextmanager
    def visit(self, client: int) -> Iterator[Visit]:
        share = self._shares.setdefault(client, Share(client, self._most_bytes, self._threads))
        share.visits += 1
        visit = Visit(share)
        try:
            yield visit
        finally:
            visit.leave()
            share.visits -= 1
            if not share.visits:
                del self._shares[client]


async def _take(turn: asyncio.Semaphore, receive: Receive) -> None:
    """Raises ``ClientLeft``; the turn is then not taken."""
    if not turn.locked():
        await turn.acquire()
        return
    taken, left = asyncio.ensure_future(turn.acquire()), asyncio.ensure_future(until_left(receive))
    try:
        await asyncio.wait({taken, left}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if taken.done():
            turn.release()
        raise
    finally:
        is_ours = taken.done()
        taken.cancel()
        left.cancel()
    if not is_ours:
        raise ClientLeft
