"""One request of a soak and what came of it: taken whole, as a stream, slowly, or left in the middle. Knows what the
right text is; knows nothing of what happens to the daemon meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...client import AsyncClient, EdgeRuntimeError
from ...client.concurrent import AsyncStream
from ...client.results import Completion
from .mix import Script, fault, said
from .record import Answer, Manner, Outcome

_SLOW_S = (0.05, 0.4)
"""Between two events that a slow reader takes."""
_LEAVES_AFTER = (0, 8)
"""Events that one takes who leaves."""

Texts = Mapping[tuple[str, int], str]
"""The right text of each turn of each script."""
Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asking:
    """How all requests of a soak are made."""

    right: Texts
    patience_s: float
    """For one answer. What takes longer hangs."""
    clock: Callable[[], float]
    """Seconds since the soak began."""


@dataclass(slots=True)
class _Took:
    """What a client saw of one answer."""

    answer: Completion | None = None
    first_s: float | None = None
    last_s: float | None = None
    left: bool = False
    text: str = ""
    """As far as it was read."""


@dataclass(slots=True)
class Conversation:
    """A script on its way."""

    script: Script
    messages: Messages = field(default_factory=list)
    turn: int = 0

    @property
    def over(self) -> bool:
        return self.turn >= len(self.script.turns)

    def asked(self) -> str | Messages:
        words = self.script.turns[self.turn]
        return [*self.messages, {"role": "user", "content": words}] if self.script.chats else words

    def answered(self, text: str) -> None:
        words = self.script.turns[self.turn]
        self.messages += [{"role": "user", "content": words}, {"role": "assistant", "content": text}]
        self.turn += 1


async def learn(client: AsyncClient, script: Script) -> dict[tuple[str, int], str]:
    """The right texts: as they are alone, decoded plainly. Raises ``EdgeRuntimeError``; ``ValueError`` for an answer
    that is wrong whatever its text."""
    found: dict[tuple[str, int], str] = {}
    conversation = Conversation(script)
    while not conversation.over:
        options = _options(script) | {"speculative": {"enabled": False}}
        asked = conversation.asked()
        done = await (client.complete(asked, **options) if isinstance(asked, str) else client.chat(asked, **options))
        if problem := fault(script, done):
            raise ValueError(f"{script.name}: {problem}: {said(script, done)!r}")
        found[script.name, conversation.turn] = said(script, done)
        conversation.answered(said(script, done))
    return found


def _options(script: Script) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": script.max_tokens, **script.options}


async def ask(client: AsyncClient, conversation: Conversation, manner: Manner, asking: Asking, seed: int) -> Answer:
    """Goes on with the conversation where the answer was right; one that was refused may be asked again."""
    script, turn, began_s = conversation.script, conversation.turn, asking.clock()
    took = _Took()
    outcome: Outcome = "lost"
    why = code = ""
    try:
        await asyncio.wait_for(_take(client, conversation, manner, took, asking, seed), asking.patience_s)
    except asyncio.TimeoutError:
        why = f"no end within {asking.patience_s:g} s"
    except EdgeRuntimeError as problem:
        why, code = str(problem), problem.code or problem.type
        outcome = "refused" if problem.type in ("unavailable_error", "rate_limit_error") else "lost"
    else:
        outcome, why = _judged(script, took, asking.right[script.name, turn])
    if outcome == "right" and took.answer is not None:
        conversation.answered(said(script, took.answer))
    usage = None if took.answer is None else took.answer.usage
    tokens = 0 if usage is None else usage.completion_tokens
    ttft_s = tpot_s = None
    if outcome == "right" and took.first_s is not None and took.last_s is not None and manner == "streamed":
        ttft_s = took.first_s - began_s
        tpot_s = (took.last_s - took.first_s) / (tokens - 1) if tokens > 1 else None
    return Answer(
        began_s, asking.clock(), script.kind, script.name, turn, manner, outcome, why, code, ttft_s, tpot_s, tokens
    )


def _judged(script: Script, took: _Took, right: str) -> tuple[Outcome, str]:
    if took.left:
        if script.kind != "tools" and not right.startswith(took.text):
            return "wrong", f"before it was left, {took.text!r} is no beginning of {right!r}"
        return "left", ""
    answer = took.answer
    if answer is None:
        return "lost", "nothing came"
    text = said(script, answer)
    if problem := fault(script, answer):
        return "wrong", problem
    return ("right", "") if text == right else ("wrong", f"{text!r} and not {right!r}")


async def _take(
    client: AsyncClient, conversation: Conversation, manner: Manner, took: _Took, asking: Asking, seed: int
) -> None:
    script, asked = conversation.script, conversation.asked()
    options = _options(script)
    if manner == "whole":
        whole = client.complete(asked, **options) if isinstance(asked, str) else client.chat(asked, **options)
        took.answer = await whole
        return
    draw = random.Random(seed)
    leaves_after = draw.randint(*_LEAVES_AFTER) if manner == "left" else None
    stream: AsyncStream
    if isinstance(asked, str):
        stream = client.stream_complete(asked, **options)
    else:
        stream = client.stream_chat(asked, **options)
    seen = 0
    async with stream as chunks:
        if leaves_after == 0:
            took.left = True
            return
        async for chunk in chunks:
            took.last_s = asking.clock()
            took.text += chunk.text
            if took.first_s is None and (chunk.text or chunk.tool_calls):
                took.first_s = took.last_s
            seen += 1
            if leaves_after is not None and seen >= leaves_after:
                took.left = True
                return
            if manner == "slow":
                await asyncio.sleep(draw.uniform(*_SLOW_S))
        took.answer = chunks.completion()
