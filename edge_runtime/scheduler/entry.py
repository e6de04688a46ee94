"""What the scheduler remembers of one request and of one model while they are there. Knows no thread."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import EdgeError
from ..generation import Generation
from .admission import Waiter
from .request import Failed, Finished, Request, Sink, Ticket
from .served import Served
from .slots import Placement, Slots
from .snapshot import RunningAnswer


class Line:
    """A model, its slots, and how many requests are there for it."""

    def __init__(self, served: Served) -> None:
        info = served.decoder.target.info
        self.served = served
        self.slots = Slots(info.slots, info.capacity)
        self.entries = 0
        """Until their last event was sent."""


@dataclass(slots=True, eq=False)
class Entry:
    """A request from its arrival to its last event."""

    ticket: Ticket
    request: Request
    sink: Sink
    line: Line
    max_tokens: int | None
    """What was asked for, as far as the limits allow it."""
    deadline_s: float | None
    arrived_s: float
    leader: Entry | None
    """Starts first, so that this one finds its prompt in a slot."""
    doom: EdgeError | None = None
    """Why it is to end at the next turn."""
    placement: Placement | None = None
    """``None`` while it waits."""
    generation: Generation | None = None
    started_s: float = 0.0
    first_s: float | None = None
    """When the first token was sent."""
    sent: int = 0
    """Tokens."""
    joules: float | None = None
    """That the board took in its turns and in the waits before them; ``None``: nobody reads it."""
    last: Finished | Failed | None = None
    """Event; it is out of queue and slot once there is one."""
    told: bool = False
    """Whether the sink has it."""

    def charge(self, joules: float | None) -> None:
        if joules is not None:
            self.joules = (self.joules or 0.0) + joules

    @property
    def ended(self) -> bool:
        return self.last is not None

    @property
    def waiter(self) -> Waiter:
        return Waiter(self.request.priority, self.ticket.number, self.request.client)

    @property
    def fed(self) -> bool:
        """Whether the prompt is in its slot, or never will be."""
        if self.ended or self.generation is None:
            return self.ended
        session = self.generation.session
        return session.kv_len >= session.prompt_len - 1

    def running(self, now_s: float) -> RunningAnswer:
        placement, session = self.placement, self.generation.session if self.generation is not None else None
        assert placement is not None  # it runs
        prompt_tokens = len(self.request.prompt)
        return RunningAnswer(
            number=self.ticket.number,
            model=self.line.served.name,
            slot=placement.slot,
            client=self.request.client,
            priority=self.request.priority,
            prompt_tokens=prompt_tokens,
            cached_tokens=placement.shared,
            fed_tokens=placement.shared if session is None else min(session.kv_len, prompt_tokens),
            generated_tokens=self.sent,
            running_s=max(0.0, now_s - self.started_s),
        )
