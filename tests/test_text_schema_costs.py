"""Schemas that are small and would take hours or gigabytes: refused before the grammar library sees them."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from typing import Any

import pytest
from grammar_walks import INTEGER, STRING, Walk, obj, tiny

from edge_runtime.errors import InputError
from edge_runtime.text.json_schema import checked

_MANY = 8_000
_PATIENCE_S = 30.0
"""Of the processor. Ours takes a tenth of a second, and what was found here took minutes."""


def optional(count: int, end: str) -> str:
    """A pattern with as many ways to begin as it has parts."""
    return "".join(f"[{chr(97 + i % 12)}-z]?" for i in range(count)) + end


def all_of(*schemas: Any, **more: Any) -> Any:
    return {"allOf": list(schemas), **more}


def pattern(text: str) -> Any:
    return {"type": "string", "pattern": text}


HOSTILE: dict[str, Any] = {
    "one of many never ends": all_of(*({} for _ in range(_MANY)), {"$ref": f"#/allOf/{_MANY}"}),
    "one member never ends": {
        "type": "object",
        "properties": {f"a{i}": {} for i in range(4000)} | {"z": {"$ref": "#/properties/z"}},
        "required": [*(f"a{i}" for i in range(4000)), "z"],
    },
    "a long name over many": {"properties": {"k" * 60_000: {"anyOf": [{} for _ in range(_MANY)]}}},
    "a slip below a long name": {"properties": {"k" * 60_000: {"anyOf": [{"nott": {}} for _ in range(5000)]}}},
    "a long word": {"k" * 60_000: 1},
    "a long reference": {"$ref": "x" * 60_000},
    "references that double": {
        "$defs": {str(i): all_of(*[{"$ref": f"#/$defs/{i + 1}"}] * 2) for i in range(1000)} | {"1000": pattern("a")},
        "$ref": "#/$defs/0",
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_read_in_proportion_to_its_size(name: str) -> None:
    schema = HOSTILE[name]
    said = ""
    tracemalloc.start()
    begun_s = time.process_time()
    try:
        checked(schema, "schema", "x")
    except InputError as problem:
        said = str(problem)
    finally:
        taken_s, (_, peak) = time.process_time() - begun_s, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(said) < 500 and "\n" not in said
    assert taken_s < _PATIENCE_S and peak < 64 << 20


COSTLY: dict[str, Any] = {
    "patterns": all_of(*(pattern(f"a.{{{i}}}b") for i in range(1, 60))),
    "six of 70 letters": all_of(*(pattern(optional(12, str(i))) for i in range(6))),
    "three long ones and a length": all_of(*(pattern(f"^{optional(500, '')}$") for _ in range(3)), minLength=3),
    "beside formats": all_of(pattern(optional(90, "")), pattern(optional(90, "1")), STRING | {"format": "email"}),
    "behind references": {
        "$defs": {str(i): pattern(optional(99, str(i))) for i in range(5)},
        "type": "object",
        "properties": {"a": all_of(*({"$ref": f"#/$defs/{i}"} for i in range(5)))},
    },
    "in members that are merged": all_of(*(obj(a=pattern(optional(99, str(i)))) for i in range(5))),
    "in items that are merged": all_of(
        *({"type": "array", "items": {"anyOf": [pattern(optional(99, str(i))), INTEGER]}} for i in range(5))
    ),
    "chains": {
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}", **pattern(optional(99, ""))} for i in range(6)} | {"6": STRING},
        "$ref": "#/$defs/0",
    },
    "multiples": {"type": "integer", "multipleOf": 1_048_576},
    "multiples of a fraction": {"type": "number", "multipleOf": 1234.567},
    "multiples together": all_of(*({"type": "integer", "multipleOf": one} for one in (7, 11, 13, 17, 19, 23))),
    "multiples at many places": obj(**{f"a{i}": {"type": "integer", "multipleOf": 9973 + 2 * i} for i in range(40)}),
    "multiples by reference": {
        "$defs": {"n": {"type": "integer", "multipleOf": 9973}},
        "properties": {f"a{i}": {"$ref": "#/$defs/n", "minimum": i} for i in range(40)},
    },
    "multiples of members that are merged": all_of(
        *(obj(**{f"a{i}": {"type": "integer", "multipleOf": one} for i in range(9)}) for one in (193, 197))
    ),
    "members that may be left out": {"type": "object", "properties": {f"a{i}": {} for i in range(1100)}},
    "members that are merged": all_of(*({"properties": {f"{k}{i}": {} for i in range(300)}} for k in "abcd")),
    "names by patterns": {"type": "object", "patternProperties": {f"^{i}_": STRING for i in range(300)}},
}


@pytest.mark.parametrize("name", COSTLY)
def test_what_the_library_would_take_hours_for_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny()[0].json_schema(COSTLY[name])
    text = str(caught.value)
    assert text.startswith("schema: ") and len(text) < 500 and "\n" not in text
    assert any(word in text for word in ("too costly", "too many digits", "at most 64", "at most 1000"))


LEAST = -(2**63)


@pytest.mark.parametrize("number", [LEAST, LEAST + 1, LEAST - 1, 2 * LEAST, float(LEAST), -1e300])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "const": "HERE"},
        {"const": "HERE"},
        {"enum": [1, {"a": ["x", "HERE"]}]},
        {"type": "integer", "minimum": LEAST, "maximum": "HERE"},
        {"type": "integer", "minimum": LEAST, "exclusiveMaximum": "HERE"},
        obj("a", a=all_of({"minimum": LEAST}, {"type": "integer", "maximum": "HERE"})),
    ],
)
def test_an_integer_that_ends_the_process_is_refused(schema: Any, number: float) -> None:
    """The library recurses without an end, and no handler of Python's sees it."""
    hostile = json.loads(json.dumps(schema).replace('"HERE"', repr(number)))
    with pytest.raises(InputError, match="is below -1e\\+18") as caught:
        checked(hostile, "schema", "x")
    assert str(caught.value).startswith("schema: #")


@pytest.mark.parametrize(
    "schema",
    [
        all_of(pattern("^[a-z]+$"), pattern("^.*x.*$"), pattern("^.{3,9}$"), minLength=4),
        all_of(pattern("a"), pattern("b"), pattern("c"), pattern("d"), maxLength=12),
        obj("a b", **{name: pattern(optional(60, "")) for name in "abcdefgh"}),
        {"type": "object", "patternProperties": {f"^{letter}_[a-z]+$": STRING for letter in "abcdefghijkl"}},
        {"type": "integer", "minimum": -(10**18), "maximum": 10},
        {"type": "number", "minimum": -1e18, "maximum": 1},
        {"enum": [-(10**18), 2**64, 1e300]},
        {"type": "integer", "multipleOf": 86_400, "minimum": 0, "maximum": 86_400},
        {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1000},
        obj("a0 a9", **{f"a{i}": {"type": "integer", "multipleOf": 500 + i, "maximum": 9999} for i in range(50)}),
        {"$defs": {"n": obj("v", v=pattern("^[a-f]+$"), next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"},
    ],
)
def test_what_is_cheap_is_compiled(schema: Any) -> None:
    compiler, words, _ = tiny()
    assert json.loads(Walk(compiler.json_schema(schema), words, random.Random(0)).answer(most=20)) is not None


def test_members_that_must_be_there_may_be_many() -> None:
    names = [f"a{i}" for i in range(1200)]
    tiny()[0].json_schema(obj(" ".join(names), **dict.fromkeys(names, INTEGER)))


@pytest.mark.parametrize("least", [LEAST, -1.7976931348623157e308])
def test_a_minimum_that_the_library_cannot_have_is_refused_in_a_line(least: float) -> None:
    kind = "integer" if isinstance(least, int) else "number"
    compiler, _, _ = tiny()
    with pytest.raises(InputError, match=r"^schema: .* range"):
        compiler.json_schema({"type": kind, "minimum": least, "maximum": 1})
