"""JSON schemas that nobody would write: keywords on keywords, to meet what nobody thought of. Knows no test."""

from __future__ import annotations

import random
from typing import Any

_KINDS = ("string", "integer", "number", "enum", "const", "types", "array", "object", "mixed", "anyOf", "allOf", "ref")
_VALUES = ("a", "b", 1, 2.5, None, True, {"a": 1}, [1, "x"], "é\n", 'x"y')
_NAMES = ("a", "b", "c", "n_x", 'q"')
_TEXTS = ("^a+b?$", "^[^a]*$", "a|b", r"\d", "^.{3}$")
_MEMBERS = "^n_"
PATTERNS = frozenset({*_TEXTS, _MEMBERS})
"""That any library reads, and at once."""
_DEEPEST = 3


def random_schema(chance: random.Random) -> dict[str, Any]:
    return {"$defs": {"d": _schema(chance, _DEEPEST - 1)}, **_schema(chance, 0)}


def _schema(chance: random.Random, depth: int) -> dict[str, Any]:
    kind = chance.choice(_KINDS if depth < _DEEPEST else _KINDS[:4])
    if kind == "string":
        bounds = {"minLength": chance.randint(0, 3), "maxLength": chance.randint(3, 6)}
        bounds["pattern"] = chance.choice(_TEXTS)
        return {"type": kind, **_some(chance, bounds)}
    if kind in ("integer", "number"):
        bounds = {"minimum": chance.choice([-5, 0, 2.5]), "maximum": chance.choice([10, 7.25, 200])}
        return {"type": kind, **_some(chance, bounds | {"multipleOf": chance.choice([2, 5])})}
    if kind == "enum":
        return {"enum": chance.sample(_VALUES, chance.randint(1, 4))}
    if kind == "const":
        return {"const": chance.choice(_VALUES)}
    if kind == "types":
        return {"type": chance.sample(["string", "integer", "null", "boolean", "array", "object"], 2)}
    if kind == "ref":
        return {"$ref": "#/$defs/d"}
    if kind == "array":
        bounds = {"items": _schema(chance, depth + 1), "prefixItems": [_schema(chance, depth + 1)]}
        bounds |= {"minItems": chance.randint(0, 2), "maxItems": chance.randint(2, 4)}
        return {"type": kind, **_some(chance, bounds)}
    if kind in ("object", "mixed"):
        return _object(chance, depth) | ({} if kind == "object" else {"anyOf": _several(chance, depth)})
    return {kind: _several(chance, depth)}


def _object(chance: random.Random, depth: int) -> dict[str, Any]:
    names = chance.sample(_NAMES, chance.randint(0, 3))
    bounds: dict[str, Any] = {"type": "object", "required": [name for name in [*names, "z"] if chance.random() < 0.5]}
    bounds["additionalProperties"] = chance.choice([False, True, _schema(chance, depth + 1)])
    bounds["patternProperties"] = {_MEMBERS: _schema(chance, depth + 1)}
    return {"properties": {name: _schema(chance, depth + 1) for name in names}, **_some(chance, bounds)}


def _several(chance: random.Random, depth: int) -> list[dict[str, Any]]:
    return [_schema(chance, depth + 1) for _ in range(chance.randint(1, 3))]


def _some(chance: random.Random, keywords: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if chance.random() < 0.4}
