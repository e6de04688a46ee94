"""From a flight of answers to an HTTP response: whole, or as server-sent events. Knows neither endpoint's fields."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from ..errors import Cancelled, EdgeError, Unavailable
from ..generation import Piece
from ..scheduler.request import Event, Failed, Finished, Request, Started
from .answer import Answer
from .flight import Flight
from .logprobs import LogprobLine, TokenLogprob
from .metrics import Metrics
from .problems import error_object
from .reading import Receive
from .service import Model, Turns

Send = Callable[[Any], Awaitable[None]]
_DONE = b"data: [DONE]\n\n"


class Form(Protocol):
    """How an endpoint writes answers. Chunks are what a stream sends, one event each."""

    def opening(self, index: int) -> list[dict[str, Any]]: ...

    def pieces(self, index: int, text: str, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]: ...

    def closing(self, answer: Answer) -> list[dict[str, Any]]: ...

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]: ...

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]: ...


class Answering:
    """An ASGI response that makes its answers while it is sent."""

    def __init__(
        self,
        model: Model,
        scheduler: Turns,
        requests: Sequence[Request],
        form: Form,
        metrics: Metrics,
        *,
        include_usage: bool = False,
    ) -> None:
        self._model, self._scheduler, self._requests = model, scheduler, requests
        self._form, self._metrics, self._include_usage = form, metrics, include_usage
        self._begun = False
        """Whether a status was sent."""

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async with Flight(self._model, self._scheduler, self._requests, receive) as flight:
            answers = [self._answer(flight, index) for index in range(flight.count)]
            try:
                await self._send(flight, answers, send)
            except asyncio.CancelledError:
                # uvicorn's patience ends while it stops; a task that is cancelled would be a traceback in its log.
                if self._begun:
                    return
                raise Unavailable("the daemon stopped before the answer was complete") from None
            finally:
                for answer in answers:
                    self._metrics.answered(answer, left=flight.left)

    async def _send(self, flight: Flight, answers: list[Answer], send: Send) -> None:
        """All of it at once, once it is there."""
        while (item := await flight.next()) is not None:
            _take(answers, item)
        if flight.left:
            return
        body = msgspec.json.encode(self._form.whole(answers))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._begin(send, headers)
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    def _answer(self, flight: Flight, index: int) -> Answer:
        served = self._model.served
        wanted = self._requests[index].top_logprobs is not None
        line = LogprobLine(served.piece_bytes, served.eos_ids) if wanted else None
        return Answer(index, line, flight.started_s)


class Streaming(Answering):
    """Sends what there is as it comes."""

    async def _send(self, flight: Flight, answers: list[Answer], send: Send) -> None:
        # A refusal is a status as long as nothing was sent.
        first = await flight.next()
        if first is None:
            return
        _take(answers, first)
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await self._begin(send, headers)
        for answer in answers:
            await self._send_chunks(send, self._form.opening(answer.index))
        try:
            while (item := await flight.next()) is not None:
                await self._send_chunks(send, self._chunks(answers, item))
        except EdgeError as error:
            await send(_event(error_object(error)))
        else:
            if flight.left:
                return
            if self._include_usage:
                await send(_event(self._form.usage(answers)))
            await send({"type": "http.response.body", "body": _DONE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _chunks(self, answers: list[Answer], item: tuple[int, Event, float]) -> list[dict[str, Any]]:
        index, event, _ = item
        found = _take(answers, item)
        if isinstance(event, Piece):
            return self._form.pieces(index, event.text, found)
        return self._form.closing(answers[index]) if isinstance(event, Finished) else []

    async def _send_chunks(self, send: Send, chunks: Sequence[dict[str, Any]]) -> None:
        for chunk in chunks:
            # As OpenAI does: who asked for usage finds the field in every chunk.
            await send(_event({**chunk, "usage": None} if self._include_usage else chunk))


def _take(answers: list[Answer], item: tuple[int, Event, float]) -> list[TokenLogprob]:
    """Raises the error of an answer that failed."""
    index, event, at_s = item
    answer = answers[index]
    if isinstance(event, Failed):
        raise event.error
    if isinstance(event, Started):
        answer.started = event
    elif isinstance(event, Finished):
        answer.result = event.result
        if event.result.finish_reason is None:
            raise Cancelled("the answer was given up before its end")
    else:
        return answer.take(event, at_s)
    return []


def _event(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"data: " + msgspec.json.encode(data) + b"\n\n", "more_body": True}
