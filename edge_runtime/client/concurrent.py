"""The client for asyncio. The same as ``blocking``, line by line, with ``await``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
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


class AsyncClient:
    """Of the daemon at a Unix socket, within one event loop."""

    def __init__(
        self, socket: str | Path | None = None, *, patience_s: float = 10.0, timeout_s: float | None = None
    ) -> None:
        """As of ``Client``."""
        self.socket = exchange.socket_path(socket)
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=self.socket),
            base_url=exchange.BASE_URL,
            timeout=exchange.timeouts(timeout_s),
        )

    async def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> Completion:
        """Raises ``EdgeRuntimeError``, as all of them do."""
        return completion_from(await self._json(exchange.chat_call(messages, options, stream=False)))

    async def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Completion:
        return completion_from(await self._json(exchange.complete_call(prompt, options, stream=False)))

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> AsyncStream:
        """To be used as ``async with client.stream_chat(...) as chunks: async for chunk in chunks: ...``"""
        return AsyncStream(self, exchange.chat_call(messages, options, stream=True))

    def stream_complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> AsyncStream:
        return AsyncStream(self, exchange.complete_call(prompt, options, stream=True))

    async def status(self) -> Status:
        return status_from(await self._json(Call("GET", "/v1/status")))

    async def swap_bundle(self, directory: str | Path) -> Status:
        """Serve another bundle, loaded beside the one that is served: an absolute path on the daemon's machine. For
        root and the daemon's own user. What fails leaves all as it was."""
        return status_from(await self._json(exchange.swap_call(directory)))

    async def models(self) -> tuple[Model, ...]:
        return models_from(await self._json(Call("GET", "/v1/models")))

    async def health(self) -> Health:
        """What the daemon says now; one that is not ready is an answer too. Raises ``NotReachable``."""
        response = await self._send(Call("GET", "/health"), Patience(0.0, time.monotonic()), unready=False)
        return health_from(response.is_success, response.content)

    async def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Raises what kept it from being ready: ``NotReachable``, or ``EdgeRuntimeError`` with the reason."""
        patience = Patience(timeout_s, time.monotonic(), longest_s=0.25)
        while True:
            problem: EdgeRuntimeError
            try:
                health = await self.health()
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
            await asyncio.sleep(wait_s)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _json(self, call: Call) -> object:
        return exchange.data_of((await self._send(call, Patience(self._patience_s, time.monotonic()))).content)

    async def _send(self, call: Call, patience: Patience, *, unready: bool = True) -> httpx.Response:
        """A complete answer. ``unready``: 503 is an error, asked again while ``patience`` lasts."""
        response = await self._open(call, patience, unready=unready)
        try:
            await response.aread()
        except httpx.HTTPError as problem:
            raise exchange.lost(self.socket, problem) from None
        finally:
            await response.aclose()
        return response

    async def _open(self, call: Call, patience: Patience, *, unready: bool = True) -> httpx.Response:
        """The head of an answer, asked for again as long as none came."""
        again_at_once = True
        while True:
            request = self._http.build_request(call.method, call.path, content=call.content(), headers=call.headers())
            error: EdgeRuntimeError
            try:
                response = await self._http.send(request, stream=True)
            except httpx.HTTPError as problem:
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
                error = await self._refusal(response)
                if response.status_code != 503:
                    raise error
            wait_s = patience.wait_s(time.monotonic(), error.retry_after_s)
            if wait_s is None:
                raise error
            await asyncio.sleep(wait_s)

    async def _refusal(self, response: httpx.Response) -> EdgeRuntimeError:
        try:
            await response.aread()
        except httpx.HTTPError as problem:
            return exchange.lost(self.socket, problem)
        finally:
            await response.aclose()
        return exchange.refusal(response)


class AsyncStream:
    """An answer as it is made: an iterator of chunks. Leaving the ``async with`` block early cancels it."""

    def __init__(self, client: AsyncClient, call: Call) -> None:
        self._client, self._call = client, call
        self._response: httpx.Response | None = None
        self._chunks: AsyncGenerator[Chunk, None] | None = None
        self._assembly = Assembly()

    async def __aenter__(self) -> Self:
        self._response = await self._client._open(self._call, Patience(self._client._patience_s, time.monotonic()))
        self._chunks = self._read(self._response)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._chunks is not None:
            await self._chunks.aclose()
        if self._response is not None:
            await self._response.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        if self._chunks is None:
            raise RuntimeError("a stream is opened by its async with statement")
        return await anext(self._chunks)

    async def _read(self, response: httpx.Response) -> AsyncGenerator[Chunk, None]:
        events = exchange.Events()
        try:
            async for data in response.aiter_raw():
                for event in events.feed(data):
                    for chunk in self._assembly.add(event):
                        yield chunk
        except httpx.HTTPError as problem:
            raise exchange.lost(self._client.socket, problem) from None
        if not events.done:
            raise exchange.lost(self._client.socket)

    def completion(self) -> Completion:
        """All of it, or as far as it came."""
        return self._assembly.completion()
