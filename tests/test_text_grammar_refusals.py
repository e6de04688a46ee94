"""Schemas that cannot be kept, refused ahead and by name; and what a grammar may cost."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import jsonschema
import numpy as np
import pytest
from grammar_walks import INTEGER, STRING, TINY_EOS, Walk, gemma, obj, tiny

from edge_runtime.errors import InputError
from edge_runtime.text.llguidance_grammar import GrammarCompiler


def deep(levels: int) -> Any:
    schema: Any = STRING
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED: dict[str, tuple[Any, str]] = {
    "a list": ([], "must be an object, not a list"),
    "a boolean": (True, "must be an object, not a boolean"),
    "no JSON": ({"enum": [{1}]}, "not JSON"),
    "no number": ({"minimum": float("nan")}, "not JSON"),
    "not": ({"not": {}}, "keyword 'not' is not supported"),
    "if": (obj(a={"if": {}, "then": {}}), "#/properties/a: keyword 'if'"),
    "unique": ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    "misspelt": ({"type": "object", "propertes": {}}, "did you mean 'properties'"),
    "OpenAPI": ({"type": "string", "nullable": True}, "'nullable'"),
    "of the library": ({"type": "object", "x-guidance": {"lenient": True}}, "'x-guidance'"),
    "inside a list": ({"anyOf": [STRING, {"contains": STRING}]}, "#/anyOf/1: keyword 'contains'"),
    "inside a definition": ({"$defs": {"a/b": {"else": {}}}}, "#/$defs/a~1b: keyword 'else'"),
    "list for an object": ({"properties": []}, "#/properties must be an object, not a list"),
    "object for a list": ({"anyOf": {}}, "#/anyOf must be a list, not an object"),
    "old tuple": ({"type": "array", "items": [STRING]}, "#/items must be a schema, not a list"),
    "type": ({"type": "strng"}, "strng"),
    "type of type": ({"type": 1}, "type"),
    "format": ({"type": "string", "format": "colour"}, "colour"),
    "regular expression": ({"type": "string", "pattern": "("}, "unclosed"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)"}, "look-around"),
    "empty": (False, "must be an object"),
    "unsatisfiable": ({"type": "integer", "minimum": 3, "maximum": 2}, "nsatisfiable"),
    "impossible": (obj("a", a=False), "nsatisfiable"),
    "overlap": ({"oneOf": [{"type": "number"}, INTEGER]}, "oneOf"),
    "elsewhere": ({"$ref": "https://example.com/x"}, "inside the schema"),
    "nowhere": ({"$ref": "#/$defs/x"}, "does not exist"),
    "itself": ({"$ref": "#"}, "requires itself"),
    "each other": ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "itself"),
    "endless": ({"$defs": {"n": obj("n", n={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}, "requires itself"),
    "endless if begun": (obj("a", a=INTEGER, b={"$ref": "#/properties/b"}), "#/properties/b: no finite text"),
    "endless alternative": ({"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/1"}]}, "#/anyOf/1: no finite text"),
    "endless list": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "requires itself"),
    "too deep": (deep(200), "nested deeper than 100"),
    "much too deep": (deep(5000), "nested deeper than 100"),
    "too large": ({"enum": [f"value {i}" for i in range(20_000)]}, "bytes of JSON, at most"),
    "too costly": ({"type": "integer", "multipleOf": 1_000_000_007}, "multipleOf has too many digits"),
    "too many ways": (
        {"allOf": [{"anyOf": [obj(additional=True, **{f"p{i}_{j}": STRING}) for j in range(4)]} for i in range(8)]},
        "too large",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_kept_is_refused_in_one_line(name: str) -> None:
    schema, words = REFUSED[name]
    with pytest.raises(InputError) as caught:
        tiny()[0].json_schema(schema)
    text = str(caught.value)
    assert words in text and text.startswith("schema: ") and len(text.splitlines()) == 1
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("keyword", ["contains", "not", "minContains", "dependentRequired", "unevaluatedItems"])
def test_a_keyword_that_is_right_but_not_supported_is_taken_for_no_slip(keyword: str) -> None:
    with pytest.raises(InputError, match=f"keyword '{keyword}' is not supported$"):
        tiny()[0].json_schema({keyword: {}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "items": {"$ref": "#"}, "maxItems": 3},
        obj(self={"$ref": "#"}),
        {"properties": {"self": {"$ref": "#"}}, "required": ["self"]},
        {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}], "$defs": {"n": obj("n", n={"$ref": "#"})}},
        obj("a", a=deep(80)),
    ],
)
def test_what_can_end_is_not_refused(schema: Any) -> None:
    compiler, words, _ = tiny()
    text = Walk(compiler.json_schema(schema), words, random.Random(0)).answer(most=30)
    jsonschema.validate(json.loads(text), schema)


def test_a_long_chain_of_references_is_followed_at_once() -> None:
    """The time is not measured, but a walk that starts anew for each of them would take minutes."""
    order = list(range(2000))
    random.Random(0).shuffle(order)
    chain = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in order}
    with pytest.raises(InputError, match="itself"):
        tiny()[0].json_schema({"$defs": {**chain, "2000": {"$ref": "#"}}, "$ref": "#/$defs/0"})


def test_an_expression_that_grows_too_large_fails_its_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_runtime.text.llguidance_grammar._LEXER_STATES", 2000)
    compiler, words, tokenizer = gemma()
    state = compiler.json_schema({"type": "string", "pattern": "^(a|aa)*.*[ab].{18}$"}).start()
    state.accept(tokenizer.encode('"', bos=False)[0])
    chance = random.Random(1)

    def go_on() -> None:
        for _ in range(3000):
            state.accept(int(chance.choice(np.flatnonzero(state.allowed() & ~words.structural)[2:])))

    with pytest.raises(InputError, match="too complex") as caught:
        go_on()
    assert len(str(caught.value).splitlines()) == 1 and caught.value.param == "response_format"
    assert json.loads(Walk(compiler.json_object(), words, random.Random(1)).answer(most=20)) is not None


def test_the_library_is_loaded_by_the_first_grammar_and_once() -> None:
    """Threads of a server may all be first."""
    compiler = GrammarCompiler(tiny()[2], TINY_EOS, 512)
    built: list[Any] = []
    start = threading.Barrier(4)

    def build() -> None:
        start.wait(60)
        compiler.json_object()
        built.append(compiler._tables.built())

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 4 and all(tables is built[0] for tables in built)
