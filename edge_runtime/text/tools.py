"""Function calling in the manner of OpenAI, for models that know no format of their own. Knows no grammar and no HTTP.

Tools are declared as Google documents it for Gemma 3: as JSON in the first turn of the user, and a call is one line of
JSON, ``{"name": ..., "parameters": {...}}``, or a list of such. Families with control pieces for calls (Gemma 4,
FunctionGemma) are asked in the same way: a call in this spelling can be held to its schema.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from ..errors import InputError
from .json_schema import MAX_BYTES, checked
from .message import Message, Tool, ToolCall
from .schema_parts import Schema

OPENING = '{"name":'
"""What every call begins with; a list of calls has a bracket before it."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ASKED = """\
You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of
{"name": function name, "parameters": dictionary of argument name and its value}
"""
_SEVERAL = "To invoke several of them, put the calls in a list: [call, call]\n"
_ALONE = "\nYou SHOULD NOT include any other text in the response if you call a function\n"


def checked_tools(tools: Sequence[Tool]) -> list[tuple[str, Schema]]:
    """Names and schemas of arguments, for a grammar to be made of. Raises ``InputError`` in one line."""
    checked_ones = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not _NAME.fullmatch(tool.name):
            raise InputError(f"{where}: a name is 1 to 64 letters, digits, _ and -, not {tool.name!r}", "tools")
        schema = checked(dict(tool.parameters), f"{where}: parameters of {tool.name!r}", "tools")
        if schema.get("type", "object") != "object":
            raise InputError(f"{where}: parameters of {tool.name!r} must be of type 'object'", "tools")
        checked_ones.append((tool.name, {"type": "object", **schema}))
    size = len(json.dumps([_declaration(tool) for tool in tools]))
    if size > MAX_BYTES:
        raise InputError(f"tools: {size} bytes of JSON, at most {MAX_BYTES} are compiled", "tools")
    return checked_ones


# --- into a prompt --------------------------------------------------------------------------------


def without_tools(messages: Sequence[Message], tools: Sequence[Tool] = (), *, parallel: bool = True) -> list[Message]:
    """The same conversation for a template that knows system, user and assistant only: ``tools`` declared ahead of
    what the user says first, calls as the model spelt them, results as a turn of the user.

    Raises ``InputError`` for results without a call and calls without a result.
    """
    plain: list[Message] = []
    waiting: list[ToolCall] = []
    results: dict[str, str] = {}
    for message in messages:
        if message.role == "tool":
            call = message.tool_call_id or ""
            if call not in [open_.id for open_ in waiting] or call in results:
                raise InputError(f"no call waits for the result of {call!r}", "messages")
            results[call] = message.content
            continue
        plain += _answered(waiting, results)
        waiting, results = list(message.tool_calls), {}
        _join(plain, _plain(message))
    plain += _answered(waiting, results)
    if not any(message.role == "user" for message in plain):
        raise InputError("there is no message of a user to answer", "messages")
    return _declared(plain, tools, parallel) if tools else plain


def _plain(message: Message) -> Message:
    role: Literal["system", "user", "assistant"] = "assistant"
    if message.role in ("system", "developer"):
        role = "system"
    elif message.role == "user":
        role = "user"
    if not message.tool_calls:
        return Message(role, message.content)
    _check_calls(message)
    calls = [f'{OPENING} {json.dumps(c.name)}, "parameters": {c.arguments}}}' for c in message.tool_calls]
    spelt = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
    return Message(role, f"{message.content}\n{spelt}" if message.content else spelt)


def _check_calls(message: Message) -> None:
    if message.role != "assistant":
        raise InputError(f"a {message.role} makes no tool_calls", "messages")
    ids = [call.id for call in message.tool_calls]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise InputError(f"two calls are named {twice!r}", "messages")
    for call in message.tool_calls:
        try:
            given = json.loads(call.arguments)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise InputError(f"arguments of the call {call.id!r} must be a JSON object, as a string", "messages")


def _answered(calls: list[ToolCall], results: dict[str, str]) -> list[Message]:
    """The results in the order of their calls, as the user's turn that stands for them."""
    if missing := next((call.id for call in calls if call.id not in results), None):
        raise InputError(f"the call {missing!r} has no result", "messages")
    outputs = [f"```tool_output\n{results[call.id]}\n```" for call in calls]
    return [Message("user", "\n".join(outputs))] if outputs else []


def _join(plain: list[Message], message: Message) -> None:
    """What the user says behind results belongs to their turn."""
    if message.role == "user" and plain and plain[-1].role == "user" and plain[-1].content.startswith("```tool_output"):
        plain[-1] = replace(plain[-1], content=f"{plain[-1].content}\n\n{message.content}")
    else:
        plain.append(message)


def _declared(plain: list[Message], tools: Sequence[Tool], parallel: bool) -> list[Message]:
    first = next(index for index, message in enumerate(plain) if message.role == "user")
    declarations = ",\n".join(json.dumps(_declaration(tool), ensure_ascii=False) for tool in tools)
    asked = f"{_ASKED}{_SEVERAL if parallel else ''}{_ALONE}[\n{declarations}\n]"
    said = replace(plain[first], content=f"{asked}\n\n{plain[first].content}")
    return [*plain[:first], said, *plain[first + 1 :]]


def _declaration(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


# --- out of an answer -----------------------------------------------------------------------------


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class CallReader:
    """An answer's text as it comes, into text to show and calls, each when it is complete.

    For answers that a ``tool_calls`` grammar made: what begins as a call is calls and nothing else.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._held = ""
        """Of an answer that may be calls, what is not yet read."""
        self._kind: Literal["open", "text", "calls"] = "open"
        self._scanned = self._depth = self._made = 0
        self._quoted = self._escaped = False

    @property
    def calls(self) -> int:
        """How many were complete."""
        return self._made

    def push(self, text: str) -> list[str | ToolCall]:
        if self._kind == "text":
            return [text] if text else []
        self._held += text
        if self._kind == "open":
            begun = self._held.removeprefix("[")
            if begun.startswith(OPENING):
                self._kind = "calls"
            elif not OPENING.startswith(begun):
                self._kind = "text"
                return self._release()
        return list(self._read()) if self._kind == "calls" else []

    def flush(self) -> list[str | ToolCall]:
        """At the end of the answer: a call that was cut off is text, unless others are complete."""
        return [] if self._made else self._release()

    def _release(self) -> list[str | ToolCall]:
        held, self._held = self._held, ""
        return [held] if held else []

    def _read(self) -> list[ToolCall]:
        calls = []
        while (end := self._end_of_call()) is not None:
            start = self._held.index("{")
            calls.append(self._call(self._held[start:end]))
            self._held, self._scanned = self._held[end:], 0
        return calls

    def _end_of_call(self) -> int | None:
        while self._scanned < len(self._held):
            letter = self._held[self._scanned]
            self._scanned += 1
            if self._quoted:
                self._quoted = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._quoted = True
            elif letter == "{":
                self._depth += 1
            elif letter == "}":
                self._depth -= 1
                if self._depth == 0:
                    return self._scanned
        return None

    def _call(self, spelt: str) -> ToolCall:
        self._made += 1
        name = json.loads(spelt)["name"]
        # As the model spelt them, so that the next turn's prompt can begin with the very tokens of this answer.
        head = f'{OPENING} "{name}", "parameters": '
        return ToolCall(self._new_id(), name, spelt[len(head) : -1])
