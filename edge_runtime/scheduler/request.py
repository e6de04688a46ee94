"""What goes into the scheduler and what comes out. Knows no HTTP and no engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..engines.protocol import Ids
from ..errors import EdgeError
from ..generation import GenerationResult, Piece
from ..reuse import Owner
from ..sampling import SamplingParams
from ..session import Policy
from ..shaping import ShapingParams
from ..text.grammar import Grammar


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One answer that is wanted. What the model itself refuses (length, ids) is refused by ``Scheduler.submit``."""

    prompt: Ids
    """[n]"""
    params: SamplingParams
    max_tokens: int | None = None
    """``None``: as many as the context holds."""
    stops: tuple[str, ...] = ()
    seed: int | None = None
    policy: Policy = "lossless"
    shaping: ShapingParams = ShapingParams()
    grammar: Grammar | None = None
    top_logprobs: int | None = None
    """How many alternatives each token comes with; 0 for the tokens' own log-probabilities, ``None`` for none."""
    prediction: Ids | None = None
    """What the client expects to read; drafts only."""
    max_draft_tokens: int | None = None
    """Cap of K; 0: this request is decoded plainly."""
    repeat_limit: int | None = None
    """Ends an answer whose last so many tokens go round in circles; ``None``: goes on."""
    client: int = 0
    """uid of who asks: limits are per client."""
    salt: str = ""
    private: bool = False
    """Both as ``Owner`` has them: whose answers this one may make faster, and whose texts it may be made faster by."""
    priority: int = 0
    """-2..2; each step of it doubles the share of the engine, and lower ones are served first (as in vLLM)."""
    deadline_s: float | None = None
    """Monotonic clock: an answer that is not complete by then fails with ``DeadlineExceeded``."""

    @property
    def owner(self) -> Owner:
        return Owner(self.client, self.salt, self.private)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was accepted: its events will come, and exactly one last one."""

    number: int
    """By arrival, from 1."""


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is being fed; sent once, before the first piece."""

    queued_s: float
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, already in the slot's cache."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer that was completed."""

    result: GenerationResult


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of one that was not. The slot is free."""

    error: EdgeError


Event = Started | Piece | Finished | Failed
Sink = Callable[[Event], None]
"""Called on the engine's thread: it must not block, and must not raise."""


@dataclass(frozen=True, slots=True)
class Limits:
    """May be changed while requests run."""

    queue: int = 64
    """Requests that may wait, of all clients together."""
    queue_per_client: int = 16
    running_per_client: int | None = None
    """Slots that one client may hold at once; ``None``: all."""
    max_tokens: int | None = None
    """Most tokens of one answer, whatever was asked for."""
    deadline_s: float | None = None
    """Of a request that names none."""
