"""What both clients send and how they read what comes, without a connection."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from ..config import DEFAULT_SOCKET
from .results import ConnectionLost, EdgeRuntimeError, Health, NotReachable

SOCKET_VARIABLE = "EDGE_RUNTIME_SOCKET"
CONNECT_S = 5.0
BASE_URL = "http://edge-runtime"
"""The host is of no account on a Unix socket."""

Messages = str | Sequence[Mapping[str, Any]]
"""One user message, or messages as OpenAI has them."""
Prompt = str | Sequence[int]
"""A text, or token ids."""

_BROKEN_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.CloseError)
"""A daemon that went away: before the first byte of its answer, nothing was lost."""


def socket_path(given: str | Path | None) -> str:
    path = os.fspath(given or os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)
    if "\0" in path:
        raise NotReachable(f"{path!r} is no path of a socket")
    return path


def timeouts(timeout_s: float | None) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=CONNECT_S)


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    path: str
    body: dict[str, Any] | None = None

    def content(self) -> bytes | None:
        """Raises ``EdgeRuntimeError`` for what JSON does not know."""
        if self.body is None:
            return None
        try:
            return msgspec.json.encode(self.body)
        except (TypeError, ValueError, UnicodeEncodeError) as problem:
            raise EdgeRuntimeError(
                f"the request is no JSON: {problem}", type="invalid_request_error", status=400
            ) from None

    def headers(self) -> dict[str, str]:
        return {} if self.body is None else {"content-type": "application/json"}


def chat_call(messages: Messages, options: Mapping[str, Any], *, stream: bool) -> Call:
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return Call("POST", "/v1/chat/completions", {"messages": said, **options, **_streaming(stream)})


def complete_call(prompt: Prompt, options: Mapping[str, Any], *, stream: bool) -> Call:
    return Call("POST", "/v1/completions", {"prompt": prompt, **options, **_streaming(stream)})


def swap_call(directory: str | Path) -> Call:
    return Call("POST", "/v1/admin/bundle", {"path": os.fspath(directory)})


def _streaming(stream: bool) -> dict[str, Any]:
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


def data_of(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise EdgeRuntimeError(f"the daemon's answer is no JSON: {problem}") from None


def refusal(response: httpx.Response) -> EdgeRuntimeError:
    """The error of an answer that is none; its content has been read."""
    try:
        data = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    return _error(data, response.status_code, _seconds(response.headers.get("retry-after")))


def _error(data: Any, status: int | None, retry_after_s: float | None = None) -> EdgeRuntimeError:
    told = data.get("error") if isinstance(data, dict) else None
    if not isinstance(told, dict):
        return EdgeRuntimeError(f"HTTP status {status}", status=status, retry_after_s=retry_after_s)
    given = {name: told.get(name) for name in ("param", "code")}
    return EdgeRuntimeError(
        str(told.get("message") or f"HTTP status {status}"),
        type=str(told.get("type") or "api_error"),
        status=status,
        retry_after_s=retry_after_s,
        **{name: None if value is None else str(value) for name, value in given.items()},
    )


def not_ready(health: Health, timeout_s: float) -> EdgeRuntimeError:
    why = f": {health.reason}" if health.reason else ""
    when = "" if health.state == "failed" else f", and was not ready within {timeout_s:g} s"
    return EdgeRuntimeError(f"the daemon is {health.state}{when}{why}", type="unavailable", status=503)


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < 1e6 else None


def failure(problem: httpx.HTTPError, path: str) -> EdgeRuntimeError:
    """What a connection's error means to a user."""
    if isinstance(problem, httpx.TimeoutException):
        return EdgeRuntimeError(f"no answer from {path} in time", type="timeout")
    if isinstance(problem, _BROKEN_OFF):
        return ConnectionLost(f"the daemon at {path} closed the connection before it answered")
    number = _errno(problem)
    if number in (errno.EACCES, errno.EPERM):
        return NotReachable(f"the socket {path} may not be used by this user: its group may be missing")
    why = os.strerror(number) if number else " ".join(str(problem).split())
    return NotReachable(
        f"no daemon answers at {path} ({why}): start it with 'edge-runtime serve --config CONFIG.yaml --socket {path}'"
    )


def worth_another_try(problem: httpx.HTTPError) -> bool:
    """Nothing of an answer was seen, and waiting may help."""
    if isinstance(problem, httpx.ConnectError):
        return _errno(problem) in (errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN, errno.ECONNRESET, None)
    return broke_off(problem)


def broke_off(problem: httpx.HTTPError) -> bool:
    return isinstance(problem, _BROKEN_OFF)


def lost(path: str, problem: Exception | None = None) -> ConnectionLost:
    why = f": {' '.join(str(problem).split())}" if problem is not None and str(problem) else ""
    return ConnectionLost(f"the daemon at {path} went away in the middle of an answer{why}")


def _errno(problem: BaseException) -> int | None:
    """Of the system's error beneath it."""
    below: BaseException | None = problem
    while below is not None:
        if isinstance(below, OSError) and below.errno is not None:
            return below.errno
        below = below.__cause__ or below.__context__
    return None


class Events:
    """Server-sent events out of bytes. Not httpx's lines, which end at characters that a text may well hold."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """Whether the daemon said that this was all."""

    def feed(self, data: bytes) -> Iterator[Any]:
        """What is complete now. Raises ``EdgeRuntimeError`` for an event that is one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or self.done:
                continue
            content = line[5:].strip()
            if content == b"[DONE]":
                self.done = True
                continue
            event = data_of(content)
            if isinstance(event, dict) and event.get("error") is not None:
                raise _error(event, None)
            yield event
