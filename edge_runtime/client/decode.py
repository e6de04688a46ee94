"""The daemon's JSON into results. Knows no connection; keys that a newer daemon adds are passed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..status import Status
from .results import (
    Choice,
    Chunk,
    Completion,
    EdgeRuntimeError,
    Health,
    Model,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
    TopLogprob,
    Usage,
)

T = TypeVar("T")


def status_from(data: Any) -> Status:
    return _converted(data, Status)


def health_from(ready: bool, content: bytes) -> Health:
    """Whatever the form of a refusal, its status has said the most of it."""
    try:
        data = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    message = str(_field(_field(data, "error"), "message") or "")
    state, colon, reason = message.partition(": ")
    if ready:
        return Health(True, "ready")
    # "loading: why"; a message of another form is all reason.
    return Health(False, state, reason) if colon and state.isalpha() else Health(False, "not ready", message)


def models_from(data: Any) -> tuple[Model, ...]:
    return _converted(_field(data, "data"), tuple[Model, ...])


def completion_from(data: Any) -> Completion:
    """Of either endpoint, not streamed."""
    wire = _converted(data, _Answer)
    return Completion(
        wire.id,
        wire.model,
        wire.created,
        tuple(_choice(choice) for choice in wire.choices),
        None if wire.usage is None else wire.usage.flat(),
        wire.timings,
    )


# --- as it is on the wire -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Function:
    name: str | None = None
    arguments: str | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    index: int = 0
    id: str | None = None
    function: _Function = _Function()


@dataclass(frozen=True, slots=True)
class _Message:
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Logprobs:
    """Of chats: ``content``. Of completions: lists side by side."""

    content: tuple[TokenLogprob, ...] | None = None
    tokens: tuple[str, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None

    def flat(self) -> tuple[TokenLogprob, ...]:
        if self.tokens is None or self.token_logprobs is None:
            return self.content or ()
        tops = self.top_logprobs or (None,) * len(self.tokens)
        return tuple(
            TokenLogprob(
                token,
                float("nan") if logprob is None else logprob,
                None,
                tuple(TopLogprob(other, value) for other, value in (top or {}).items()),
            )
            for token, logprob, top in zip(self.tokens, self.token_logprobs, tops, strict=False)
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


@dataclass(frozen=True, slots=True)
class _PromptDetails:
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _CompletionDetails:
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Energy:
    joules: float | None = None
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class _Usage:
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    energy: _Energy | None = None

    def flat(self) -> Usage:
        details, energy = self.completion_tokens_details or _CompletionDetails(), self.energy or _Energy()
        return Usage(
            self.prompt_tokens,
            self.completion_tokens,
            (self.prompt_tokens_details or _PromptDetails()).cached_tokens,
            details.accepted_prediction_tokens,
            details.rejected_prediction_tokens,
            energy.joules,
            energy.joules_per_token,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    choices: tuple[_Choice, ...]
    id: str = ""
    model: str = ""
    created: int = 0
    usage: _Usage | None = None
    timings: Timings | None = None


def _choice(wire: _Choice) -> Choice:
    message = wire.message or _Message()
    calls = tuple(
        ToolCall(call.id or "", call.function.name or "", call.function.arguments or "")
        for call in message.tool_calls or ()
    )
    return Choice(
        wire.index,
        wire.text or message.content or "",
        wire.finish_reason,
        calls,
        None if wire.logprobs is None else wire.logprobs.flat(),
    )


def _part(wire: _Choice) -> Chunk:
    delta = wire.delta or _Message()
    calls = tuple(
        ToolCallPart(call.index, call.id, call.function.name, call.function.arguments or "")
        for call in delta.tool_calls or ()
    )
    return Chunk(
        wire.index,
        wire.text or delta.content or "",
        wire.finish_reason,
        calls,
        None if wire.logprobs is None else wire.logprobs.flat(),
    )


class Assembly:
    """A completion out of the events of its stream."""

    def __init__(self) -> None:
        self._head: _Answer | None = None
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._parts: dict[int, list[Chunk]] = {}

    def add(self, data: Any) -> tuple[Chunk, ...]:
        wire = _converted(data, _Answer)
        self._head = self._head or wire
        self._usage = self._usage if wire.usage is None else wire.usage.flat()
        self._timings = wire.timings or self._timings
        chunks = tuple(_part(choice) for choice in wire.choices)
        for chunk in chunks:
            self._parts.setdefault(chunk.index, []).append(chunk)
        return chunks

    def completion(self) -> Completion:
        """As far as it came."""
        head = self._head or _Answer(())
        choices = tuple(_joined(index, parts) for index, parts in sorted(self._parts.items()))
        if not choices:
            choices = (Choice(0, "", None),)
        return Completion(head.id, head.model, head.created, choices, self._usage, self._timings)


def _joined(index: int, parts: list[Chunk]) -> Choice:
    calls: dict[int, ToolCall] = {}
    for part in (call for chunk in parts for call in chunk.tool_calls):
        before = calls.get(part.index, ToolCall("", "", ""))
        calls[part.index] = ToolCall(part.id or before.id, part.name or before.name, before.arguments + part.arguments)
    logprobs = [chunk.logprobs for chunk in parts if chunk.logprobs is not None]
    return Choice(
        index,
        "".join(chunk.text for chunk in parts),
        next((chunk.finish_reason for chunk in reversed(parts) if chunk.finish_reason), None),
        tuple(call for _, call in sorted(calls.items())),
        tuple(entry for entries in logprobs for entry in entries) if logprobs else None,
    )


def _field(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _converted(data: Any, cls: type[T]) -> T:
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as problem:
        raise EdgeRuntimeError(f"the daemon's answer is not understood (of another version?): {problem}") from None
