"""The exception tree. Knows nothing of who raises or prints.

Every error a user can cause derives from :class:`InputError` and reads as one line; the command line
prints it and exits with ``exit_code``, the server (later) answers with ``http_status``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EdgeError(Exception):
    """Root of everything this package raises on purpose."""

    exit_code = 1
    http_status = 500


class InputError(EdgeError):
    """Something that the caller gave is wrong; nothing was changed."""

    exit_code = 2
    http_status = 400


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

    http_status = 413


class EngineError(EdgeError):
    """An engine failed although its input was right."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` for the nearest of ``known``, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
