"""Where a text goes: to stdout, as it comes and nothing else. Knows no tokens."""

from __future__ import annotations

import io
import sys

from ..console import PICTURES


class TextOutput:
    """Not click.echo, which drops escape sequences from what it pipes: the text is to come through as it is."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._terminal = self._stream.isatty()
        if isinstance(self._stream, io.TextIOWrapper):
            # A locale that lacks a character is no reason to lose the rest of the text.
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        self._stream.write(text.translate(PICTURES) if self._terminal else text)
        self._stream.flush()
