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
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import InputError, did_you_mean
from .json_schema import MAX_BYTES, checked
from .message import Message, Tool, ToolCall

MAX_TOOLS = 128
OPENING = '{"name":'
"""What every call begins with; a list of calls has a bracket before it."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_ASKED = """\
You have access to functions. If you decide to invoke any of the function(s), you MUST put it in the format of
{"name": function name, "parameters": dictionary of argument name and its value}
"""
_SEVERAL = "To invoke several of them, put the calls in a list: [call, call]\n"
_ALONE = "\nYou SHOULD NOT include any other text in the response if you call a function\n"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: Literal["none", "auto", "required"]
    only: str | None = None
    """Of ``required``: the one tool that may be called."""

    def offered(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools that an answer may call."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in tools if self.only in (None, tool.name))


def read_tools(given: object) -> tuple[Tool, ...]:
    """OpenAI's ``tools``. Raises ``InputError``."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise InputError("tools must be a list", "tools")
    if len(given) > MAX_TOOLS:
        raise InputError(f"{len(given)} tools, at most {MAX_TOOLS} may be given", "tools")
    tools = tuple(_read_tool(item, f"tools[{index}]") for index, item in enumerate(given))
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"tools: two functions are named {twice!r}", "tools")
    size = len(json.dumps([_declaration(tool) for tool in tools]))
    if size > MAX_BYTES:
        raise InputError(f"tools: {size} bytes of JSON, at most {MAX_BYTES} are compiled", "tools")
    return tools


def _read_tool(given: object, where: str) -> Tool:
    function = _fields(given, ("type", "function"), where)
    if function.get("type") != "function":
        raise InputError(f"{where}: type must be 'function', not {function.get('type')!r}", "tools")
    fields = _fields(function.get("function"), ("name", "description", "parameters", "strict"), f"{where}: function")
    name, description = fields.get("name"), fields.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{where}: a name is 1 to 64 letters, digits, _ and -, not {name!r}", "tools")
    if not isinstance(description, str):
        raise InputError(f"{where}: description must be a string", "tools")
    if not isinstance(fields.get("strict"), bool | None):
        raise InputError(f"{where}: strict must be true or false", "tools")
    parameters = fields.get("parameters")
    schema = checked(_NOTHING if parameters is None else parameters, f"{where}: parameters of {name!r}", "tools")
    if schema.get("type", "object") != "object":
        raise InputError(f"{where}: parameters of {name!r} must be of type 'object'", "tools")
    return Tool(name, description, {"type": "object", **schema})


def _fields(given: object, known: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"{where} must be an object", "tools")
    if other := next((key for key in given if key not in known), None):
        raise InputError(f"{where}: unknown key {other!r}{did_you_mean(str(other), known)}", "tools")
    return given


def read_tool_choice(given: object, tools: Sequence[Tool]) -> ToolChoice:
    """OpenAI's ``tool_choice``: none, auto, required or ``{"type": "function", "function": {"name": ...}}``. Raises
    ``InputError``."""
    if given is None:
        return ToolChoice("auto" if tools else "none")
    if given in ("none", "auto"):
        return ToolChoice("none" if given == "none" or not tools else "auto")
    name = _named(given)
    if given != "required" and name is None:
        raise InputError("tool_choice must be none, auto, required or name a function of tools", "tool_choice")
    if not tools:
        raise InputError("tool_choice asks for a call, but there are no tools", "tool_choice")
    names = [tool.name for tool in tools]
    if name is not None and name not in names:
        raise InputError(f"tool_choice: no tool is named {name!r}{did_you_mean(name, names)}", "tool_choice")
    return ToolChoice("required", name)


def _named(given: object) -> str | None:
    if not isinstance(given, dict) or set(given) != {"type", "function"} or given["type"] != "function":
        return None
    function = given["function"]
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


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
                raise InputError(f"messages: no call waits for the result of {call!r}", "messages")
            results[call] = message.content
            continue
        plain += _answered(waiting, results)
        waiting, results = list(message.tool_calls), {}
        _join(plain, _plain(message))
    plain += _answered(waiting, results)
    return _declared(plain, tools, parallel) if tools else plain


def _plain(message: Message) -> Message:
    role: Literal["system", "user", "assistant"] = "assistant"
    if message.role in ("system", "developer"):
        role = "system"
    elif message.role == "user":
        role = "user"
    if not message.tool_calls:
        return Message(role, message.content)
    if role != "assistant":
        raise InputError(f"messages: a {message.role} makes no tool_calls", "messages")
    calls = [f'{OPENING} {json.dumps(c.name)}, "parameters": {c.arguments}}}' for c in message.tool_calls]
    spelt = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
    return Message(role, f"{message.content}\n{spelt}" if message.content else spelt)


def _answered(calls: list[ToolCall], results: dict[str, str]) -> list[Message]:
    """The results in the order of their calls, as the user's turn that stands for them."""
    if missing := next((call.id for call in calls if call.id not in results), None):
        raise InputError(f"messages: the call {missing!r} has no result", "messages")
    outputs = [f"```tool_output\n{results[call.id]}\n```" for call in calls]
    return [Message("user", "\n".join(outputs))] if outputs else []


def _join(plain: list[Message], message: Message) -> None:
    """What the user says behind results belongs to their turn."""
    if message.role == "user" and plain and plain[-1].role == "user" and plain[-1].content.startswith("```tool_output"):
        plain[-1] = replace(plain[-1], content=f"{plain[-1].content}\n\n{message.content}")
    else:
        plain.append(message)


def _declared(plain: list[Message], tools: Sequence[Tool], parallel: bool) -> list[Message]:
    first = next((index for index, message in enumerate(plain) if message.role == "user"), None)
    if first is None:
        return plain
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
