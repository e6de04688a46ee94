"""What the daemon's answers say, as frozen dataclasses. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import EdgeError


class EdgeRuntimeError(EdgeError):
    """The daemon refused or failed, or could not be asked."""

    def __init__(
        self,
        message: str,
        *,
        type: str = "api_error",
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """``status``: of HTTP; ``None`` where no answer came, or an answer broke off."""
        super().__init__(message)
        self.type, self.param, self.code, self.status = type, param, code, status
        self.retry_after_s = retry_after_s
        # As the command line counts: 2 for what the caller can mend.
        self.exit_code = 2 if status is not None and 400 <= status < 429 else 1


class NotReachable(EdgeRuntimeError):
    """No daemon answers at the socket, or it may not be asked."""

    def __init__(self, message: str) -> None:
        super().__init__(message, type="not_reachable")
        self.exit_code = 2


class ConnectionLost(EdgeRuntimeError):
    """The daemon went away in the middle of an answer, which is therefore not asked for again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, type="connection_lost")


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """What a chunk adds to a call."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt, not computed again."""
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    joules: float | None = None
    """That the board took for it; ``None`` where nobody reads its power."""
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    queued_ms: float | None = None
    draft_n: int | None = None
    """Tokens that were drafted."""
    draft_n_accepted: int | None = None
    draft_by_source: dict[str, dict[str, int]] | None = None
    """Who drafted: source -> ``drafted`` and ``accepted`` tokens."""
    notes: tuple[str, ...] = ()
    """Where drafting missed a mark of health."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of ``n`` answers."""

    index: int
    text: str
    finish_reason: str | None
    """``stop``, ``length`` or ``tool_calls``; ``None``: it was left."""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer, or several."""

    id: str
    model: str
    created: int
    choices: tuple[Choice, ...]
    usage: Usage | None = None
    timings: Timings | None = None

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].tool_calls


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event of a stream adds to one choice."""

    index: int
    text: str
    finish_reason: str | None = None
    tool_calls: tuple[ToolCallPart, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Health:
    ready: bool
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    id: str
    created: int = 0
    owned_by: str = ""
