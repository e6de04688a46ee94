"""What clients of a soak ask for: several kinds of requests, and how an answer to each is judged. Knows no connection.

All of them are asked of a daemon in the deterministic mode, greedily or with a seed, so that every answer has one right
text. An answer that has a form is read into a type besides, by another reader than the one that bound the model to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from ...client.results import Completion
from ..corpus import prompts, sample_text

Kind = Literal["chat", "rag", "json", "tools", "sampled", "complete"]


class Book(msgspec.Struct, forbid_unknown_fields=True):
    """What JSON answers are to be."""

    shelf: Literal["north", "south", "cellar"]
    copies: Annotated[int, msgspec.Meta(ge=0, le=99)]
    lent: bool
    tags: Annotated[list[Literal["old", "rare", "torn"]], msgspec.Meta(min_length=1, max_length=2)]


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What a tool takes."""

    item: Literal["tea", "bread", "oil"]
    count: Annotated[int, msgspec.Meta(ge=1, le=9)]


@dataclass(frozen=True, slots=True)
class Script:
    """A conversation, or a single request: always the same, so its answers are."""

    name: str
    kind: Kind
    turns: tuple[str, ...]
    """What the user says, one after the other."""
    max_tokens: int
    options: Mapping[str, Any] = field(default_factory=dict)
    reads: type[msgspec.Struct] | None = None
    """What an answer is, where it has a form."""

    @property
    def chats(self) -> bool:
        """Whether it is asked as a conversation, and not as a text to go on with."""
        return self.kind not in ("complete", "sampled")


@dataclass(frozen=True, slots=True)
class Sizes:
    tokens: int = 32
    """Of an answer without a form."""
    document: int = 2800
    """Characters that requests of the same document share."""
    formed: int = 96
    """Most tokens of an answer with one."""
    each: int = 4
    """Scripts of a kind."""


def scripts(sizes: Sizes) -> tuple[Script, ...]:
    texts, library = [prompt.text for prompt in prompts("open")], sample_text()
    found: list[Script] = []
    for number in range(sizes.each):
        text = texts[number % len(texts)][: sizes.document // 4]
        start = (number // 2) * sizes.document  # two questions a document
        document = library[start : start + sizes.document]
        found += [
            Script(f"chat {number}", "chat", (f"{text} ({number})", "Go on.", "And then?"), sizes.tokens),
            Script(f"rag {number}", "rag", (f"{document}\n\nQuestion {number}: what is said here?",), sizes.tokens),
            Script(f"json {number}", "json", (f"Book {number}, as JSON.",), sizes.formed, _form(Book), Book),
            Script(f"tools {number}", "tools", (f"Buy {number + 2} of it.",), sizes.formed, _tool(Order), Order),
            Script(
                f"sampled {number}", "sampled", (f"{number}. {text}",), sizes.tokens,
                {"temperature": 0.8, "top_k": 40, "seed": 11 + number},
            ),
            Script(f"complete {number}", "complete", (f"No. {number}: {text}",), sizes.tokens),
        ]  # fmt: skip
    return tuple(found)


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Without references and words for people."""
    _, parts = msgspec.json.schema_components([kind])
    schema = dict(parts[kind.__name__])
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def _form(kind: type[msgspec.Struct]) -> dict[str, Any]:
    form = {"name": kind.__name__.lower(), "schema": _schema(kind)}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _tool(kind: type[msgspec.Struct]) -> dict[str, Any]:
    name = kind.__name__.lower()
    function = {"name": name, "description": "Places an order.", "parameters": _schema(kind)}
    tools = [{"type": "function", "function": function}]
    return {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}


def said(script: Script, answer: Completion) -> str:
    """All of an answer that must be the same each time: ids of calls are not."""
    if script.kind == "tools":
        return "\n".join(f"{call.name} {call.arguments}" for call in answer.tool_calls)
    return answer.text


def fault(script: Script, answer: Completion) -> str | None:
    """What is wrong with an answer that is complete, whatever its text should be."""
    ended = answer.finish_reason
    wanted = {"json": ("stop",), "tools": ("tool_calls", "stop")}.get(script.kind, ("stop", "length"))
    if ended not in wanted:
        return f"ended as {ended}"
    if answer.usage is None or not answer.usage.completion_tokens:
        return "no tokens are counted"
    if script.reads is None:
        return None
    texts = [call.arguments for call in answer.tool_calls] if script.kind == "tools" else [answer.text]
    if not texts:
        return "no tool is called"
    for text in texts:
        try:
            msgspec.json.decode(text, type=script.reads)
        except msgspec.DecodeError as problem:
            return f"not of its form: {problem}"
    return None
