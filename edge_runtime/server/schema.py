"""What requests look like: OpenAI's fields and ours, as types. Knows no model; ``openapi`` describes them.

Every field may be left out or null where it has a default. Fields that OpenAI knows and this daemon does not stand in
``NEUTRAL``: they are taken only with a value that asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

MOST_CHOICES = 128
"""Answers of one request: ``n``, and prompts times ``n``."""
MOST_STOPS = 16
MOST_TOOLS = 128
"""And calls of one message."""
MOST_TOP_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""OpenAI's default of /v1/completions."""

_MOST = (1 << 31) - 1
Count = Annotated[int, Meta(ge=1, le=_MOST)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
"""Longer ones would be looked for at every token."""
Stop = StopText | Annotated[list[StopText], Meta(max_length=MOST_STOPS)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """An object of which nothing is ignored."""


class StreamOptions(Strict, frozen=True):
    include_usage: bool | None = None


class Speculative(Strict, frozen=True):
    """Ours: how this request is drafted for. Its text is the same law either way."""

    enabled: bool | None = None
    max_draft_tokens: Annotated[int, Meta(ge=0, le=1 << 16)] | None = None
    acceptance: Literal["lossless", "exact", "sampled"] | None = None


class ContentPart(Strict, frozen=True):
    """Only text is read; parts of other types are refused by name."""

    text: str
    type: Literal["text"] = "text"


class FunctionCall(Strict, frozen=True):
    name: str
    arguments: str


class ToolCall(Strict, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(Strict, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    """Of the function, in an answer of a tool; refused elsewhere, since Gemma's turns have no names."""


class Function(Strict, frozen=True):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Arguments always follow their schema."""


class Tool(Strict, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Strict, frozen=True):
    name: str


class NamedTool(Strict, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchema(Strict, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None
    """Answers always follow the schema."""


class ResponseFormat(Strict, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Prediction(Strict, frozen=True):
    content: str | list[ContentPart]
    type: Literal["content"] = "content"


class Common(Strict, frozen=True, kw_only=True):
    """Of both endpoints."""

    model: str | None = None
    """The served one, when left out."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stop: Stop | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_MOST)] | None = None
    """0 and -1 are off."""
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=4096)] | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    speculative: Speculative | None = None
    priority: Annotated[int, Meta(ge=-2, le=2)] | None = None
    """Lower ones are served first; below 0 for users that may lead alone."""
    timeout_ms: Annotated[int, Meta(ge=1, le=_MOST)] | None = None
    """An answer that is not complete by then is given up."""
    repeat_limit: Annotated[int, Meta(ge=6, le=1 << 20)] | None = None
    """Ends an answer whose last so many tokens go round in circles."""
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Prefixes are then reused between this user's requests with the same salt, and with nobody else's."""
    # Of OpenAI's service; none of them changes a text.
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default"] | None = None


class ChatRequest(Common, frozen=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[Count, Meta(description="Wins over max_tokens, its older name.")] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Common, frozen=True, kw_only=True):
    prompt: str | list[Any]
    """A text, token ids, or a list of either."""
    logprobs: Annotated[int, Meta(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


class TokenizeRequest(Strict, frozen=True, kw_only=True):
    """Ours: the ids that a text or a conversation has as a prompt."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None


class BundleRequest(Strict, frozen=True):
    path: Annotated[str, Meta(min_length=1)]


# What asks for nothing, by field; null always does.
NEUTRAL: dict[type[Struct], dict[str, tuple[Any, ...]]] = {
    Common: {
        "store": (False,),
        "repetition_penalty": (1, 1.0),
        "repeat_penalty": (1, 1.0),
        "prompt_cache_retention": (),
        "moderation": (),
    },
    ChatRequest: {
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("none",),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
    },
    CompletionRequest: {"echo": (False,), "suffix": ("",), "best_of": (1,)},
    ChatMessage: {"refusal": (), "audio": (), "function_call": (), "annotations": ([],), "reasoning_content": ("",)},
    ContentPart: {"annotations": ([],), "prompt_cache_breakpoint": ()},
    StreamOptions: {"include_obfuscation": (False,)},
}


def neutral(cls: type[Struct]) -> dict[str, tuple[Any, ...]]:
    """Of a type and those it is made from."""
    found: dict[str, tuple[Any, ...]] = {}
    for kind in reversed(cls.__mro__):
        found |= NEUTRAL.get(kind, {})
    return found


def field_names(cls: type[Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(cls)]
