"""What a JSON schema may say here. Knows no grammar library: it refuses what none could keep, and by name.

Of JSON Schema draft 2020-12, without the keywords that a text written from left to right cannot be held to
(``not``, ``if``, ``contains``, ``uniqueItems``, ...). A keyword that nobody knows is refused too: a schema is a promise
about every answer, and an ignored keyword would break it in silence.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ..errors import InputError, did_you_mean
from .schema_costs import check_costs
from .schema_parts import LISTS, MAPS, ONE, Part, Parts, Schema, escaped

MAX_BYTES = 128 << 10
MAX_DEPTH = 100
"""Levels of JSON; the library stops at 128."""

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
_KNOWN = ONE | LISTS | MAPS | _VALUES | _NOTES


def checked(schema: object, where: str, param: str) -> Schema:
    """The schema, for a grammar to be made of. Raises ``InputError`` with ``param``, in one line that begins with
    ``where``, for one that is too large or too deep, has a keyword that is not supported, or that no finite text
    satisfies.
    """
    if not isinstance(schema, dict):
        raise InputError(f"{where}: a JSON schema must be an object, not {_kind(schema)}", param)
    try:
        _bound(schema)
        parts = Parts(schema)
        for part in parts.all:
            _check_part(part)
        _check_ends(parts)
        check_costs(parts)
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


def _check_part(part: Part) -> None:
    said = part.said
    if isinstance(said, bool):
        return
    if not isinstance(said, dict):
        raise InputError(f"{part.place} must be a schema, not {_kind(said)}")
    for key, value in said.items():
        if key not in _KNOWN:
            known = did_you_mean(key[:64], _KNOWN, likeness=_MISSPELT)
            raise InputError(f"{part.place}: keyword {key[:64]!r} is not supported{known}")
        if key in LISTS and not isinstance(value, list):
            raise InputError(f"{part.place}/{key} must be a list, not {_kind(value)}")
        if key in MAPS and not isinstance(value, dict):
            raise InputError(f"{part.place}/{key} must be an object, not {_kind(value)}")
    reference = said.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise InputError(f"{part.place}: $ref must stay inside the schema ('#/...'), not {str(reference)[:64]!r}")


def _check_ends(parts: Parts) -> None:
    """Refuses a part that only an endless text satisfies, as a list node that must have a next one. Of an optional
    part too: a model that begins it could not come out again."""
    schemas = [part for part in parts.all if isinstance(part.said, dict)]
    open_ = {part: _conditions(part, parts) for part in schemas}
    users: dict[Part, list[tuple[Part, int]]] = {}
    for part, conditions in open_.items():
        for index, (_, needed) in enumerate(conditions):
            for one in needed:
                users.setdefault(one, []).append((part, index))
    left = {
        part: [len(needed) if kind == "all" else 1 for kind, needed in conditions] for part, conditions in open_.items()
    }
    unmet = {part: sum(count > 0 for count in counts) for part, counts in left.items()}
    ending = [part for part, count in unmet.items() if not count]
    # Each part ends once, and then each that needs it hears of it once.
    for part in ending:
        for user, index in users.get(part, ()):
            left[user][index] -= 1
            if left[user][index] == 0:
                unmet[user] -= 1
                if unmet[user] == 0:
                    ending.append(user)
    if len(ending) < len(schemas):
        endless = next(part for part in schemas if unmet[part])
        raise InputError(f"{endless.place}: no finite text satisfies it, since it requires itself")


def _conditions(part: Part, parts: Parts) -> list[tuple[Literal["all", "any"], list[Part]]]:
    """What must have an end for a text of this part to have one."""
    said = part.said
    found: list[tuple[Literal["all", "any"], list[Part]]] = []
    referred = parts.referred(part)
    if referred is not None:
        found.append(("all", [referred]))
    if "enum" in said or "const" in said:
        return found
    for key in ("anyOf", "oneOf"):
        alternatives = part.within(key)
        # One that is a boolean ends; of none at all, none does.
        if key in said and all(isinstance(one.said, dict) for one in alternatives):
            found.append(("any", alternatives))
    needed = part.within("allOf")
    if not _other_than("object", said):
        required = said.get("required", [])
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        needed += [part.inner[step] for name in names if (step := ("properties", escaped(name))) in part.inner]
    if not _other_than("array", said):
        needed += _items(part)
    found.append(("all", [one for one in needed if isinstance(one.said, dict)]))
    return found


def _items(part: Part) -> list[Part]:
    least = part.said.get("minItems", 0)
    if not isinstance(least, int | float) or least <= 0:
        return []
    first = part.within("prefixItems")
    rest = part.within("items") if least > len(first) else []
    return [*first[: min(len(first), int(least))], *rest]


def _other_than(kind: str, part: Schema) -> bool:
    """Whether an instance may be something else, to which the keywords of ``kind`` say nothing."""
    given = part.get("type")
    return given != kind and given != [kind]


def _kind(value: object) -> str:
    names = {bool: "a boolean", str: "a string", list: "a list", type(None): "null", dict: "an object"}
    return names.get(type(value), "a number")
