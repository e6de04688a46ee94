"""The daemon's log: one line an event, on stderr. Knows no event, and never sees a prompt."""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext

import msgspec

_SYSLOG = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}


_QUOTES = re.compile(r"[(<\n]")
_MOST_WAITING = 1000
_MOST_BYTES = 4000
"""Of a line: as much as a pipe that has room at all takes at once (PIPE_BUF)."""


class Stderr(logging.Handler):
    """Never waits: who reads the log and stops must not stop the answers, and a disk that is full must not end them.

    Lines that find no room wait for the next one, or for ``flush``; of too many the oldest are lost, which is told.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "backslashreplace")
        except Exception:  # noqa: BLE001 - as logging itself: a line that cannot be made ends nobody's answer
            self.handleError(record)
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft()
            self._lost += 1
        self._waiting.append(line[:_MOST_BYTES] + b"\n")
        self._write()

    def flush(self) -> None:
        with self.lock or nullcontext():
            self._write()

    def _write(self) -> None:
        while self._waiting and self._room.poll(0):
            if self._lost:
                self._waiting.appendleft(f"{self._lost} lines of the log were lost: nobody took them\n".encode())
                self._lost = 0
            try:
                done = os.write(self._descriptor, self._waiting[0])
            except OSError as problem:
                # Nobody will read it any more; or a disk is full, and may not be later.
                if problem.errno in (errno.EPIPE, errno.EBADF):
                    self._waiting.clear()
                return
            if done < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][done:]
            else:
                self._waiting.popleft()


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
    handler = Stderr(sys.stderr.fileno())
    handler.setFormatter(OneLine(_is_journal(environment)))
    # What uvicorn warns of is what a client did, who is told: a line each would let it fill the log.
    for name, level in (("edge_runtime", logging.INFO), ("uvicorn", logging.ERROR), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def flush_log() -> None:
    """What found no room when it was written."""
    for handler in logging.getLogger("edge_runtime").handlers:
        handler.flush()


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
