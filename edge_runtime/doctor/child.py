"""Runs one probe in a process of its own, within limits, and says how it ended. Knows no engine and judges nothing.

Whatever the probe does, this returns in time: it reads what was told, looks at memory and clock, and kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..errors import ConfigError
from ..resident import machine_memory
from ..schema import plain, structure
from .outcome import Ending, Line, Outcome, Request, told

PROBES = "edge_runtime.doctor.probes"
_LOOK_S = 0.02
_LAST_WORDS = 4096
"""Bytes of stderr that are looked at."""
_LONGEST_LINE = 1 << 20
_BURIAL_S = 5.0
"""For a process that was killed: one that is stuck in a driver does not go."""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    resident_bytes: int
    """Of the probe."""
    left_bytes: int = 200 << 20
    """Of the machine's available memory: below that the probe is ended, whoever takes it."""


def command_of(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"{PROBES}.{module}")


def run_probe(
    name: str,
    command: Sequence[str],
    request: Request,
    limits: Limits,
    heard: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """``command``: a program that takes a request as JSON and a descriptor. ``heard`` is told each stage."""
    began_s = time.monotonic()
    read_fd, write_fd = os.pipe()
    # A file: a pipe that nobody reads fills up, and a chatty library would wait for ever.
    with tempfile.TemporaryFile() as said, os.fdopen(read_fd, "rb", buffering=0) as stream:
        try:
            process = _start(command, request, write_fd, said)
        finally:
            os.close(write_fd)
        conversation = _Conversation(process, stream, heard)
        try:
            ended = conversation.listen(limits, began_s + limits.seconds)
        finally:
            gone = _bury(process)
        if not gone:
            # Its pipes are left to it; the object must not wait for it when it is collected.
            process.returncode = -signal.SIGKILL
            ended = "stuck"
        return conversation.outcome(name, ended, _last_words(said), time.monotonic() - began_s)


def _start(command: Sequence[str], request: Request, write_fd: int, said: IO[bytes]) -> subprocess.Popen[bytes]:
    quiet = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*command, json.dumps(plain(request)), str(write_fd)],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        pass_fds=(write_fd,),
        env=os.environ | quiet | request.environment,
        start_new_session=True,
    )


class _Conversation:
    def __init__(self, process: subprocess.Popen[bytes], stream: IO[bytes], heard: Callable[[str], None]) -> None:
        self._process, self._stream, self._heard = process, stream, heard
        self._lines: list[Line] = []
        self._open = b""
        self._stage = "start"
        self._odd = ""

    def listen(self, limits: Limits, end_s: float) -> Ending | None:
        """Until the process ends, or has to be ended: then why."""
        while True:
            ready, _, _ = select.select([self._stream], [], [], _LOOK_S)
            if ready and not self._read():
                # It closed its end: what is left is its exit, or what it does without telling.
                time.sleep(_LOOK_S)
            if self._process.poll() is not None:
                while select.select([self._stream], [], [], 0.0)[0] and self._read():
                    pass
                return None
            if time.monotonic() > end_s:
                return "hung"
            if _too_much(self._process.pid, limits):
                return "memory"

    def _read(self) -> bool:
        data = self._stream.read(1 << 16)
        *whole, self._open = (self._open + data).split(b"\n")
        if len(self._open) > _LONGEST_LINE:
            self._odd, self._open = "a line without an end", b""
        for text in whole:
            self._take(text)
        return bool(data)

    def _take(self, text: bytes) -> None:
        try:
            line = structure(Line, json.loads(text), ConfigError, "a line of the probe")
        except (ValueError, ConfigError, RecursionError) as problem:
            self._odd = self._odd or f"a line that is none: {problem}"
            return
        self._lines.append(line)
        if line.stage is not None:
            self._stage = line.stage
            self._heard(line.stage)

    def outcome(self, name: str, ended: Ending | None, last_words: str, seconds: float) -> Outcome:
        lines = tuple(self._lines)
        failed = next((line.failed for line in lines if line.failed), None) or self._odd
        absent = next((line.absent for line in lines if line.absent), None)
        code = self._process.returncode
        by_signal = _signal_name(-code) if ended is None and code < 0 else None
        # What a library printed often says more than what it raised.
        said = failed or last_words
        if failed and last_words and last_words not in failed:
            said = f"{failed} ({last_words})"
        if ended is None:
            if failed:
                ended = "failed"
            elif any(line.finished for line in lines):
                ended, said = "finished", ""
            elif absent is not None:
                ended, said = "absent", absent
            elif by_signal == "SIGKILL":
                ended = "memory"  # by the system: who else kills, has said so
            else:
                ended = "crashed"
        return Outcome(name, ended, self._stage, said, seconds, by_signal, told(lines))


def _too_much(pid: int, limits: Limits) -> bool:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return False
    if pages * os.sysconf("SC_PAGE_SIZE") > limits.resident_bytes:
        return True
    memory = machine_memory()
    return memory is not None and memory.available < limits.left_bytes


def _bury(process: subprocess.Popen[bytes]) -> bool:
    """Ends it and all that it has started; whether it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_BURIAL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _last_words(said: IO[bytes]) -> str:
    """The last line of what it printed that is none of a traceback's own."""
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - _LAST_WORDS))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not set(line) <= set("^~ ")), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
