"""Chats and JSON schemas that nobody would write, from a seed. Knows no server."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Any

from random_schemas import random_schema
from server_runs import END_OF_TURN, EOS
from tiny_bundle import tiny_tokenizer

_ALPHABETS = (
    string.ascii_letters,
    " \t\n\r\v\f",
    "\u0301\u0300\u20dd",
    "\u202e\u200f\u2067\u061c",
    "\U0001f469\u200d\U0001f52c\ufe0f",
    "\0\x01\x7f\x85",
    "\ufdd0\ufeff\uffff\U0010ffff",
    "漢字かな",
    '{}[]",:\\/',
    "<>|`_",
)
_WORDS = (
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "{{ bos_token }}",
    "{% for x in y %}",
    '{"name": "f"',
    "[{",
    "data: [DONE]",
    "\r\n\r\nHTTP/1.1 200 OK",
    "```tool_output",
    "%s%n",
    "\\ud83d",
    "null",
    "../../etc/passwd",
)
_NAMES = ("get_time", "f", "a-b_c", "x" * 64)
_ROLES = ("user", "assistant", "system", "developer", "tool")
_PATTERNS = (
    "^(a+)+$",
    "^(a|a)*b$",
    "(x+x+)+y",
    "^(.*a){20}$",
    "^([a-z]?){40}[a-z]{40}$",
    "^(?:a{0,900}){0,900}$",
    "\\p{L}{1,300}",
    "(?i)straße",
    "^[^\\u0000]*$",
    "(?=a)b",
    "(a)\\1",
    "(",
    "[",
    "a{99999999999}",
    "^$",
    "",
    ".",
    "^.{1000000}$",
    "|||",
    "\\",
    "^\\d{1,3}(\\.\\d{1,3}){3}$",
)
_NUMBERS = (
    0,
    1,
    -1,
    2,
    3.5,
    10**9,
    2**31,
    2**53,
    -(2**63),
    2**64,
    1e-300,
    1e300,
    0.1,
    1e-7,
    123456.789,
    1.5,
    True,
    None,
    "1",
    [],
)
_FORMATS = (
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
    "regex",
    "colour",
)
_BOUNDS = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
)
_REFUSED = (
    "not",
    "if",
    "contains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "uniqueItems",
    "dependentSchemas",
    "propertyNames",
    "$dynamicRef",
    "$anchor",
    "propertes",
    "x-guidance",
)


def _ids(letters: str) -> list[int]:
    """Of the tiny tokenizer."""
    import sentencepiece

    model: Any = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(tiny_tokenizer())
    return [int(model.PieceToId(letter)) for letter in letters]


ENDINGS = {str(EOS): 20, str(END_OF_TURN): 20} | {str(token): 9 for token in _ids('"}]')}
"""Bias of the ids that end a text, and of what ends a part of it."""


def odd_text(chance: random.Random, most: int = 60) -> str:
    """Mostly short."""
    length = chance.randrange(most) if chance.random() < 0.97 else chance.randrange(50 * most)
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        if chance.random() < 0.2:
            parts.append(chance.choice(_WORDS))
        else:
            alphabet = chance.choice(_ALPHABETS)
            parts.append("".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 12))))
    return "".join(parts)


def odd_value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON."""
    kind = chance.randrange(8 if depth < 4 else 6)
    if kind < 2:
        return odd_text(chance)
    if kind < 5:
        return chance.choice(_NUMBERS)
    if kind == 5:
        return chance.choice([True, False, None, "", [], {}])
    if kind == 6:
        return [odd_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {odd_text(chance, 12): odd_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def odd_schema(chance: random.Random) -> Any:
    """Half of them as ``random_schemas`` makes them, the others with something done to them."""
    schema: Any = random_schema(chance)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        schema = _altered(chance, schema)
    return schema


def odd_chat(chance: random.Random) -> dict[str, Any]:
    """A request that is right, or wrong in a few places."""
    body: dict[str, Any] = {"messages": _talk(chance), "max_tokens": chance.choice([1, 2, 8, 40, 120])}
    if chance.random() < 0.4:
        body["stream"] = chance.random() < 0.8
    for name, make in _FIELDS.items():
        if chance.random() < 0.08:
            body[name] = make(chance)
    if chance.random() < 0.25:
        body["tools"] = [_tool(chance, name) for name in chance.sample(_NAMES, chance.randrange(4))]
        if chance.random() < 0.6:
            body["tool_choice"] = chance.choice(
                ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}]
            )
    elif chance.random() < 0.4:
        wanted = {"name": "x", "schema": odd_schema(chance)}
        body["response_format"] = chance.choice(
            [{"type": "json_object"}, {"type": "json_schema", "json_schema": wanted}]
        )
    if "top_logprobs" in body and chance.random() < 0.9:
        body["logprobs"] = True
    if "stream_options" in body and chance.random() < 0.9:
        body["stream"] = True
    if ("tools" in body or "response_format" in body) and chance.random() < 0.8:
        # A model that knows nothing hardly ever closes what it opened.
        body |= {"logit_bias": dict(ENDINGS), "max_tokens": 300}
    if chance.random() < 0.15:
        _spoil(chance, body)
    return body


def _talk(chance: random.Random) -> list[Any]:
    said: list[Any] = [{"role": "system", "content": _content(chance)}] if chance.random() < 0.3 else []
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        said.append({"role": "user", "content": _content(chance)})
        if chance.random() < 0.2:
            ids = [odd_text(chance, 8) or "c" for _ in range(chance.randrange(1, 4))]
            said.append({"role": "assistant", "content": None, "tool_calls": [_call(chance, one) for one in ids]})
            said += [{"role": "tool", "tool_call_id": one, "content": _content(chance)} for one in ids]
        said.append({"role": "assistant", "content": _content(chance)})
    return (
        said[:-1]
        if chance.random() < 0.8
        else [{"role": chance.choice(_ROLES), "content": _content(chance)} for _ in said]
    )


def _content(chance: random.Random) -> Any:
    if chance.random() < 0.8:
        return odd_text(chance)
    return [{"type": "text", "text": odd_text(chance)} for _ in range(chance.randrange(4))]


def _call(chance: random.Random, name: str) -> dict[str, Any]:
    arguments = chance.choice(["{}", '{"a": 1}', '{"a": "\\u0000"}', "[]", "", "{", '{"a":' * 50 + "1" + "}" * 50])
    return {"id": name, "type": "function", "function": {"name": odd_text(chance, 10), "arguments": arguments}}


def _tool(chance: random.Random, name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if chance.random() < 0.7:
        function["description"] = odd_text(chance)
    if chance.random() < 0.8:
        function["parameters"] = {"type": "object", "properties": {odd_text(chance, 6): odd_schema(chance)}}
    return {"type": "function", "function": function}


_FIELDS: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda chance: chance.choice([0, 0.0, 1, 1e-9, 1e9, 2]),
    "top_p": lambda chance: chance.choice([1e-12, 0.5, 1]),
    "top_k": lambda chance: chance.choice([-1, 0, 1, 2**31 - 1]),
    "min_p": lambda chance: chance.choice([0, 0.5, 1]),
    "n": lambda chance: chance.choice([1, 2, 5]),
    "seed": lambda chance: chance.choice([0, -1, 2**63 - 1, -(2**63)]),
    "stop": lambda chance: chance.choice([odd_text(chance) or "x", [odd_text(chance, 9) or "y" for _ in range(3)]]),
    "presence_penalty": lambda chance: chance.choice([-2, 2, 0.1]),
    "frequency_penalty": lambda chance: chance.choice([-2, 2, 0.1]),
    "logit_bias": lambda chance: {str(chance.randrange(520)): chance.choice([-100, 100, 1])},
    "logprobs": lambda chance: True,
    "top_logprobs": lambda chance: chance.randrange(21),
    "priority": lambda chance: chance.randrange(-2, 3),
    "timeout_ms": lambda chance: chance.choice([1, 50, 100_000]),
    "repeat_limit": lambda chance: chance.choice([6, 20, 1000]),
    "prediction": lambda chance: {"type": "content", "content": _content(chance)},
    "speculative": lambda chance: {"enabled": chance.random() < 0.5, "max_draft_tokens": chance.choice([0, 1, 60])},
    "stream_options": lambda chance: {"include_usage": chance.random() < 0.5},
    "parallel_tool_calls": lambda chance: chance.random() < 0.5,
    "metadata": lambda chance: {odd_text(chance, 9): odd_text(chance)},
}


def _spoil(chance: random.Random, body: dict[str, Any]) -> None:
    """Something else at some place inside."""
    place: Any = body
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        if chance.random() < 0.4 or not isinstance(place[key], dict | list) or not place[key]:
            place[key] = odd_value(chance)
            return
        place = place[key]


def _altered(chance: random.Random, schema: Any) -> Any:
    kind = chance.randrange(10)
    if kind == 0:
        return {"type": "string", "pattern": chance.choice(_PATTERNS), chance.choice(_BOUNDS): chance.choice(_NUMBERS)}
    if kind == 1:
        return {**_object(schema), chance.choice(_BOUNDS): chance.choice(_NUMBERS)}
    if kind == 2:
        return {chance.choice(["allOf", "anyOf", "oneOf"]): [schema, _altered(chance, schema), {"type": "string"}]}
    if kind == 3:
        patterns = [{"type": "string", "pattern": chance.choice(_PATTERNS)} for _ in range(chance.choice([2, 3, 8]))]
        return {"allOf": patterns}
    if kind == 4:
        return {
            "$defs": {"x": schema},
            **_object(schema),
            "$ref": chance.choice(["#", "#/$defs/x", "#/$defs/y", "#/allOf/0", "x"]),
        }
    if kind == 5:
        return {"enum": [odd_value(chance) for _ in range(chance.choice([0, 1, 5, 300]))]}
    if kind == 6:
        for _ in range(chance.choice([3, 20, 60])):
            schema = {"type": "array", "items": schema} if chance.random() < 0.5 else {"properties": {"a": schema}}
        return schema
    if kind == 7:
        return {**_object(schema), chance.choice(_REFUSED): odd_value(chance)}
    if kind == 8:
        return {"type": chance.choice(["string", ["string", "null"], "strng", []]), "format": chance.choice(_FORMATS)}
    key = odd_text(chance, 9)
    return {
        "type": "object",
        "properties": {key: schema},
        "required": [key],
        "patternProperties": {chance.choice(_PATTERNS): schema},
    }


def _object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}
