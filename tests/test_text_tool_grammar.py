"""Answers that are calls, or may be: each parses, names a tool and satisfies its schema."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from grammar_walks import REAL_EOS, STRING, Walk, gemma, obj, tiny

from edge_runtime.errors import InputError
from edge_runtime.text.message import Tool, ToolCall
from edge_runtime.text.tools import CallReader

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


@pytest.mark.parametrize("begun", ["", "{", '[{"na', '{"name": "', "Well"])
def test_what_may_be_text_or_calls_is_read_as_what_it_is(begun: str) -> None:
    compiler, words, tokenizer = tiny()
    grammar = compiler.tool_calls(TOOLS, text=True, parallel=True)
    for seed in range(6):
        walk = Walk(grammar, words, random.Random(seed))
        for token in tokenizer.encode(begun, bos=False):
            walk.state.accept(token)
            walk.tokens.append(token)
        text = walk.answer(most=60)
        found = read(text)
        calls = [part for part in found if isinstance(part, ToolCall)]
        assert calls == found or "".join(map(str, found)) == text
        for call in calls:
            assert isinstance(json.loads(call.arguments), dict)
        assert bool(calls) == text.removeprefix("[").startswith('{"name":')


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
