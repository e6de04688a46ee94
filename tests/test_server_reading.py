"""Every kind of wrong body, read without a server: one line, the field's name, and never another exception."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.errors import EdgeError, InputError
from edge_runtime.server.problems import Problem, Refusal
from edge_runtime.server.reading import ClientLeft, body_of, parse
from edge_runtime.server.schema import ChatRequest, CompletionRequest, field_names, neutral

HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": HI, **fields}).encode()


def problem(body: bytes, cls: Any = ChatRequest) -> InputError:
    with pytest.raises(InputError) as caught:
        parse(cls, body)
    text = str(caught.value)
    assert text and "\n" not in text and len(text) < 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a": "', "not JSON: Unterminated string starting at line 1, column 7"),
        (b'{"messages": [}', "line 1, column 15"),
        (b"[]", "JSON object"),
        (b"null", "JSON object"),
        (b'"text"', "JSON object"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"messages":' * 100_000, "nested too deeply"),
        (b'{"messages": [], "tools": ' + b"[" * 900 + b"]" * 900 + b"}", "messages"),
    ],
)
def test_bodies_that_are_no_request(body: bytes, words: str) -> None:
    assert words in str(problem(body))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages[0].content"),
        (b'{"messages": [], "\\udfff": 1}', "?"),
        (b'{"messages": [], "n": NaN}', "n"),
        (b'{"messages": [], "temperature": Infinity}', "temperature"),
        (b'{"messages": [], "temperature": -Infinity}', "temperature"),
        (b'{"messages": [], "temperature": 1e999}', "temperature"),
        (b'{"messages": [], "logit_bias": {"5": 1e999}}', "logit_bias.5"),
        (b'{"messages": [], "seed": ' + b"9" * 5000 + b"}", "seed"),
        (b'{"messages": [], "seed": ' + b"9" * 30 + b"}", "messages"),
        (b'{"n": 1, "n": 2}', "n"),
        (b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "content"),
        (b'{"messages": 1}', "messages"),
        (b"{}", "messages"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{}]}', "messages[0].role"),
        (b'{"messages": [{"role": "robot"}]}', "messages[0].role"),
        (b'{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "messages[0].content[0].text"),
        (b'{"messages": [{"role": "user", "contents": "x"}]}', "messages[0].contents"),
    ],
)
def test_what_names_its_field(body: bytes, param: str) -> None:
    assert problem(body).param == param


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 129), ("n", "1"), ("n", True), ("n", 1.5), ("temperature", -0.1), ("temperature", "hot"),
        ("temperature", False), ("top_p", 0), ("top_p", 1.01), ("top_k", -2), ("min_p", 1.5), ("min_p", -1),
        ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("max_tokens", 0), ("max_completion_tokens", -1),
        ("max_tokens", 10**12), ("seed", 2**63), ("seed", 1.5), ("stop", 5), ("stop", [1]), ("stop", ["x"] * 17),
        ("logit_bias", []), ("logit_bias", {"5": "x"}), ("logit_bias", {"5": 101}), ("top_logprobs", 21),
        ("top_logprobs", -1), ("logprobs", 1), ("stream", "yes"), ("stream_options", True), ("priority", 3),
        ("priority", -3), ("timeout_ms", 0), ("repeat_limit", 5), ("repeat_limit", False),
        ("speculative", {"enabled": 1}), ("speculative", {"max_draft_tokens": -1}),
        ("response_format", {"type": "xml"}), ("response_format", "json_object"), ("response_format", {}),
        ("prediction", {"type": "text", "content": "x"}), ("prediction", {}), ("tools", {}), ("tools", [{}]),
        ("tools", [{"type": "custom", "function": {"name": "f"}}]), ("tools", [{"function": {"name": "a b"}}]),
        ("tool_choice", "maybe"), ("tool_choice", {"type": "function"}), ("parallel_tool_calls", "no"),
        ("service_tier", "flex"), ("user", 5), ("metadata", {"a": 1}), ("model", 5), ("model", []),
    ],
)  # fmt: skip
def test_wrong_values(field: str, value: Any) -> None:
    found = problem(chat(**{field: value}))
    assert (found.param or "").split(".")[0].split("[")[0] == field
    assert str(found).startswith(field)


@pytest.mark.parametrize(
    ("field", "value", "place", "listed"),
    [
        ("messages", [{"role": "x", "content": "a"}], "messages[0].role", "system, developer, user, assistant, tool"),
        ("response_format", {"type": "x"}, "response_format.type", "text, json_object, json_schema"),
        ("tools", [{"type": "x", "function": {"name": "f"}}], "tools[0].type", "function"),
        ("tool_choice", "x", "tool_choice", "none, auto, required"),
        ("service_tier", "x", "service_tier", "auto, default"),
    ],
)
def test_a_word_that_is_not_listed(field: str, value: Any, place: str, listed: str) -> None:
    found = problem(chat(**{field: value}))
    assert (found.param, str(found)) == (place, f"{place}: 'x' is not one of {listed}")


@pytest.mark.parametrize("word", ["y" * 5000, "a'b", "a\nb", "`$.x`"])
def test_any_word_that_is_not_listed(word: str) -> None:
    found = problem(json.dumps({"messages": [{"role": word}]}).encode())
    assert found.param == "messages[0].role"
    assert str(found).endswith("is not one of system, developer, user, assistant, tool")


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "top_k", "timeout_ms"])
def test_the_largest_number(field: str) -> None:
    parse(ChatRequest, chat(**{field: 2**31 - 1}))
    assert "2147483647" in str(problem(chat(**{field: 2**31})))


@pytest.mark.parametrize("cls", [ChatRequest, CompletionRequest])
def test_null_is_a_default_everywhere(cls: Any) -> None:
    needed = {"messages": HI} if cls is ChatRequest else {"prompt": "x"}
    absent = {name: None for name in [*field_names(cls), *neutral(cls)] if name not in needed}
    assert parse(cls, json.dumps({**absent, **needed}).encode()) == parse(cls, json.dumps(needed).encode())


@pytest.mark.parametrize(
    ("field", "neutral", "asking"),
    [
        ("store", False, True),
        ("modalities", ["text"], ["text", "audio"]),
        ("audio", None, {"voice": "alloy", "format": "wav"}),
        ("web_search_options", None, {}),
        ("functions", [], [{"name": "f"}]),
        ("function_call", "none", "auto"),
        ("reasoning_effort", "none", "high"),
        ("verbosity", "medium", "low"),
        ("repetition_penalty", 1.0, 1.1),
    ],
)
def test_known_but_unsupported_fields(field: str, neutral: Any, asking: Any) -> None:
    parse(ChatRequest, chat(**{field: neutral}))
    found = problem(chat(**{field: asking}))
    assert (found.param, str(found)) == (field, f"{field} is not supported")


@pytest.mark.parametrize(
    ("field", "neutral", "asking"), [("echo", False, True), ("suffix", "", "x"), ("best_of", 1, 2)]
)
def test_unsupported_fields_of_completions(field: str, neutral: Any, asking: Any) -> None:
    parse(CompletionRequest, json.dumps({"prompt": "x", field: neutral}).encode())
    assert problem(json.dumps({"prompt": "x", field: asking}).encode(), CompletionRequest).param == field


def test_a_crowd_of_keys_with_one_twice() -> None:
    """Looked for in time that grows with the keys, and not with their square: this one took minutes."""
    keys = ", ".join(f'"k{index}": 0' for index in range(200_000))
    assert problem(f'{{{keys}, "k7": 1}}'.encode()).param == "k7"


def test_false_is_not_zero() -> None:
    problem(chat(repetition_penalty=False))
    problem(chat(store=0))


@pytest.mark.parametrize(
    ("field", "meant"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("Stream", "stream")]
)
def test_an_unknown_field_names_what_was_meant(field: str, meant: str) -> None:
    found = problem(chat(**{field: 1}))
    assert found.param == field
    assert f"did you mean {meant!r}" in str(found)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal", 5])
def test_parts_that_are_no_text(kind: Any) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind}]}]})
    found = problem(body.encode())
    assert found.param == "messages[0].content[1].type"
    assert "text" in str(found)


def test_what_openai_answers_may_be_said_again() -> None:
    said = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    read = parse(ChatRequest, json.dumps({"messages": [*HI, {**said, "function_call": None}, *HI]}).encode())
    assert read.messages[1].content == "x"


def test_a_schema_may_hold_any_keys() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "unknownKeyword": [1, {"x": None}]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    assert parse(ChatRequest, chat(response_format=form)).response_format.json_schema.schema == schema  # type: ignore[union-attr]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*field_names(ChatRequest), *neutral(ChatRequest), "other"]), json_values))
def test_any_values_are_a_request_or_one_line(fields: dict[str, Any]) -> None:
    body = json.dumps({"messages": HI, **fields}).encode()
    try:
        parse(ChatRequest, body)
    except InputError:
        problem(body)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_request_or_one_line(body: bytes) -> None:
    problem(body)


def read(messages: list[dict[str, Any]], most: int = 8, **headers: str) -> bytes:
    left = iter(messages)

    async def receive() -> Any:
        return next(left)

    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(body_of(receive, given, most, lambda size: None))


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_in_parts() -> None:
    assert read([part(b"abcd", True), part(b"efgh")]) == b"abcdefgh"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_bodies_of_other_types(kind: str) -> None:
    with pytest.raises(Refusal) as caught:
        read([part(b"{}")], content_type=kind)
    assert Problem.of(caught.value).status == 415


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json", ""]
)
def test_types_that_are_json(kind: str) -> None:
    assert read([part(b"{}")], content_type=kind) == b"{}"


def test_a_packed_body() -> None:
    with pytest.raises(Refusal) as caught:
        read([part(b"{}")], content_encoding="gzip")
    assert Problem.of(caught.value).status == 415


@pytest.mark.parametrize("headers", [{}, {"content_length": "9"}, {"content_length": "9" * 5000}])
def test_a_body_that_is_too_large(headers: dict[str, str]) -> None:
    with pytest.raises(Refusal) as caught:
        read([part(b"abcd", True), part(b"efghi", True)], **headers)
    assert Problem.of(caught.value).status == 413


def test_a_client_that_leaves_while_it_speaks() -> None:
    with pytest.raises(ClientLeft):
        read([part(b"abcd", True), {"type": "http.disconnect"}])


def test_an_error_is_one_line_whatever_it_says() -> None:
    body = json.loads(Problem.of(EdgeError("a\nb \udcff")).body)
    assert body["error"]["message"] == "a b \\udcff"
