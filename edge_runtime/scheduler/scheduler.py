"""One engine thread makes all answers, in turn. Knows no HTTP and no text; models only as decoders of sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..decoder import Clock
from .request import Limits, Request, Sink, Ticket
from .served import Served
from .snapshot import Snapshot


class Scheduler:
    def __init__(self, served: Served, limits: Limits, clock: Clock = time.monotonic) -> None:
        raise NotImplementedError

    def start(self) -> None: ...

    def submit(self, served: Served, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        """All or none. Raises ``InputError``, ``QueueFull``, ``Unavailable``."""
        raise NotImplementedError

    def cancel(self, ticket: Ticket, reason: str = "cancelled") -> None: ...

    def set_limits(self, limits: Limits) -> None: ...

    def swap(self, served: Served) -> None: ...

    def drain(self, timeout_s: float) -> bool:
        """Whether everything ended by itself."""
        raise NotImplementedError

    def close(self) -> None: ...

    def snapshot(self) -> Snapshot:
        raise NotImplementedError
