"""Tools on their way into a prompt and out of an answer."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.errors import InputError
from edge_runtime.text.message import Message, Tool, ToolCall
from edge_runtime.text.tools import CallReader, new_call_id, without_tools

WEATHER = Tool("weather", "Of a city", {"type": "object", "properties": {"città": {"type": "string"}}})
ASKED = Message("user", "Is it warm?")
CALL, OTHER = ToolCall("1", "weather", '{"città": "Roma"}'), ToolCall("2", "weather", "{}")


def test_tools_are_declared_in_the_first_turn_of_the_user() -> None:
    system = Message("developer", "Be brief.")
    plain = without_tools([system, ASKED, Message("assistant", "No."), ASKED], [WEATHER, WEATHER])
    assert [message.role for message in plain] == ["system", "user", "assistant", "user"]
    said = plain[1].content
    assert said.startswith("You have access to functions.") and said.endswith("\n]\n\nIs it warm?")
    declared = json.loads(said[said.index("[\n") : said.rindex("]") + 1])
    assert declared == [{"name": "weather", "description": "Of a city", "parameters": WEATHER.parameters}] * 2
    assert "città" in said and plain[3] == ASKED
    assert "in a list" in said and "in a list" not in without_tools([ASKED], [WEATHER], parallel=False)[0].content
    assert without_tools([ASKED]) == [ASKED]


def test_calls_are_written_as_they_were_made_and_results_in_their_order() -> None:
    talk = [
        ASKED,
        Message("assistant", "", (CALL,)),
        Message("tool", "31", tool_call_id="1"),
        Message("assistant", "Look:", (CALL, OTHER)),
        Message("tool", "b", tool_call_id="2"),
        Message("tool", "a", tool_call_id="1"),
        Message("user", "Well?"),
    ]
    assert without_tools(talk) == [
        ASKED,
        Message("assistant", '{"name": "weather", "parameters": {"città": "Roma"}}'),
        Message("user", "```tool_output\n31\n```"),
        Message(
            "assistant",
            'Look:\n[{"name": "weather", "parameters": {"città": "Roma"}}, {"name": "weather", "parameters": {}}]',
        ),
        Message("user", "```tool_output\na\n```\n```tool_output\nb\n```\n\nWell?"),
    ]


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        ([ASKED, Message("tool", "x", tool_call_id="1")], "no call waits for the result of '1'"),
        ([ASKED, Message("assistant", "", (CALL,)), Message("tool", "x", tool_call_id="9")], "of '9'"),
        ([ASKED, Message("assistant", "", (CALL,)), *[Message("tool", "x", tool_call_id="1")] * 2], "of '1'"),
        ([ASKED, Message("assistant", "", (CALL,)), Message("tool", "x")], "no call waits"),
        ([ASKED, Message("assistant", "", (CALL, OTHER)), Message("tool", "x", tool_call_id="1")], "'2' has no result"),
        ([ASKED, Message("assistant", "", (CALL,)), ASKED], "'1' has no result"),
        ([ASKED, Message("assistant", "", (CALL,))], "'1' has no result"),
        ([Message("user", "x", (CALL,))], "a user makes no tool_calls"),
        ([ASKED, Message("assistant", "", (ToolCall("1", "f", "{"),))], "arguments of the call '1'"),
        ([ASKED, Message("assistant", "", (ToolCall("1", "f", "[1]"),))], "arguments of the call '1'"),
        ([ASKED, Message("assistant", "", (CALL, CALL))], "two calls are named '1'"),
    ],
)
def test_calls_and_results_belong_together(talk: list[Message], words: str) -> None:
    with pytest.raises(InputError) as caught:
        without_tools(talk)
    assert words in str(caught.value) and caught.value.param == "messages"
    assert len(str(caught.value).splitlines()) == 1


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=5), st.sampled_from(['"}', "\\", "{[", "é"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "get_x-2"]), st.dictionaries(st.text(max_size=4), VALUES)), min_size=1)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


@given(CALLS, st.lists(st.integers(0, 10_000), max_size=8), st.booleans(), st.booleans())
def test_calls_are_read_however_they_come(
    calls: list[tuple[str, dict[str, object]]], places: list[int], ascii_only: bool, bracketed: bool
) -> None:
    arguments = [json.dumps(given, ensure_ascii=ascii_only) for _, given in calls]
    spelt = [f'{{"name": "{name}", "parameters": {text}}}' for (name, _), text in zip(calls, arguments, strict=True)]
    text = f"[{', '.join(spelt)}]" if bracketed or len(calls) > 1 else spelt[0]
    ids = iter(range(1000))
    reader = CallReader(lambda: str(next(ids)))
    found = [part for piece in cut(text, places) for part in reader.push(piece)] + reader.flush()
    names = [name for name, _ in calls]
    assert found == [ToolCall(str(i), *call) for i, call in enumerate(zip(names, arguments, strict=True))]
    assert reader.calls == len(calls)


@given(st.text(st.sampled_from('[{"name": x}'), max_size=20), st.lists(st.integers(0, 100), max_size=5))
def test_text_comes_out_as_it_went_in(text: str, places: list[int]) -> None:
    reader = CallReader()
    found = [part for piece in cut(text, places) for part in reader.push(piece)]
    if not text.removeprefix("[").startswith('{"name":'):
        assert "".join(map(str, found + reader.flush())) == text and not reader.calls


def test_text_is_shown_as_soon_as_it_cannot_be_a_call() -> None:
    reader = CallReader()
    assert reader.push('[{"na') == [] and reader.push("p") == ['[{"nap'] and reader.push("kin") == ["kin"]
    assert reader.flush() == []
    held = CallReader()
    assert held.push('{"name"') == [] and held.flush() == ['{"name"']


def test_a_call_comes_out_when_it_is_complete() -> None:
    reader = CallReader(lambda: "id")
    assert reader.push('[{"name": "f", "parameters": {"a": {}}') == []
    assert reader.push("}, ") == [ToolCall("id", "f", '{"a": {}}')]
    assert reader.push('{"name": "f", "par') == []
    assert reader.flush() == []  # cut off: the first was said already, the second is no call


def test_a_call_that_was_cut_off_is_text() -> None:
    reader = CallReader()
    assert reader.push('{"name": "f", "par') == [] and reader.flush() == ['{"name": "f", "par']


def test_ids_of_calls() -> None:
    assert new_call_id() != new_call_id() and new_call_id().startswith("call_")
