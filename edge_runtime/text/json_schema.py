"""What a JSON schema may say here. Knows no grammar library: it refuses what none could keep, and by name.

Of JSON Schema draft 2020-12, without the keywords that a text written from left to right cannot be held to
(``not``, ``if``, ``contains``, ``uniqueItems``, ...). A keyword that nobody knows is refused too: a schema is a promise
about every answer, and an ignored keyword would break it in silence.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import InputError, did_you_mean

MAX_BYTES = 128 << 10
MAX_DEPTH = 100
"""Levels of JSON; the library stops at 128."""

_ONE = frozenset({"additionalProperties", "items"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_VALUES = frozenset({
    "type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems", "minLength",
    "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "$ref",
})  # fmt: skip
# What says nothing about an instance.
_NOTES = frozenset({
    "$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
})  # fmt: skip
_MISSPELT = 0.8
"""Likeness of a slip: ``contains`` is no misspelt ``const``."""
_KNOWN = _ONE | _LISTS | _MAPS | _VALUES | _NOTES

Schema = dict[str, Any]


def checked(schema: object, where: str, param: str) -> Schema:
    """The schema, for a grammar to be made of. Raises ``InputError`` with ``param``, in one line that begins with
    ``where``, for one that is too large or too deep, has a keyword that is not supported, or that no finite text
    satisfies.
    """
    if not isinstance(schema, dict):
        raise InputError(f"{where}: a JSON schema must be an object, not {_kind(schema)}", param)
    try:
        _bound(schema)
        for place, part in _parts(schema):
            _check_part(place, part)
        _check_ends(schema)
    except InputError as problem:
        raise InputError(f"{where}: {problem}", param) from None
    return schema


def _bound(schema: Schema) -> None:
    """Depth before size: what is too deep cannot be written down."""
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        inner = [value for value in level if isinstance(value, dict | list)]
        if not inner:
            break
        level = [item for value in inner for item in (value.values() if isinstance(value, dict) else value)]
    else:
        raise InputError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        size = len(json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise InputError(f"not JSON: {problem}") from None
    if size > MAX_BYTES:
        raise InputError(f"{size} bytes of JSON, at most {MAX_BYTES} are compiled")


def _parts(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Every schema inside, itself first, with its place as a JSON pointer."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        place, part = waiting.pop()
        yield place, part
        for step, inner in _inner(part) if isinstance(part, dict) else ():
            waiting.append((f"{place}/{step}", inner))


def _inner(part: Schema) -> Iterator[tuple[str, Any]]:
    for key, value in part.items():
        if key in _ONE:
            yield key, value
        elif key in _LISTS and isinstance(value, list):
            yield from ((f"{key}/{index}", item) for index, item in enumerate(value))
        elif key in _MAPS and isinstance(value, dict):
            yield from ((f"{key}/{_escaped(name)}", item) for name, item in value.items())


def _check_part(place: str, part: Any) -> None:
    if isinstance(part, bool):
        return
    if not isinstance(part, dict):
        raise InputError(f"{place} must be a schema, not {_kind(part)}")
    for key, value in part.items():
        if key not in _KNOWN:
            raise InputError(
                f"{place}: keyword {key!r} is not supported{did_you_mean(key, _KNOWN, likeness=_MISSPELT)}"
            )
        if key in _LISTS and not isinstance(value, list):
            raise InputError(f"{place}/{key} must be a list, not {_kind(value)}")
        if key in _MAPS and not isinstance(value, dict):
            raise InputError(f"{place}/{key} must be an object, not {_kind(value)}")
    reference = part.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise InputError(f"{place}: $ref must stay inside the schema ('#/...'), not {reference!r}")


def _check_ends(schema: Schema) -> None:
    """Refuses a part that only an endless text satisfies, as a list node that must have a next one. Of an optional
    part too: a model that begins it could not come out again."""
    parts = {place: part for place, part in _parts(schema) if isinstance(part, dict)}
    users: dict[str, list[str]] = {}
    for place, part in parts.items():
        for inner in [f"{place}/{step}" for step, _ in _inner(part)] + [part.get("$ref", "")]:
            users.setdefault(inner, []).append(place)
    ending: set[str] = set()
    waiting = deque(reversed(parts))
    while waiting:
        place = waiting.popleft()
        if place not in ending and _ends(place, parts[place], parts, ending):
            ending.add(place)
            waiting += users.get(place, ())
    if endless := next((place for place in parts if place not in ending), None):
        raise InputError(f"{endless}: no finite text satisfies it, since it requires itself")


def _ends(place: str, part: Schema, parts: dict[str, Schema], ending: set[str]) -> bool:
    """Whether a finite text satisfies a part, as far as the parts in ``ending`` do."""

    def done(step: str) -> bool:
        inner = f"{place}/{step}"
        return inner in ending or inner not in parts

    def every(key: str) -> bool:
        return all(done(f"{key}/{index}") for index in range(len(part.get(key, []))))

    if part.get("$ref") in parts and part["$ref"] not in ending:
        return False
    if "enum" in part or "const" in part:
        return True
    for key in ("anyOf", "oneOf"):
        if key in part and not any(done(f"{key}/{index}") for index in range(len(part[key]))):
            return False
    if not every("allOf"):
        return False
    return _object_ends(part, done) and _array_ends(part, every, done)


def _object_ends(part: Schema, done: Callable[[str], bool]) -> bool:
    if _other_than("object", part):
        return True
    required = part.get("required", [])
    return not isinstance(required, list) or all(
        done(f"properties/{_escaped(name)}") for name in required if isinstance(name, str)
    )


def _array_ends(part: Schema, every: Callable[[str], bool], done: Callable[[str], bool]) -> bool:
    if _other_than("array", part):
        return True
    least = part.get("minItems", 0)
    if not isinstance(least, int | float) or least <= 0:
        return True
    first = len(part.get("prefixItems", []))
    return all(done(f"prefixItems/{index}") for index in range(min(first, int(least)))) and (
        least <= first or done("items")
    )


def _other_than(kind: str, part: Schema) -> bool:
    """Whether an instance may be something else, to which the keywords of ``kind`` say nothing."""
    given = part.get("type")
    return given != kind and given != [kind]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _kind(value: object) -> str:
    names = {bool: "a boolean", str: "a string", list: "a list", type(None): "null", dict: "an object"}
    return names.get(type(value), "a number")
