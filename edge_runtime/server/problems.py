"""Errors as HTTP says them: a status and OpenAI's error object. Knows no endpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import (
    Cancelled,
    DeadlineExceeded,
    EdgeError,
    InputError,
    OutOfBudget,
    PromptTooLong,
    QueueFull,
    Stopped,
    Unavailable,
    one_line,
)

_LONGEST_TOLD = 1000
INTERNAL = "internal error: the daemon's log has the details"


class Refusal(EdgeError):
    """What only HTTP can get wrong: a path, a method, a body's size, a right that is missing."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.code, self.param = code, param
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that says why there is none."""

    status: int
    body: bytes
    headers: dict[str, str]

    @staticmethod
    def of(error: EdgeError) -> Problem:
        headers = dict(error.headers) if isinstance(error, Refusal) else {}
        if isinstance(error, Unavailable | Stopped):
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        return Problem(error.http_status, msgspec.json.encode(error_object(error)), headers)


def error_object(error: EdgeError) -> dict[str, Any]:
    """``{"error": ...}``: the body of a refusal, and the last event of a stream that broke off."""
    param = error.param if isinstance(error, InputError | Refusal) else None
    # Either may quote what a client sent.
    return {
        "error": {
            "message": one_line(str(error), _LONGEST_TOLD),
            "type": _type(error),
            "param": None if param is None else one_line(param, _LONGEST_TOLD),
            "code": _code(error),
        }
    }


def _type(error: EdgeError) -> str:
    status = error.http_status
    if status == 429:
        return "rate_limit_error"
    if status == 403:
        return "permission_error"
    if status == 404:
        return "not_found_error"
    if status == 503:
        return "unavailable_error"
    if status in (408, 504):
        return "timeout_error"
    return "invalid_request_error" if 400 <= status < 499 else "server_error"


def _code(error: EdgeError) -> str | None:
    if isinstance(error, Refusal):
        return error.code
    codes: tuple[tuple[type[EdgeError], str], ...] = (
        (PromptTooLong, "context_length_exceeded"),
        (QueueFull, "queue_full"),
        (Unavailable, "unavailable"),
        (DeadlineExceeded, "deadline_exceeded"),
        (Cancelled, "cancelled"),
        (OutOfBudget, "out_of_budget"),
        (InputError, "invalid_value"),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)
