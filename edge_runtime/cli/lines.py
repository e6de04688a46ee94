"""Lines that somebody types. Knows no command."""

from __future__ import annotations

import io
import sys
from contextlib import suppress

import click

_PROMPT = "> "


class Lines:
    """Edited and remembered by readline in a terminal, read as they are from a pipe."""

    def __init__(self) -> None:
        self.typed = sys.stdin.isatty()
        """Whether a person is at the other end."""
        self._edited = self.typed and sys.stdout.isatty()
        if self._edited:
            with suppress(ImportError):  # not in every build of Python; input() then edits as the terminal does
                import readline  # noqa: F401
        if isinstance(sys.stdin, io.TextIOWrapper):
            # Bytes that are no text fail where they are encoded, as one turn, and not here.
            sys.stdin.reconfigure(errors="surrogateescape")

    def read(self) -> str | None:
        """The next line that is not blank, stripped; ``None`` at the end."""
        while True:
            line = self._next()
            if line is None:
                return None
            if line.strip():
                return line.strip()

    def _next(self) -> str | None:
        if self._edited:
            try:
                return input(_PROMPT)
            except EOFError:
                click.echo(err=True)
                return None
        if self.typed:
            click.echo(_PROMPT, nl=False, err=True)
        return sys.stdin.readline() or None
