"""The client for programs that wait. Knows the connection; what goes over it is ``exchange``'s business."""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import httpx

from ..status import Status
from . import exchange
from .decode import Assembly, completion_from, health_from, models_from, status_from
from .exchange import Call, Messages, Prompt
from .results import Chunk, Completion, ConnectionLost, EdgeRuntimeError, Health, Model, NotReachable
from .retry import Patience

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .options import ChatOptions, CompletionOptions


class Client:
    """Of the daemon at a Unix socket. May be shared by threads; connections are made when they are needed."""

    def __init__(
        self, socket: str | Path | None = None, *, patience_s: float = 10.0, timeout_s: float | None = None
    ) -> None:
        """``socket``: or the variable EDGE_RUNTIME_SOCKET, or the default. ``patience_s``: for a daemon that is not
        there (yet, or again) or answers 503; 0 asks once. ``timeout_s``: longest silence within an answer."""
        self.socket = exchange.socket_path(socket)
        self._patience_s = patience_s
        self._connected = False
        """Whether the last attempt found a daemon."""
        self._http = httpx.Client(
            transport=httpx.HTTPTransport(uds=self.socket),
            base_url=exchange.BASE_URL,
            timeout=exchange.timeouts(timeout_s),
        )

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Completion:
        """Raises ``EdgeRuntimeError``, as all of them do."""
        return completion_from(self._json(exchange.chat_call(messages, options, stream=False)))

    def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Completion:
        return completion_from(self._json(exchange.complete_call(prompt, options, stream=False)))

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Stream:
        """To be used as ``with client.stream_chat(...) as chunks: for chunk in chunks: ...``"""
        return Stream(self, exchange.chat_call(messages, options, stream=True))

    def stream_complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Stream:
        return Stream(self, exchange.complete_call(prompt, options, stream=True))

    def status(self) -> Status:
        return status_from(self._json(Call("GET", "/v1/status")))

    def swap_bundle(self, directory: str | Path) -> Status:
        """Serve another bundle, loaded beside the one that is served: an absolute path on the daemon's machine. For
        root and the daemon's own user. What fails leaves all as it was."""
        return status_from(self._json(exchange.swap_call(directory)))

    def models(self) -> tuple[Model, ...]:
        return models_from(self._json(Call("GET", "/v1/models")))

    def health(self) -> Health:
        """What the daemon says now; one that is not ready is an answer too. Raises ``NotReachable``."""
        response = self._send(Call("GET", "/health"), Patience(0.0, time.monotonic()), unready=False)
        return health_from(response.is_success, response.content)

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Raises what kept it from being ready: ``NotReachable``, or ``EdgeRuntimeError`` with the reason."""
        patience = Patience(timeout_s, time.monotonic(), longest_s=0.25)
        while True:
            problem: EdgeRuntimeError
            try:
                health = self.health()
                if health.ready:
                    return
                problem = exchange.not_ready(health, timeout_s)
                if health.state == "failed":
                    raise problem
            except (NotReachable, ConnectionLost) as absent:
                problem = absent
            wait_s = patience.wait_s(time.monotonic())
            if wait_s is None:
                raise problem
            time.sleep(wait_s)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _json(self, call: Call) -> object:
        return exchange.data_of(self._send(call, Patience(self._patience_s, time.monotonic())).content)

    def _send(self, call: Call, patience: Patience, *, unready: bool = True) -> httpx.Response:
        """A complete answer. ``unready``: 503 is an error, asked again while ``patience`` lasts."""
        response = self._open(call, patience, unready=unready)
        try:
            response.read()
        except httpx.HTTPError as problem:
            raise exchange.lost(self.socket, problem) from None
        finally:
            response.close()
        return response

    def _open(self, call: Call, patience: Patience, *, unready: bool = True) -> httpx.Response:
        """The head of an answer, asked for again as long as none came."""
        again_at_once = True
        while True:
            request = self._http.build_request(call.method, call.path, content=call.content(), headers=call.headers())
            error: EdgeRuntimeError
            try:
                self._knock()
                response = self._http.send(request, stream=True)
            except httpx.HTTPError as problem:
                self._connected = False
                error = exchange.failure(problem, self.socket)
                if exchange.broke_off(problem) and again_at_once:
                    # A kept connection whose daemon has been restarted.
                    again_at_once = False
                    continue
                if not exchange.worth_another_try(problem):
                    raise error from None
            else:
                if response.is_success or (response.status_code == 503 and not unready):
                    return response
                error = self._refusal(response)
                if response.status_code != 503:
                    raise error
            wait_s = patience.wait_s(time.monotonic(), error.retry_after_s)
            if wait_s is None:
                raise error
            time.sleep(wait_s)

    def _knock(self) -> None:
        """httpcore leaves a socket open behind every connection that is refused, and with it a warning: ours is
        refused first."""
        if self._connected:
            return
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as knocking:
            knocking.settimeout(exchange.CONNECT_S)
            try:
                knocking.connect(self.socket)
            except OSError as problem:
                raise httpx.ConnectError(str(problem)) from problem
        self._connected = True

    def _refusal(self, response: httpx.Response) -> EdgeRuntimeError:
        try:
            response.read()
        except httpx.HTTPError as problem:
            return exchange.lost(self.socket, problem)
        finally:
            response.close()
        return exchange.refusal(response)


class Stream:
    """An answer as it is made: an iterator of chunks. Leaving the ``with`` block early cancels it at the daemon."""

    def __init__(self, client: Client, call: Call) -> None:
        self._client, self._call = client, call
        self._response: httpx.Response | None = None
        self._chunks: Generator[Chunk, None, None] | None = None
        self._assembly = Assembly()

    def __enter__(self) -> Self:
        self._response = self._client._open(self._call, Patience(self._client._patience_s, time.monotonic()))
        self._chunks = self._read(self._response)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
        if self._response is not None:
            self._response.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self._chunks is None:
            raise RuntimeError("a stream is opened by its with statement")
        return next(self._chunks)

    def _read(self, response: httpx.Response) -> Generator[Chunk, None, None]:
        events = exchange.Events()
        try:
            for data in response.iter_raw():
                for event in events.feed(data):
                    yield from self._assembly.add(event)
        except httpx.HTTPError as problem:
            raise exchange.lost(self._client.socket, problem) from None
        if not events.done:
            raise exchange.lost(self._client.socket)

    def completion(self) -> Completion:
        """All of it, or as far as it came."""
        return self._assembly.completion()
