"""Samples of the jtop service, through a process of ours. Knows that process's lines; nothing of jtop itself.

One process is one connection. Whatever goes wrong there (no service, no right to its socket, another version, a service
that hangs or ends), the process says why and ends, or is ended where it says nothing; then another is started, after a
wait that grows with each failure. The sample that came last stays, with the time at which it was read.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from ..boards import Board
from .layout import is_of_the_chip, zone_name
from .plausible import possible
from .power import total_power
from .sample import Sample, Zone
from .sysfs import plausible_zone

Kind = Literal[
    "not-installed", "no-service", "no-access", "version", "frozen", "lost", "hung", "ended", "failed", "starting"
]
INTERVAL_S = 1.0
_INTERVALS = 4.0
"""Of the service, after which a process that says nothing hangs: it gives up a frozen service after three."""
_GOODBYE_S = 1.0
_MOST_BYTES = 1 << 18
"""Of one line: a process that sends no line end must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing comes from jtop, and what to do."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Pace:
    start_patience_s: float = 20.0
    """Until the first line of a process: Python starts slowly on a board under load."""
    patience_s: float = 10.0
    """Between two lines; the process itself gives up a frozen service earlier."""
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    """Before another process is started, after many that failed."""


@dataclass(frozen=True, slots=True)
class _Connected:
    version: str
    interval_s: float


@dataclass(frozen=True, slots=True)
class _Line:
    """One of the three."""

    connected: _Connected | None = None
    sample: Sample | None = None
    trouble: Trouble | None = None


def child_command(
    python: str = sys.executable, interval_s: float = INTERVAL_S, frozen_s: float = 3.0 * INTERVAL_S
) -> list[str]:
    """``python``: one that has jetson-stats. The service reads every ``interval_s``, unless another client came first,
    and counts as frozen when it reads nothing for ``frozen_s``.
    """
    # -I: what lies beside the program is not to be imported by it.
    return [python, "-I", str(Path(__file__).with_name("jtop_child.py")), f"{interval_s:g}", f"{frozen_s:g}"]


class JtopSource:
    name = "jtop"

    def __init__(self, command: Sequence[str], board: Board | None = None, pace: Pace = Pace()) -> None:
        """Starts the process. ``board``: as far as it is known, by which the rails make a total."""
        self._command = list(command)
        self._board = board
        self._pace = pace
        self._newest: Sample | None = None
        self._problem: Trouble | None = Trouble("starting", "jtop: nothing has come yet")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jtop", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        problem = self._problem
        return problem.text if problem is not None else None

    @property
    def problem(self) -> Trouble | None:
        """``trouble`` with its kind."""
        return self._problem

    def latest(self) -> Sample | None:
        return self._newest

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            if self._process is not None:
                _kill(self._process)
        self._thread.join()

    def _run(self) -> None:
        wait_s = self._pace.first_wait_s
        while not self._closing.is_set():
            before = self._newest
            self._problem = self._watch()
            if self._newest is not before:
                wait_s = self._pace.first_wait_s
            self._closing.wait(wait_s)
            wait_s = min(2.0 * wait_s, self._pace.longest_wait_s)

    def _watch(self) -> Trouble:
        """One process, from its start to its end."""
        with self._lock:
            if self._closing.is_set():
                return Trouble("ended", "jtop: closed")
            try:
                # stdin is a pipe that nobody writes to: the process ends with it, should this one be killed. The
                # session of its own keeps Ctrl-C away from it.
                self._process = process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as problem:
                return Trouble("failed", f"jtop: cannot start {self._command[0]}: {problem.strerror}")
        try:
            return self._listen(process)
        finally:
            _end(process)

    def _listen(self, process: subprocess.Popen[bytes]) -> Trouble:
        assert process.stdout is not None
        descriptor, rest, patience_s, interval_s = process.stdout.fileno(), b"", self._pace.start_patience_s, 0.0
        deadline_s = time.monotonic() + patience_s
        # Not select(2): a daemon with a thousand connections has descriptors that it cannot wait for.
        output = select.poll()
        output.register(descriptor, select.POLLIN)
        while True:
            if not output.poll(max(0.0, 1e3 * (deadline_s - time.monotonic()))):
                return Trouble("hung", f"jtop: nothing has come for {patience_s:g} s, so it is started anew")
            data = os.read(descriptor, 1 << 16)
            if not data:
                with suppress(subprocess.TimeoutExpired):  # it may have closed its output and live on
                    process.wait(_GOODBYE_S)
                code = process.returncode
                how = "closed its output" if code is None else f"ended with code {code}"
                return Trouble("ended", f"jtop: its reader {how}, without a word")
            *lines, rest = (rest + data).split(b"\n")
            for data in lines:
                line = _read(data)
                if line is None:
                    return Trouble("failed", "jtop: its reader sent what is no sample")
                if line.trouble is not None:
                    return line.trouble
                if line.connected is not None:
                    interval_s = line.connected.interval_s
                if line.sample is not None:
                    self._newest = cleaned(line.sample, self._board, time.monotonic())
                    self._problem = None
                # Another client may have told the service to read once a minute.
                patience_s = max(self._pace.patience_s, _INTERVALS * interval_s)
                deadline_s = time.monotonic() + patience_s
            if len(rest) > _MOST_BYTES:
                return Trouble("failed", "jtop: its reader sent what is no line")


def _read(data: bytes) -> _Line | None:
    try:
        return msgspec.json.decode(data, type=_Line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def cleaned(sample: Sample, board: Board | None, now_s: float) -> Sample:
    """With names as the other sources have them, a total that no vanished rail can make too small, and nothing that
    no chip can be."""
    problems = list(sample.problems)
    zones: list[Zone] = []
    for zone in sample.zones:
        name = zone_name(zone.name)
        if is_of_the_chip(name) and (kept := plausible_zone(name, zone.temperature_c, problems)) is not None:
            zones.append(kept)
    total = total_power(sample.rails, board)
    if total.problem is not None:
        problems.append(total.problem)
    # A machine in another time namespace than the service would see times to come.
    time_s = min(sample.time_s, now_s)
    told = replace(sample, time_s=time_s, power_mw=total.power_mw, zones=tuple(zones), problems=tuple(problems))
    return possible(told)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that it started: it has nothing to tidy up. Whoever listens to it finds the end of its output."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
