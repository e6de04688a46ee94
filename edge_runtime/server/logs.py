"""The daemon's log: one line an event, on stderr. Knows no event, and never sees a prompt."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Mapping

import msgspec

_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


_QUOTES = re.compile(r"[(<\n]")


class OneLine(logging.Formatter):
    def __init__(self, journal: bool) -> None:
        """``journal``: it has the time itself, and reads the level from a prefix."""
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.name == "asyncio":
            # It goes on with what a call was given, and a task's result or error, all as Python writes them.
            text = _QUOTES.split(text, maxsplit=1)[0]
        if record.exc_info and record.exc_info[1] is not None:
            # Where, and not what: an exception's words may quote a request.
            problem = record.exc_info[1]
            text = f"{text.rstrip()} [{type(problem).__name__}{_place(problem)}]"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        text = " | ".join(lines).encode("utf-8", "backslashreplace").decode()
        if self._journal:
            return f"<{_SYSLOG.get(record.levelno, 6)}>{text}"
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{moment}.{int(record.msecs):03}Z {record.levelname.lower()} {text}"


def event(name: str, /, **facts: object) -> str:
    """``name key=value ...``; what is not one word is quoted as JSON."""
    return " ".join([name, *(f"{key}={_word(value)}" for key, value in facts.items() if value is not None)])


def log_to_stderr(environment: Mapping[str, str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(_is_journal(environment)))
    for name, level in (("edge_runtime", logging.INFO), ("uvicorn", logging.WARNING), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _is_journal(environment: Mapping[str, str]) -> bool:
    """Whether stderr is the stream that JOURNAL_STREAM speaks of, and not a file that it was redirected to."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _word(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    plain = text and text.isprintable() and not set(text) & set(' "=')
    return text if plain else msgspec.json.encode(text.encode("utf-8", "backslashreplace").decode()).decode()


def _place(problem: BaseException) -> str:
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
