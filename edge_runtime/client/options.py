"""What may be asked of an answer, by the names of the HTTP fields. Knows no connection, and checks nothing: the daemon
does, and names the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Options(TypedDict, total=False):
    """Of both endpoints."""

    model: str
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: str | Sequence[str]
    n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]
    response_format: Mapping[str, Any]
    prediction: Mapping[str, Any]
    speculative: Mapping[str, Any]
    """``{"enabled": bool, "max_draft_tokens": int, "acceptance": "lossless" | "exact" | "sampled"}``"""
    priority: int
    """-2 to 2; lower ones are served first. Below 0 for whom the daemon lets lead (403 for others)."""
    repeat_limit: int
    timeout_ms: int
    """An answer that is not complete by then fails."""
    cache_salt: str
    """Its prompts are reused for this user's requests with the same one only."""
    user: str
    metadata: Mapping[str, str]
    safety_identifier: str
    prompt_cache_key: str
    service_tier: str


class ChatOptions(Options, total=False):
    max_completion_tokens: int
    """Of an answer; as many as the context holds, if neither this nor ``max_tokens`` is given."""
    max_tokens: int
    logprobs: bool
    top_logprobs: int
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool


class CompletionOptions(Options, total=False):
    max_tokens: int
    """16, as of OpenAI, if it is not given."""
    logprobs: int
