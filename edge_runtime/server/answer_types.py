"""What answers look like, as types: the half of the protocol that this daemon writes. Knows no request and no model.

Answers are written as plain dicts, field by field, where they are made; ``openapi`` describes them from these types,
and tests hold one to the other.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Natural = Annotated[int, Meta(ge=0)]
Time = Annotated[float, Meta(ge=0.0)]
Reason = Literal["stop", "length", "tool_calls"]


class Said(Struct, frozen=True, forbid_unknown_fields=True):
    """An object of which every field is told."""


class Problem(Said, frozen=True):
    message: str
    """One line."""
    type: str
    param: str | None
    """The field that is wrong, where it is a single one."""
    code: str | None


class Error(Said, frozen=True):
    error: Problem


class CachedTokens(Said, frozen=True):
    cached_tokens: Natural


class PredictedTokens(Said, frozen=True):
    accepted_prediction_tokens: Natural
    rejected_prediction_tokens: Natural


class Energy(Said, frozen=True):
    joules: Time | None
    joules_per_token: Time | None


class Usage(Said, frozen=True):
    prompt_tokens: Natural
    completion_tokens: Natural
    total_tokens: Natural
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictedTokens
    energy: Energy


class Source(Said, frozen=True):
    drafted: Natural
    accepted: Natural


class Timings(Said, frozen=True):
    ttft_ms: Time | None
    tpot_ms: Time | None
    queued_ms: Time | None
    draft_n: Natural
    draft_n_accepted: Natural
    draft_by_source: dict[str, Source]
    notes: list[str]


class TopLogprob(Said, frozen=True):
    token: str
    logprob: float
    bytes: list[Annotated[int, Meta(ge=0, le=255)]]


class ChatLogprob(Said, frozen=True):
    token: str
    logprob: float
    bytes: list[Annotated[int, Meta(ge=0, le=255)]]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Said, frozen=True):
    content: list[ChatLogprob]
    refusal: None


class CalledFunction(Said, frozen=True):
    name: str
    arguments: str


class MadeCall(Said, frozen=True):
    id: str
    type: Literal["function"]
    function: CalledFunction


class _Optional(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    tool_calls: Annotated[list[MadeCall], Meta(min_length=1)] = []
    """Only where there are some."""


class AnswerMessage(_Optional, frozen=True, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None


class ChatChoice(Said, frozen=True):
    index: Natural
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class ChatAnswer(Said, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: Natural
    model: str
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]
    usage: Usage
    timings: Timings


class CompletionLogprobs(Said, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[Natural]


class CompletionChoice(Said, frozen=True):
    index: Natural
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason


class CompletionAnswer(Said, frozen=True):
    id: str
    object: Literal["text_completion"]
    created: Natural
    model: str
    choices: Annotated[list[CompletionChoice], Meta(min_length=1)]
    usage: Usage
    timings: Timings


class CallDelta(Said, frozen=True):
    index: Natural
    id: str
    type: Literal["function"]
    function: CalledFunction


class Delta(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one event adds."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: list[CallDelta] = []


class ChatChunkChoice(Said, frozen=True):
    index: Natural
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatChunk(Said, frozen=True):
    """One event of a stream; the last one is [DONE]."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Natural
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class CompletionChunkChoice(Said, frozen=True):
    index: Natural
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason | None


class CompletionChunk(Said, frozen=True):
    """One event of a stream; the last one is [DONE]."""

    id: str
    object: Literal["text_completion"]
    created: Natural
    model: str
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class TokenizeAnswer(Said, frozen=True):
    tokens: list[Natural]
    count: Natural
    max_model_len: Natural


class ModelCard(Said, frozen=True):
    id: str
    object: Literal["model"]
    created: Natural
    owned_by: str
    max_model_len: Natural


class ModelList(Said, frozen=True):
    object: Literal["list"]
    data: list[ModelCard]


class Health(Said, frozen=True):
    status: Literal["ok"]


class Description(Struct, frozen=True):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
