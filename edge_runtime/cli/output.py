"""Where a text goes: to stdout, as it comes and nothing else. Knows no tokens."""

from __future__ import annotations

import io
import sys

# A terminal obeys control characters, and a text is not to command it: they show as pictures of themselves.
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def shown(text: str) -> str:
    """One line that a terminal shows and does not obey."""
    return text.translate(_PICTURES | dict.fromkeys((ord("\n"), ord("\t")), ord(" ")))


class TextOutput:
    """Not click.echo, which drops escape sequences from what it pipes: the text is to come through as it is."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._terminal = self._stream.isatty()
        if isinstance(self._stream, io.TextIOWrapper):
            # A locale that lacks a character is no reason to lose the rest of the text.
            self._stream.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        self._stream.write(text.translate(_PICTURES) if self._terminal else text)
        self._stream.flush()
