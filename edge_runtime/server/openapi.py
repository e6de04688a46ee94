"""An OpenAPI 3.1 description, made from the types that requests are read with and those of ``answer_types``. Knows no
service.

HEAD is not described, though every path that takes GET takes it: HTTP says already that it is GET without a body.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from .. import __version__
from ..status import Status
from .answer_types import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    CompletionChunk,
    Description,
    Error,
    Health,
    ModelCard,
    ModelList,
    TokenizeAnswer,
)
from .schema import MOST_CHOICES, BundleRequest, ChatRequest, CompletionRequest, TokenizeRequest

_MEANINGS = {
    400: "A field is wrong, or the prompt longer than the context, or this is no HTTP; param names the field.",
    403: "Not this user's right.",
    404: "No such model or path.",
    408: "The request did not arrive in time.",
    409: "What is asked for needs more memory than there is.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests of this client wait, or too large ones.",
    431: "The headers are too large.",
    499: "The answer was given up before its end: the client left.",
    500: "An error of the daemon or its device.",
    501: "A transfer coding other than chunked.",
    503: "Loading, draining, stopped before the end of the answer, or over a limit.",
    504: "The request's deadline passed.",
    505: "Another HTTP than 1.x.",
}
_ALWAYS = (400, 408, 431, 500, 501, 503, 505)
"""Whatever is asked for."""
_BODY = (413, 415)
_RETRIED = frozenset({429, 503})
_KINDS: tuple[type, ...] = (
    BundleRequest,
    ChatAnswer,
    ChatChunk,
    ChatRequest,
    CompletionAnswer,
    CompletionChunk,
    CompletionRequest,
    Description,
    Error,
    Health,
    ModelCard,
    ModelList,
    Status,
    TokenizeAnswer,
    TokenizeRequest,
)
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string"}
_SEVERAL = [{"type": "array", "items": one, "minItems": 1, "maxItems": MOST_CHOICES} for one in (_TEXT, _TOKENS)]
_PROMPTS = [_TEXT, _TOKENS, *_SEVERAL]
"""Which the type leaves open: a union of lists is read item by item, where the model is known."""
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


@cache
def description() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(_KINDS, ref_template="#/components/schemas/{name}")
    components["CompletionRequest"]["properties"]["prompt"] = {"anyOf": _PROMPTS}
    answering = (403, 404, 429, 499, 504)
    return {
        "openapi": "3.1.0",
        "info": {"title": "edge-runtime", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _post("chat", ChatRequest, ChatAnswer, answering, ChatChunk)},
            "/v1/completions": {
                "post": _post("complete", CompletionRequest, CompletionAnswer, answering, CompletionChunk)
            },
            "/v1/tokenize": {"post": _post("tokenize", TokenizeRequest, TokenizeAnswer, (404, 429))},
            "/v1/admin/bundle": {"post": _post("swapBundle", BundleRequest, Status, (403, 404, 409, 429))},
            "/v1/models": {"get": _get("listModels", ModelList)},
            "/v1/models/{name}": {"get": {**_get("showModel", ModelCard, (404,)), "parameters": [_NAME]}},
            "/v1/status": {"get": _get("status", Status)},
            "/health": {"get": _get("health", Health)},
            "/metrics": {"get": _operation("metrics", {"text/plain": {"schema": {"type": "string"}}}, ())},
            "/openapi.json": {"get": _get("describe", Description)},
        },
        "components": {"schemas": components},
    }


def _post(
    operation: str, asked: type, answer: type, statuses: Iterable[int], event: type | None = None
) -> dict[str, Any]:
    content = _json(answer)
    if event is not None:
        told = f"With stream: true. Lines of `data:`, each a {event.__name__} or, where it broke off, an Error."
        content["text/event-stream"] = {"schema": {"description": told}}
    body = {"required": True, "content": _json(asked)}
    return {"requestBody": body, **_operation(operation, content, (*_BODY, *statuses))}


def _get(operation: str, answer: type, statuses: Iterable[int] = ()) -> dict[str, Any]:
    return _operation(operation, _json(answer), statuses)


def _operation(operation: str, content: dict[str, Any], statuses: Iterable[int]) -> dict[str, Any]:
    refusals = {str(status): _refusal(status) for status in sorted({*_ALWAYS, *statuses})}
    return {"operationId": operation, "responses": {"200": {"description": "OK", "content": content}, **refusals}}


def _refusal(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {"description": _MEANINGS[status], "content": _json(Error)}
    if status in _RETRIED:
        told = {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}, "required": True}
        found["headers"] = {"Retry-After": told}
    return found


def _json(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
