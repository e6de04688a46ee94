"""An OpenAPI 3.1 description, made from the types that requests are read with. Knows no service."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from .. import __version__
from ..status import Status
from .schema import BundleRequest, ChatRequest, CompletionRequest, TokenizeRequest

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REFUSALS = {
    "400": "A field is wrong, or the prompt longer than the context; param names it.",
    "403": "Not this user's right.",
    "404": "No such model or path.",
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests wait.",
    "431": "The headers are too large.",
    "500": "An error of the daemon or its device.",
    "503": "Loading, draining, or over a limit.",
    "504": "The request's deadline passed.",
}


@cache
def description() -> dict[str, Any]:
    kinds = (ChatRequest, CompletionRequest, TokenizeRequest, BundleRequest, Status)
    references, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    chat, completion, tokenize, bundle, status = references
    return {
        "openapi": "3.1.0",
        "info": {"title": "edge-runtime", "version": __version__},
        "paths": {
            "/v1/chat/completions": {"post": _post("chat", chat, stream=True)},
            "/v1/completions": {"post": _post("complete", completion, stream=True)},
            "/v1/tokenize": {"post": _post("tokenize", tokenize)},
            "/v1/admin/bundle": {"post": _post("swapBundle", bundle, answer=status)},
            "/v1/models": {"get": _get("listModels")},
            "/v1/models/{name}": {"get": {**_get("showModel"), "parameters": [_NAME]}},
            "/v1/status": {"get": _get("status", status)},
            "/health": {"get": _get("health")},
            "/metrics": {"get": _get("metrics", media="text/plain")},
            "/openapi.json": {"get": _get("describe")},
        },
        "components": {"schemas": {**components, "Error": _ERROR}},
    }


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def _post(
    operation: str, body: dict[str, Any], *, stream: bool = False, answer: dict[str, Any] | None = None
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": answer or {"type": "object"}}}
    if stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "operationId": operation,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "OK", "content": content}, **_refusals()},
    }


def _get(operation: str, answer: dict[str, Any] | None = None, media: str = "application/json") -> dict[str, Any]:
    shape = answer or {"type": "string" if media == "text/plain" else "object"}
    content = {media: {"schema": shape}}
    return {"operationId": operation, "responses": {"200": {"description": "OK", "content": content}, **_refusals()}}


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": meaning, "content": content} for status, meaning in _REFUSALS.items()}
