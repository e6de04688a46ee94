"""The messages of a chat request to a prompt, and what else its answers have to keep to. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engines.protocol import Ids
from ..errors import InputError, PromptTooLong
from ..scheduler.request import Request
from ..text.grammar import Grammar
from ..text.message import Message, Tool, ToolCall
from ..text.tokenizer import GUARD
from .asking import Asker, fitting, grammar_of, requests_of, text_of
from .schema import ChatMessage, ChatRequest, NamedTool
from .service import Model


def chat_requests(asked: ChatRequest, model: Model, asker: Asker) -> tuple[Request, ...]:
    """Raises ``InputError``."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise InputError("top_logprobs needs logprobs: true", "top_logprobs")
    tools = tools_of(asked)
    return requests_of(
        asked,
        [fitting(chat_prompt(asked.messages, model, tools, parallel=_parallel(asked)), model, "messages")],
        model,
        asker,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        top_logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        grammar=_grammar(asked, tools, model),
    )


def chat_prompt(
    messages: Sequence[ChatMessage], model: Model, tools: Sequence[Tool] = (), *, parallel: bool = True
) -> Ids:
    """Of any length that is worth counting. Raises ``InputError`` for what the template cannot write, and
    ``PromptTooLong``."""
    if model.template is None:
        raise InputError(f"model {model.name!r} has no chat template: it completes texts only", "messages")
    said = [_message(one, f"messages[{index}]") for index, one in enumerate(messages)]
    # Ahead of the template too, which reads a text several times. Templates trim what is said.
    letters = sum(len(one.content.strip()) - one.content.count(GUARD) for one in said)
    if letters > model.context * model.tokenizer.longest_piece():
        least = -(-letters // model.tokenizer.longest_piece())
        raise PromptTooLong.of(f"at least {least}", model.context, "messages")
    try:
        ids = model.template.encode(model.tokenizer, said, tools=tools, parallel=parallel, context=model.context)
    except PromptTooLong as problem:
        raise PromptTooLong(str(problem), "messages") from None
    except InputError as problem:
        raise InputError(str(problem), problem.param or "messages") from None
    return np.asarray(ids, np.int64)


def tools_of(asked: ChatRequest) -> tuple[Tool, ...]:
    """Those that the model is told of; none where it must not call any. Raises ``InputError``."""
    tools = tuple(
        Tool(
            tool.function.name,
            tool.function.description or "",
            tool.function.parameters or {"type": "object", "properties": {}},
        )
        for tool in asked.tools or ()
    )
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"tools: {twice!r} stands twice", "tools")
    choice = asked.tool_choice
    if not tools and (choice == "required" or isinstance(choice, NamedTool)):
        raise InputError("tool_choice asks for a call, but there are no tools", "tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise InputError(f"tool_choice: {choice.function.name!r} is none of the tools", "tool_choice.function.name")
    return () if choice == "none" else tools


def _grammar(asked: ChatRequest, tools: Sequence[Tool], model: Model) -> Grammar | None:
    grammar = grammar_of(asked.response_format, model)
    choice = asked.tool_choice or "auto"
    if not tools:
        return grammar
    if grammar is not None:
        raise InputError("response_format and tools exclude each other", "response_format")
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.name == choice.function.name]
    return model.grammars.tool_calls(tools, text=choice == "auto", parallel=_parallel(asked))


def _parallel(asked: ChatRequest) -> bool:
    return asked.parallel_tool_calls is not False


def _message(said: ChatMessage, where: str) -> Message:
    if said.name is not None and said.role != "tool":
        raise InputError(f"{where}.name is not supported: a turn of Gemma has no name", f"{where}.name")
    if said.tool_calls and said.role != "assistant":
        raise InputError(f"{where}.tool_calls: only an assistant calls tools", f"{where}.tool_calls")
    if said.tool_call_id is not None and said.role != "tool":
        raise InputError(f"{where}.tool_call_id: only a tool answers a call", f"{where}.tool_call_id")
    if said.content is None and not said.tool_calls:
        raise InputError(f"{where}.content is required", f"{where}.content")
    if said.role == "tool" and said.tool_call_id is None:
        raise InputError(f"{where}.tool_call_id is required for role tool", f"{where}.tool_call_id")
    calls = tuple(ToolCall(one.id, one.function.name, one.function.arguments) for one in said.tool_calls or ())
    return Message(said.role, text_of(said.content), calls, said.tool_call_id)
