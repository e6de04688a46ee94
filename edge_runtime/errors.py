"""The exception tree. Knows nothing of who raises or prints.

Every error a user can cause derives from :class:`InputError` and reads as one line; the command line
prints it and exits with ``exit_code``, the server answers with ``http_status``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_TOLD = 2000
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | dict.fromkeys(map(ord, "\n\r\t"), " ")
_PICTURES |= {0x7F: "\u2421"} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


class EdgeError(Exception):
    """Root of everything this package raises on purpose. Its text is one line, whatever file or request the words in it
    come from."""

    exit_code = 1
    http_status = 500

    def __str__(self) -> str:
        return one_line(super().__str__())


class InputError(EdgeError):
    """Something that the caller gave is wrong; nothing was changed."""

    exit_code = 2
    http_status = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        """``param``: the request's field that is wrong, where a single one is."""
        super().__init__(message)
        self.param = param


class ConfigError(InputError):
    """A recipe, a config file or an option is wrong."""


class BundleError(InputError):
    """A bundle is missing, incomplete, altered or of another schema version."""


class CheckpointError(InputError):
    """A checkpoint cannot be read, or is of a kind that cannot be exported."""


class VocabularyMismatch(CheckpointError):
    """Draft and target do not share their token ids."""


class PromptTooLong(InputError):
    """The prompt leaves no room in the context."""

    @classmethod
    def of(cls, tokens: str, context: int, param: str | None = None) -> PromptTooLong:
        return cls(f"the prompt has {tokens} tokens and the context {context}: no room is left for an answer", param)


class OutOfBudget(InputError):
    """A bundle, as it is to be loaded, needs more memory than there is; nothing was loaded."""

    http_status = 409


class EngineError(EdgeError):
    """An engine failed although its input was right."""


class DeviceError(EngineError):
    """A call of a device's library failed. Its status is kept for whoever tells one failure from another."""

    def __init__(self, call: str, name: str, code: int | None = None, detail: str = "") -> None:
        """``name`` and ``code``: the status as the library has it; ``code`` ``None``: it gave none, only "failed"."""
        number = "" if code is None else f" ({code})"
        super().__init__(f"{call}: {name}{number}{': ' if detail else ''}{' '.join(detail.split())}")
        self.call, self.name, self.code = call, name, code


class Unavailable(EdgeError):
    """Not now: loading, draining, or over a limit. The message says which, with the numbers."""

    http_status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Unavailable):
    """Too many requests wait, of all clients or of this one."""

    http_status = 429


class DeadlineExceeded(EdgeError):
    """A request's time was over before its answer was complete."""

    http_status = 504


class Cancelled(EdgeError):
    """The client left before the answer was complete, or the daemon stopped (``Stopped``)."""

    http_status = 499


class Stopped(Cancelled):
    """The daemon had to stop before the answer was complete: who has none of it yet may ask the next one."""

    http_status = 503
    retry_after_s = 1.0


def one_line(text: str, most: int = _LONGEST_TOLD) -> str:
    """``text`` as a terminal and a log show it and do not obey it: no line ends, control characters as pictures, what
    else prints nothing as an escape, and of more than ``most`` characters both ends."""
    text = _cut(text, most)
    if text.isprintable():
        return text
    shown = (one if one.isprintable() else _escaped(one) for one in text.translate(_PICTURES))
    return _cut("".join(shown), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 4 :]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def why(problem: Exception) -> str:
    """Without the number and the path that ``OSError`` brings along: whoever tells it names the file himself."""
    return (isinstance(problem, OSError) and problem.strerror) or " ".join(str(problem).split())


def first_line(problem: BaseException) -> str:
    """Of what a library says, which may be a page; its kind where it says nothing (``MemoryError`` mostly does not)."""
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


def did_you_mean(word: str, known: Iterable[str], *, likeness: float = 0.5) -> str:
    """``" (did you mean 'x'?)"`` for the nearest of ``known``, or an empty string where none is as like as that."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return f" (did you mean {near[0]!r}?)" if near else ""
