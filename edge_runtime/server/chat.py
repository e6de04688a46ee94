"""Answers of /v1/chat/completions. Knows no HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .answer import Answer, timings, usage
from .logprobs import PieceBytes, TokenLogprob, chat_logprobs


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Implements ``answering.Form``."""

    model: str
    choices: int
    piece_bytes: PieceBytes
    logprobs: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self._delta(index, {"role": "assistant", "content": ""})]

    def pieces(self, index: int, text: str, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [self._delta(index, {"content": text}, found)] if text or found else []

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        reason = answer.result.finish_reason if answer.result else None
        return [{**self._delta(answer.index, {}, reason=reason), "timings": timings([answer])}]

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        chunk = self._body("chat.completion.chunk", [])
        return {**chunk, "usage": usage(answers, self.choices), "timings": timings(answers)}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = []
        for one in answers:
            message = {"role": "assistant", "content": one.text, "refusal": None}
            logprobs = chat_logprobs(one.logprobs, self.piece_bytes) if self.logprobs else None
            reason = one.result.finish_reason if one.result else None
            choices.append({"index": one.index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        body = self._body("chat.completion", choices)
        return {**body, "usage": usage(answers, self.choices), "timings": timings(answers)}

    def _delta(
        self, index: int, delta: dict[str, Any], found: Sequence[TokenLogprob] = (), reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = chat_logprobs(found, self.piece_bytes) if found else None
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
