"""Answers of /v1/completions. Knows no HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..engines.protocol import Ids
from ..errors import InputError, PromptTooLong
from ..scheduler.request import Request
from .answer import Answer, timings, usage
from .asking import Asker, check_choices, fitting, grammar_of, requests_of
from .logprobs import PieceBytes, TokenLogprob, completion_logprobs
from .schema import COMPLETION_TOKENS, CompletionRequest
from .service import Model


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """Implements ``answering.Form``."""

    model: str
    choices: int
    """That share a prompt."""
    piece_bytes: PieceBytes
    logprobs: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, index: int) -> list[dict[str, Any]]:
        return []

    def pieces(self, index: int, text: str, found: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [self._chunk([self._choice(index, text, found, None)])] if text or found else []

    def closing(self, answer: Answer) -> list[dict[str, Any]]:
        reason = answer.result.finish_reason if answer.result else None
        chunk = self._chunk([self._choice(answer.index, "", (), reason)])
        return [{**chunk, "timings": timings([answer])}]

    def usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": usage(answers, self.choices), "timings": timings(answers)}

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        choices = [
            self._choice(one.index, one.text, one.logprobs, one.result.finish_reason if one.result else None)
            for one in answers
        ]
        return {**self._chunk(choices), "usage": usage(answers, self.choices), "timings": timings(answers)}

    def _choice(self, index: int, text: str, found: Sequence[TokenLogprob], reason: str | None) -> dict[str, Any]:
        logprobs = completion_logprobs(found, self.piece_bytes) if self.logprobs else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def completion_requests(asked: CompletionRequest, model: Model, asker: Asker) -> tuple[Request, ...]:
    """Raises ``InputError``."""
    if isinstance(asked.prompt, list) and asked.prompt and isinstance(asked.prompt[0], str | list):
        check_choices(len(asked.prompt), asked.n or 1)
    return requests_of(
        asked,
        prompts_of(asked.prompt, model),
        model,
        asker,
        max_tokens=asked.max_tokens or COMPLETION_TOKENS,
        top_logprobs=asked.logprobs,
        grammar=grammar_of(asked.response_format, model),
    )


def prompts_of(prompt: str | list[Any], model: Model) -> list[Ids]:
    """A text, token ids, or a list of either, each within the context. Raises ``InputError``, ``PromptTooLong``."""
    if isinstance(prompt, str):
        return [fitting(encoded(prompt, model), model, "prompt")]
    if not prompt:
        raise InputError("prompt: an empty list asks for nothing", "prompt")
    if all(isinstance(one, str) for one in prompt):
        return [fitting(encoded(text, model), model, "prompt") for text in prompt]
    if all(isinstance(one, list) for one in prompt):
        return [_checked(ids, model, f"prompt[{index}]") for index, ids in enumerate(prompt)]
    return [_checked(prompt, model, "prompt")]


def encoded(text: str, model: Model) -> Ids:
    """Of any length that is worth counting. Raises ``PromptTooLong``."""
    try:
        return np.asarray(model.tokenizer.encode(text, context=model.context), np.int64)
    except PromptTooLong as problem:
        raise PromptTooLong(str(problem), "prompt") from None


def _checked(ids: list[Any], model: Model, where: str) -> Ids:
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < model.vocab_size:
            raise InputError(
                f"{where}[{index}]: a text, or token ids from 0 to {model.vocab_size - 1}, or a list of either",
                "prompt",
            )
    if not ids:
        raise InputError(f"{where}: no token ids", "prompt")
    return fitting(np.asarray(ids, np.int64), model, "prompt")
