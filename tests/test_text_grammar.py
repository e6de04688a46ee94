"""Structured output: every answer parses and satisfies its schema, whatever a model and its drafts do."""

from __future__ import annotations

import json
import random
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import model_fixture as real
import numpy as np
import pytest
from grammar_walks import Walk, Words
from random_schemas import random_schema
from tiny_bundle import tiny_tokenizer

from edge_runtime.errors import InputError
from edge_runtime.text.grammar import Grammar
from edge_runtime.text.llguidance_grammar import GrammarCompiler
from edge_runtime.text.message import Tool, ToolCall
from edge_runtime.text.tokenizer import Tokenizer
from edge_runtime.text.tools import CallReader

PADDED = 3
"""Rows of the head that are no piece."""
REAL_EOS, TINY_EOS = (1, 106), (1, 6)


@cache
def tiny() -> tuple[GrammarCompiler, Words, Tokenizer]:
    tokenizer = real.load_tokenizer(tiny_tokenizer())
    rows = tokenizer.vocab_size + PADDED
    words = Words.of(tokenizer.piece_bytes, tokenizer.vocab_size, TINY_EOS, rows)
    return GrammarCompiler(tokenizer, TINY_EOS, rows), words, tokenizer


@cache
def gemma() -> tuple[GrammarCompiler, Words, Tokenizer]:
    tokenizer = real.tokenizer()
    words = Words.of(tokenizer.piece_bytes, 256000, REAL_EOS, tokenizer.vocab_size)
    return GrammarCompiler(tokenizer, REAL_EOS, tokenizer.vocab_size), words, tokenizer


def obj(required: str = "", additional: object = False, **properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": additional,
    }


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "anything": {},
    "flat": obj("name age", name=STRING, age=INTEGER, ok={"type": "boolean"}),
    "optional": obj(a=STRING, b=INTEGER, c={"type": "null"}),
    "open": obj("a", additional=INTEGER, a=STRING, b=STRING),
    "nested": obj("a", a=obj("b", b={"type": "array", "items": obj("c", c={"type": "number"}), "maxItems": 3})),
    "enum": {"enum": ["red", "gr\"een\n", 1, 2.5, None, {"a": [1, "é"]}]},
    "const": obj("kind", kind={"const": "x\\y"}, v=STRING),
    "any of": {"anyOf": [obj("s", s=STRING), obj("i", i=INTEGER), {"type": "null"}]},
    "one of": {"oneOf": [STRING, INTEGER]},
    "all of": {"allOf": [obj("a", additional=True, a=STRING), obj("b", additional=True, b=INTEGER)]},
    "types": {"type": ["string", "integer", "null"]},
    "lengths": obj("s", s={"type": "string", "minLength": 2, "maxLength": 5}),
    "pattern": obj("s", s={"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}),
    "pattern inside": obj("s", s={"type": "string", "pattern": "b"}),
    "range": obj("i", i={"type": "integer", "minimum": -3, "maximum": 12}, n={"type": "number", "exclusiveMinimum": 0}),
    "multiple": obj("i", i={"type": "integer", "multipleOf": 7}),
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "properties at most": {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
    "pattern properties": {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
    "list node": {
        "$defs": {"node": obj("v next", v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
        "$ref": "#/$defs/node",
    },
    "odd names": obj('a"b c/d', **{'a"b': INTEGER, "c/d": INTEGER, "~é": INTEGER}),
    "notes": {"$schema": "https://json-schema.org/draft/2020-12/schema", **obj(a={**INTEGER, "default": 1})},
}  # fmt: skip
DATE = obj("d", d={"type": "string", "format": "date"}, u={"type": "string", "format": "uuid"})


def compiled(kind: str, name: str) -> tuple[Grammar, Words]:
    compiler, words, _ = tiny() if kind == "tiny" else gemma()
    return compiler.json_schema(SCHEMAS[name]), words


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(("kind", "walks"), [("tiny", 12), ("gemma", 2)])
def test_every_answer_parses_and_satisfies_its_schema(kind: str, walks: int, name: str) -> None:
    grammar, words = compiled(kind, name)
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    for seed in range(walks):
        text = Walk(grammar, words, random.Random(f"{name} {seed}")).answer(most=60)
        validator.validate(json.loads(text))


def test_what_is_not_refused_is_kept() -> None:
    compiler, words, _ = tiny()
    kept = 0
    for seed in range(400):
        schema = random_schema(random.Random(seed))
        try:
            grammar = compiler.json_schema(schema)
        except InputError:
            continue
        kept += 1
        text = Walk(grammar, words, random.Random(seed)).answer(most=40)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert kept > 200


def test_formats_are_kept() -> None:
    compiler, words, _ = tiny()
    grammar = compiler.json_schema(DATE)
    for seed in range(5):
        said = json.loads(Walk(grammar, words, random.Random(seed)).answer(most=30))
        assert jsonschema.FormatChecker().conforms(said["d"], "date")


@pytest.mark.parametrize("name", ["any object", "open", "any of", "pattern inside", "list node", "lengths"])
@pytest.mark.parametrize("kind", ["tiny", "gemma"])
def test_after_a_rollback_nothing_remembers(kind: str, name: str) -> None:
    grammar, words = compiled(kind, name)
    for seed in range(3):
        walk = Walk(grammar, words, random.Random(seed))
        for _ in range(40):
            if not walk.ended:
                walk.step(hurry=False)
            if walk.chance.random() < 0.4:
                back = walk.chance.randint(0, len(walk.tokens))
                walk.state.rollback(back)
                del walk.tokens[len(walk.tokens) - back :]
            fresh = walk.replay()
            assert np.array_equal(walk.state.allowed(), fresh.allowed())
            assert walk.state.forced(8) == fresh.forced(8)


@pytest.mark.parametrize("name", SCHEMAS)
def test_one_token_and_all_tokens_agree(name: str) -> None:
    grammar, words = compiled("tiny", name)
    walk = Walk(grammar, words, random.Random(name))
    while not walk.ended and len(walk.tokens) < 30:
        allowed = walk.state.allowed().copy()
        assert [walk.state.allows(token) for token in range(len(allowed))] == allowed.tolist()
        assert not walk.state.allows(-1) and not walk.state.allows(len(allowed))
        assert not allowed[-PADDED:].any()
        walk.step(hurry=False)


def test_the_end_of_a_text() -> None:
    compiler, _, tokenizer = gemma()
    state = compiler.choice(["ab", "abc"]).start()
    a, b, c = (tokenizer.encode(letter, bos=False)[0] for letter in "abc")
    assert not state.allowed()[list(REAL_EOS)].any()
    assert state.valid_prefix([a, b, 106, 1, c]) == 4
    state.accept(a)
    state.accept(b)
    assert state.allowed()[list(REAL_EOS)].all() and state.allows(c)  # may end
    state.accept(c)
    assert np.flatnonzero(state.allowed()).tolist() == list(REAL_EOS)  # must
    assert state.valid_prefix([106, 1, a]) == 2 and state.forced(4) == []
    state.accept(106)
    assert np.flatnonzero(state.allowed()).tolist() == list(REAL_EOS)
    state.rollback(2)
    assert state.allows(c) and state.allows(1)
    state.rollback(2)
    assert state.valid_prefix([a, b, c, 1]) == 4
    with pytest.raises(ValueError, match="take back"):
        state.rollback(1)


def test_a_token_that_is_not_allowed_changes_nothing() -> None:
    compiler, _, tokenizer = gemma()
    state = compiler.json_object().start()
    before = state.allowed().copy()
    for token in (tokenizer.encode("x", bos=False)[0], 1, -1, 1 << 40):
        with pytest.raises(ValueError, match="not allowed"):
            state.accept(token)
    assert np.array_equal(state.allowed(), before)


def test_answers_share_a_grammar_and_nothing_else() -> None:
    compiler, _, tokenizer = tiny()
    grammar = compiler.json_object()
    one, other = grammar.start(), grammar.start()
    for token in tokenizer.encode('{"a', bos=False):
        one.accept(token)
    assert not other.allows(tokenizer.encode("a", bos=False)[0])
    assert other.allows(tokenizer.encode("{", bos=False)[0])


def test_what_is_certain_is_known_ahead() -> None:
    compiler, words, tokenizer = gemma()
    state = compiler.json_schema(obj("name", name=STRING)).start()
    forced = state.forced(16)
    assert words.text(forced) == '{"name":'
    assert state.forced(2) == forced[:2] and state.forced(0) == []
    # The spelling that the tokenizer chooses, hence the one that a model knows.
    assert tokenizer.encode('{"name": "x"}', bos=False)[: len(forced)] == forced


def test_blanks_do_not_go_on() -> None:
    compiler, words, tokenizer = gemma()
    state = compiler.json_schema(obj("a", a=INTEGER, b=INTEGER)).start()
    for token in tokenizer.encode('{"a": 1', bos=False):
        state.accept(token)
    spelt = [words.piece_bytes(int(token)) for token in np.flatnonzero(state.allowed())]
    assert not [piece for piece in spelt if not piece.strip()]


def test_regular_expressions_and_choices() -> None:
    compiler, words, _ = tiny()
    texts = {Walk(compiler.choice(["yes", 'n"/o', "é\n"]), words, random.Random(i)).answer(9) for i in range(20)}
    assert texts == {"yes", 'n"/o', "é\n"}
    for seed in range(5):
        text = Walk(compiler.regex(r"a/[0-9]{2}\.b|c"), words, random.Random(seed)).answer(9)
        assert text == "c" or (text[:2], text[4:]) == ("a/", ".b")


# --- refusals -------------------------------------------------------------------------------------


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
    "too costly": ({"type": "integer", "multipleOf": 1_000_000_007}, "fuel"),
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
        built.append(compiler._built())

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(built) == 4 and all(tables is built[0] for tables in built)


# --- calls ----------------------------------------------------------------------------------------

WEATHER = Tool("get_weather", "", obj("city", city=STRING, unit={"enum": ["c", "f"]}))
NOTHING = Tool("stop-it", "", {"type": "object", "properties": {}, "additionalProperties": False})
TREE = Tool("tree", "", {"$defs": {"t": obj(l={"$ref": "#/$defs/t"})}, "properties": {"t": {"$ref": "#/$defs/t"}}})
TOOLS = [WEATHER, NOTHING, TREE]


def read(text: str) -> list[str | ToolCall]:
    reader = CallReader(lambda: "id")
    found = [part for letter in text for part in reader.push(letter)]
    return found + reader.flush()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", ["tiny", "gemma"])
def test_required_calls_are_calls(kind: str, parallel: bool) -> None:
    compiler, words, _ = tiny() if kind == "tiny" else gemma()
    grammar = compiler.tool_calls(TOOLS, text=False, parallel=parallel)
    schemas = {tool.name: {**tool.parameters, "type": "object"} for tool in TOOLS}
    most = 0
    for seed in range(12 if kind == "tiny" else 3):
        calls = read(Walk(grammar, words, random.Random(seed)).answer(most=80))
        most = max(most, len(calls))
        assert calls
        for call in calls:
            assert isinstance(call, ToolCall)
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert most == 1 or parallel


@pytest.mark.parametrize("parallel", [False, True])
def test_an_answer_is_text_or_calls(parallel: bool) -> None:
    compiler, _, tokenizer = gemma()
    grammar = compiler.tool_calls(TOOLS, text=True, parallel=parallel)

    def fits(text: str) -> bool:
        tokens = tokenizer.encode(text, bos=False)
        return grammar.start().valid_prefix([*tokens, 106]) == len(tokens) + 1

    call = '{"name": "stop-it", "parameters": {}}'
    texts = ["", 'Hello,\n\n"you"', "{}", "[", '[{"a": 1}]', '{"name', "[x](y)", '\n{"name": 1}', "中é"]
    assert all(map(fits, [*texts, call]))
    assert fits(f"[{call}, {call}]") == parallel and fits(f"[{call}]") == parallel
    wrong = ['{"name": "other"', '{"name": 1}', f"{call} and more", f"{call}{call}", f"[{call}", '{"name":"stop-it"']
    assert not any(map(fits, wrong))
    # Text is read as text, and what is read as a call is one.
    assert ["".join(map(str, read(text))) for text in texts] == texts
    assert read(call) == [ToolCall("id", "stop-it", "{}")]


def test_free_text_may_say_anything_but_control_pieces() -> None:
    compiler, _, tokenizer = gemma()
    state = compiler.tool_calls(TOOLS, text=True, parallel=True).start()
    for token in tokenizer.encode("Well, ", bos=False):
        state.accept(token)
    allowed = state.allowed()
    assert not allowed[tokenizer.control_id("<start_of_turn>")] and allowed[list(REAL_EOS)].all()
    # Bytes that can begin a character, and every whole piece.
    assert allowed[1000:200_000].all()


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([], "none to call"),
        ([Tool("a b", "", {})], "letters, digits"),
        ([Tool("", "", {})], "letters, digits"),
        ([WEATHER, Tool("x", "", {"type": "string"})], "tools[1]: parameters of 'x' must be of type 'object'"),
        ([Tool("x", "", obj(a={"not": {}}))], "parameters of 'x': #/properties/a: keyword 'not'"),
        ([Tool("x", "", obj("a", a=False))], "nsatisfiable"),
        ([Tool(f"t{i}", "d" * 60_000, {}) for i in range(3)], "bytes of JSON"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: list[Tool], words: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny()[0].tool_calls(tools, text=True, parallel=True)
    assert words in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert caught.value.param == "tools"


def test_every_piece_is_known_at_once(tmp_path: Path) -> None:
    for tokenizer in (real.load_tokenizer(tiny_tokenizer()), real.tokenizer()):
        everything = list(tokenizer.all_piece_bytes())
        assert len(everything) == tokenizer.vocab_size
        sample = range(0, tokenizer.vocab_size, 97)
        assert [everything[token] for token in [*range(600), *sample] if token < len(everything)] == [
            tokenizer.piece_bytes(token) for token in [*range(600), *sample] if token < len(everything)
        ]


def test_where_a_text_is_certain_its_spelling_is() -> None:
    compiler, words, _ = gemma()
    grammar = compiler.json_schema(SCHEMAS["flat"])
    walk = Walk(grammar, words, random.Random(5))
    while not walk.ended and len(walk.tokens) < 60:
        allowed = walk.state.allowed().copy()
        forced = walk.state.forced(1)
        assert not forced or np.flatnonzero(allowed).tolist() == forced
        near = [*np.flatnonzero(allowed)[:50].tolist(), *range(217, 480), *range(236_740, 236_900)]
        assert [walk.state.allows(token) for token in near] == allowed[near].tolist()
        walk.step(hurry=False)
