"""Messages to the text of a prompt, by the bundle's template. Knows no model.

A template comes with a checkpoint and is a program: it gets neither files nor attributes of Python, and its work is
bounded (``sandbox``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import BundleError, ConfigError, InputError
from ..files import read_text_at_most
from .message import Message, Tool
from .sandbox import MAX_SOURCE, Template
from .tokenizer import GUARD, Tokenizer, guarded
from .tools import without_tools

__all__ = ["ChatTemplate", "Conversation", "Message"]


class ChatTemplate:
    """Raises ``InputError`` for a template that does not parse."""

    def __init__(self, source: str, bos: str = "<bos>", eos: str = "<eos>") -> None:
        self._template = Template(source)
        self._bos, self._eos = bos, eos

    @classmethod
    def read(cls, path: Path) -> ChatTemplate:
        """Of a bundle. Raises ``BundleError``."""
        try:
            return cls(read_text_at_most(path, 4 * MAX_SOURCE, ""))
        except ConfigError as problem:
            raise BundleError(str(problem)) from None
        except InputError as problem:
            raise BundleError(f"{path}: {problem}") from None

    def render(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """The conversation, and with ``answer`` the opening of the model's next turn. For reading: see ``encode``.

        Raises ``InputError`` for a conversation that the template refuses.
        """
        return self._render(without_tools(messages), answer).replace(GUARD, "")

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        parallel: bool = True,
        answer: bool = True,
        context: int | None = None,
    ) -> list[int]:
        """Token ids of the same, with ``tools`` declared to the model. What the template writes may be a control
        piece; what a message says is ordinary text, so that no message can end its turn or open another.

        Raises ``InputError`` as ``render`` does, and ``PromptTooLong`` as ``Tokenizer.encode`` does for ``context``.
        """
        plain = without_tools(messages, tools, parallel=parallel)
        return tokenizer.encode(self._guarded(plain, answer), bos=False, parse_special=True, context=context)

    def _guarded(self, messages: Sequence[Message], answer: bool) -> str:
        return self._render([replace(message, content=guarded(message.content)) for message in messages], answer)

    def _render(self, messages: Sequence[Message], answer: bool) -> str:
        plain = [{"role": message.role, "content": message.content} for message in messages]
        given = {"add_generation_prompt": answer, "bos_token": self._bos, "eos_token": self._eos}
        return self._template.render({"messages": plain, **given}, sum(len(message.content) for message in messages))


class Conversation:
    """The prompts of one conversation, each of which begins with the very ids of the prompt and answer before it, so
    that a cache that holds them holds nothing stale.

    For usual answers these are the ids that the whole rendered conversation has. They are others, and the cache is
    still right, where the model spelt a text in pieces that a tokenizer would not choose, began or ended it with
    spaces that the template trims, or ended at a stop string, whose tokens stay unless the caller leaves them out.
    A template that rewrites earlier turns makes the whole conversation anew.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, system: str | None = None) -> None:
        self._template, self._tokenizer = template, tokenizer
        self._messages = [Message("system", system)] if system else []
        self._ids: list[int] = []
        """Of all turns that were answered."""
        self._open: tuple[list[Message], list[int]] = [], []

    def prompt(self, user: str) -> list[int]:
        """Ids ahead of the next answer. A turn that gets no answer is forgotten. Raises ``InputError``."""
        messages = [*self._messages, Message("user", user)]
        rest = self._rest(messages) if self._ids else None
        if rest is None:
            ids = self._template.encode(self._tokenizer, messages)
        else:
            added = self._tokenizer.encode(rest, bos=False, parse_special=True)
            # An answer that ended by itself has the control piece that the template writes, or one in its place.
            ended = self._tokenizer.is_control(self._ids[-1])
            ids = [*(self._ids[:-1] if ended else self._ids), *added]
        self._open = messages, ids
        return list(ids)

    def answered(self, tokens: Sequence[int], text: str) -> None:
        """What came after the last prompt: its ids, the one that ended it included, and the text they made."""
        messages, ids = self._open
        self._messages, self._ids = [*messages, Message("assistant", text)], [*ids, *tokens]

    def _rest(self, messages: list[Message]) -> str | None:
        """What the template writes behind the last answer; ``None`` where it writes earlier turns anew."""
        *before, answer, _ = messages
        start = self._template._guarded(before, True)
        whole = self._template._guarded(messages, True)
        said = guarded(answer.content)
        for head in (start + said, start + said.strip()):
            if whole.startswith(head):
                return whole[len(head) :]
        return None
