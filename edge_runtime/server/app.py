"""The HTTP app: paths, and what stands behind each. Knows neither sockets nor how a model is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import EdgeError, InputError, Unavailable, did_you_mean
from ..schema import plain
from .answering import Answering, Streaming
from .asking import Asker, check_model
from .chat import ChatForm
from .completions import CompletionForm, completion_requests, encoded
from .connection import peer_of
from .conversation import chat_prompt, chat_requests, tools_of
from .intake import AT_ONCE, Intake, Visit
from .metrics import Metrics
from .openapi import description
from .problems import INTERNAL, Problem, Refusal
from .reading import ClientLeft, body_of, parse
from .schema import BundleRequest, ChatRequest, Common, CompletionRequest, TokenizeRequest
from .service import Model, Service, Turns
from .status import status_of

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NOBODY_READS = 499
_BURST = 4
"""Requests of one client that may come at once, by those that may wait."""

T = TypeVar("T")


def create_app(service: Service) -> Starlette:
    """An ASGI app. Serves any Host, since a Unix socket has no name."""
    api = _Api(service)
    routes = [
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/tokenize", api.tokenize, methods=["POST"]),
        Route("/v1/models", api.models, methods=["GET"]),
        Route("/v1/models/{name:path}", api.model, methods=["GET"]),
        Route("/v1/status", api.status, methods=["GET"]),
        Route("/v1/admin/bundle", api.swap, methods=["POST"]),
        Route("/health", api.health, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/openapi.json", api.openapi, methods=["GET"]),
    ]
    paths = [route.path for route in routes]

    # Coroutines: Starlette runs a plain function in a thread.
    async def refused(request: Request, error: Exception) -> Response:
        return _refused(error if isinstance(error, EdgeError) else EdgeError(INTERNAL))

    async def unroutable(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refused(_unroutable(request, error, paths))

    async def unheard(request: Request, error: Exception) -> Response:
        return Response(status_code=_NOBODY_READS)

    handlers: dict[Any, Callable[..., Any]] = {
        EdgeError: refused,
        HTTPException: unroutable,
        ClientLeft: unheard,
        Exception: refused,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    # A redirect would name a host, and this daemon has none.
    app.router.redirect_slashes = False
    return app


class _Api:
    """One method for each path."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._metrics = Metrics(service)
        self._intake = Intake(service.config.server.max_body_bytes)

    async def chat(self, request: Request) -> Any:
        return await self._prepared(request, self._chat)

    async def completions(self, request: Request) -> Any:
        return await self._prepared(request, self._complete)

    async def tokenize(self, request: Request) -> Response:
        return await self._prepared(request, self._tokenize)

    async def _prepared(self, request: Request, prepare: Callable[[bytes, Asker], T]) -> T:
        """Not on the loop that streams to others."""
        client, config = peer_of(request.scope).uid, self._service.config
        with self._intake.visit(client) as visit:
            body = await self._body(request, visit)
            private, may_lead = config.isolation.keeps_apart(client), config.limits.may_lead(client)
            asker = Asker(client, self._service.clock(), private, may_lead)
            # A burst that the queue would take is taken; and of the connections some are left for others.
            most = max(AT_ONCE, min(_BURST * config.limits.queue_per_client, config.server.max_connections // 2))
            return await visit.prepare(most, lambda: prepare(body, asker), request.receive)

    def _chat(self, body: bytes, asker: Asker) -> Answering:
        asked = parse(ChatRequest, body)
        answering, include_usage = _kind(asked)
        model, scheduler = self._ready(asked.model)
        requests = chat_requests(asked, model, asker)
        logprobs, tools = bool(asked.logprobs), bool(tools_of(asked))
        form = ChatForm(model.name, asked.n or 1, model.served.piece_bytes, logprobs=logprobs, tools=tools)
        return answering(model, scheduler, requests, form, self._metrics, include_usage=include_usage)

    def _complete(self, body: bytes, asker: Asker) -> Answering:
        asked = parse(CompletionRequest, body)
        answering, include_usage = _kind(asked)
        model, scheduler = self._ready(asked.model)
        requests = completion_requests(asked, model, asker)
        form = CompletionForm(model.name, asked.n or 1, model.served.piece_bytes, asked.logprobs is not None)
        return answering(model, scheduler, requests, form, self._metrics, include_usage=include_usage)

    def _tokenize(self, body: bytes, asker: Asker) -> Response:
        asked = parse(TokenizeRequest, body)
        model, _ = self._ready(asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise InputError("one of prompt and messages is required", "prompt")
        if asked.messages is not None:
            ids = chat_prompt(asked.messages, model)
        else:
            ids = encoded(asked.prompt or "", model)
        return _json({"tokens": ids.tolist(), "count": len(ids), "max_model_len": model.context})

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [_model(self._model())]})

    async def model(self, request: Request) -> Response:
        model = self._model()
        check_model(request.path_params["name"], model)
        return _json(_model(model))

    async def status(self, request: Request) -> Response:
        scheduler = self._service.standing.scheduler
        return _json(plain(status_of(self._service, None if scheduler is None else scheduler.snapshot())))

    async def health(self, request: Request) -> Response:
        _, scheduler = self._service.ready()
        if refusal := scheduler.snapshot().refusal:
            raise Unavailable(refusal)
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.exposition(), headers={"content-type": METRICS_TYPE})

    async def openapi(self, request: Request) -> Response:
        return _json(description())

    async def swap(self, request: Request) -> Response:
        peer = peer_of(request.scope)
        if peer.uid not in (0, os.getuid()):
            who = "TCP has no peer credentials" if peer.uid < 0 else f"uid {peer.uid} is neither root nor the daemon's"
            raise Refusal(403, "not_allowed", f"only root and the daemon's own user may swap the bundle: {who}")
        with self._intake.visit(peer.uid) as visit:
            asked = parse(BundleRequest, await self._body(request, visit))
        if self._service.swap is None:
            raise Refusal(404, "not_configured", "this daemon cannot swap its bundle")
        if not os.path.isabs(asked.path) or "\0" in asked.path:
            raise InputError("path: must be absolute: the daemon has a directory of its own", "path")
        await self._service.swap(Path(asked.path))
        return await self.status(request)

    async def _body(self, request: Request, visit: Visit) -> bytes:
        most = self._service.config.server.max_body_bytes
        return await body_of(request.receive, request.headers, most, visit.hold)

    def _ready(self, name: str | None) -> tuple[Model, Turns]:
        model, scheduler = self._service.ready()
        check_model(name, model)
        return model, scheduler

    def _model(self) -> Model:
        model = self._service.standing.model
        return self._service.ready()[0] if model is None else model


def _kind(asked: Common) -> tuple[type[Answering], bool]:
    options = asked.stream_options
    if not asked.stream:
        if options is not None and options.include_usage:
            raise InputError("stream_options needs stream: true", "stream_options")
        return Answering, False
    return Streaming, bool(options is not None and options.include_usage)


def _model(model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_s,
        "owned_by": "edge-runtime",
        "max_model_len": model.context,
    }


def _json(data: Any) -> Response:
    return Response(msgspec.json.encode(data), media_type="application/json")


def _refused(error: EdgeError) -> Response:
    problem = Problem.of(error)
    return Response(problem.body, problem.status, problem.headers, media_type="application/json")


def _unroutable(request: Request, error: HTTPException, paths: list[str]) -> Refusal:
    path = request.url.path
    if error.status_code == 404:
        return Refusal(404, "unknown_path", f"no such path: {path[:128]}{did_you_mean(path[:128], paths)}")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        text = f"{path} takes {allowed}, not {request.method}"
        return Refusal(405, "method_not_allowed", text, headers={"allow": allowed})
    return Refusal(error.status_code, "refused", str(error.detail), headers=error.headers)
