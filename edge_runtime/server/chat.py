"""Answers of /v1/chat/completions. Knows no HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from ..text.message import ToolCall
from ..text.tools import CallReader
from .answer import Answer, timings, usage
from .logprobs import PieceBytes, TokenLogprob, chat_logprobs

Part = str | ToolCall


class ChatForm:
    """Implements ``answering.Form``."""

    def __init__(self, model: str, choices: int, piece_bytes: PieceBytes, *, logprobs: bool, tools: bool) -> None:
        """``tools``: whether an answer may be calls of them."""
        self._model, self._choices, self._piece_bytes, self._logprobs = model, choices, piece_bytes, logprobs
        self._readers = [CallReader() for _ in range(choices)] if tools else []
        self._id, self._created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self._delta(index, {"role": "assistant", "content": ""})]

    def pieces(self, index: int, text: str, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        deltas = self._said(index, self._readers[index].push(text) if self._readers else [text])
        if found and not deltas:
            # Of a text that is held back until it is clear whether it is a call.
            deltas = [{}]
        return [self._delta(index, delta, () if place else found) for place, delta in enumerate(deltas)]

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        rest = self._said(answer.index, self._readers[answer.index].flush() if self._readers else [])
        last = self._delta(answer.index, {}, reason=self._reason(answer))
        return [*(self._delta(answer.index, delta) for delta in rest), {**last, "timings": timings([answer])}]

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        chunk = self._body("chat.completion.chunk", [])
        return {**chunk, "usage": usage(answers, self._choices), "timings": timings(answers)}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        body = self._body("chat.completion", [self._choice(answer) for answer in answers])
        return {**body, "usage": usage(answers, self._choices), "timings": timings(answers)}

    def _choice(self, answer: Answer) -> dict[str, Any]:
        parts: list[Part] = [answer.text]
        if self._readers:
            reader = self._readers[answer.index]
            parts = [*reader.push(answer.text), *reader.flush()]
        calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
        text = "".join(part for part in parts if isinstance(part, str))
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
        message["refusal"] = None
        if calls:
            message["tool_calls"] = calls
        logprobs = chat_logprobs(answer.logprobs, self._piece_bytes) if self._logprobs else None
        return {
            "index": answer.index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason(answer),
        }

    def _said(self, index: int, parts: Sequence[Part]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        first = self._readers[index].calls if self._readers else 0
        first -= sum(isinstance(part, ToolCall) for part in parts)
        for part in parts:
            if isinstance(part, ToolCall):
                deltas.append({"tool_calls": [{"index": first, **_call(part)}]})
                first += 1
            elif part:
                deltas.append({"content": part})
        return deltas

    def _reason(self, answer: Answer) -> str | None:
        reason = answer.result.finish_reason if answer.result else None
        return "tool_calls" if reason == "stop" and self._readers and self._readers[answer.index].calls else reason

    def _delta(
        self, index: int, delta: dict[str, Any], found: Sequence[TokenLogprob] = (), reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(found, self._piece_bytes) if found else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
