"""Messages to the text of a prompt, by the bundle's template. Knows no model; runs templates in a sandbox.

A template comes with a checkpoint and is a program: it gets neither files nor attributes of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from ..errors import InputError


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


class ChatTemplate:
    """Raises ``InputError`` for a template that does not parse."""

    def __init__(self, source: str, bos: str = "<bos>") -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template: Any = environment.from_string(source)
        except jinja2.TemplateError as problem:
            raise InputError(f"chat template: {problem}") from None
        self._errors: type[Exception] = jinja2.TemplateError
        self._bos = bos

    def render(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """The conversation, and with ``answer`` the opening of the model's next turn. Raises ``InputError``."""
        plain = [asdict(message) for message in messages]
        try:
            text: str = self._template.render(messages=plain, add_generation_prompt=answer, bos_token=self._bos)
        except self._errors as problem:
            raise InputError(f"chat template: {problem}") from None
        return text


def _refuse(message: str) -> NoReturn:
    """What a template calls to refuse a conversation."""
    raise InputError(f"chat template: {message}")
