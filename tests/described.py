"""Answers held to the OpenAPI description that the daemon gives of itself. Knows no test."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import referencing
import referencing.jsonschema

from edge_runtime.server.openapi import description

_PLACE = "urn:description"


class Described:
    def __init__(self, document: Any = None) -> None:
        self.document = description() if document is None else document
        schema = referencing.Resource(self.document, referencing.jsonschema.DRAFT202012)
        self._registry = referencing.Registry().with_resource(_PLACE, schema)
        self._validators: dict[str, Any] = {}

    def operation(self, method: str, path: str) -> Any:
        """Raises ``KeyError``."""
        for template, methods in self.document["paths"].items():
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]*", template), path):
                return methods[method.lower()]
        raise KeyError(path)

    def check(self, method: str, path: str, status: int, headers: dict[str, str], body: Any) -> None:
        """``body``: JSON, or a text of another type. Raises ``AssertionError`` and ``jsonschema.ValidationError``."""
        responses = self.operation(method, path)["responses"]
        assert str(status) in responses, f"{method} {path} gave {status}, which is not described: {body}"
        response = responses[str(status)]
        kind = headers["content-type"].partition(";")[0]
        assert kind in response["content"], f"{method} {path} {status}: {kind} is not described"
        for name in response.get("headers", {}):
            assert int(headers[name.lower()]) >= 1
        self._valid(response["content"][kind]["schema"].get("$ref"), body)

    def check_part(self, name: str, data: Any) -> None:
        """Of ``components``."""
        self._valid(f"#/components/schemas/{name}", data)

    def _valid(self, reference: str | None, data: Any) -> None:
        if reference is None:
            assert isinstance(data, str)
            return
        if reference not in self._validators:
            kind = jsonschema.Draft202012Validator
            self._validators[reference] = kind({"$ref": f"{_PLACE}{reference}"}, registry=self._registry)
        self._validators[reference].validate(data)
