"""One value out of one file of a kernel. Knows no device: what cannot be read or is no number is ``None``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_MOST_BYTES = 1 << 16
_MOST = 1 << 63
"""No counter of a kernel goes beyond."""


def read_text(path: str) -> str | None:
    """Without the blanks and zero bytes at its end."""
    try:
        # Without waiting for somebody to write, should there be a pipe in its place.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, _MOST_BYTES)
    except OSError:
        return None  # a sensor that is switched off fails at the read
    finally:
        os.close(descriptor)
    return data.decode("utf-8", errors="replace").rstrip("\0 \n\t")


def read_int(path: str) -> int | None:
    text = read_text(path)
    return None if text is None else number(text)


def number(text: str) -> int | None:
    """``None`` where it is none, or one that no kernel counts to: floats and JSON could not hold it."""
    try:
        value = int(text)
    except ValueError:  # also: thousands of digits
        return None
    return value if -_MOST <= value < _MOST else None


def folders(parent: Path, prefix: str) -> Iterator[str]:
    """Those that are called like ``prefix`` and a number, by number."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    numbered = [name for name in names if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
    for name in sorted(numbered, key=lambda name: int(name[len(prefix) :])):
        yield f"{parent}/{name}"
