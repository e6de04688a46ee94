"""Starts peers in processes of their own, each under its own Python, and talks to them. Knows no figure.

A peer that fails, hangs, ends or talks nonsense is an ``EngineError`` of one line, in time.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from ..errors import EngineError

OURS = "ours"
ROOT = Path(__file__).resolve().parents[2]
"""Where this package is imported from."""
PROGRAMS = Path(__file__).parent / "peers"
PATIENCE_S = 600.0
"""For one answer, the loading among them, unless somebody says otherwise."""
_LONGEST_LINE = 1 << 24


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told at its start."""

    do: Literal["serve", "prepare"]
    program: str
    """A file; of ours, a module."""
    source: str
    threads: int
    context: int
    mode: str = "plain"
    root: str | None = None
    """To import ours from."""
    place: str | None = None
    """What ``prepare`` makes."""
    directory: str | None = None
    """Where it may leave the checkpoint as a Hugging Face directory, for others too; the major release of transformers
    is added to the name."""
    assistant: str | None = None


def order_for_ours(module: str, source: Path, threads: int, context: int, mode: str = "plain") -> Order:
    """A program of this package, which runs under this Python."""
    return Order("serve", f"{__package__}.peers.{module}", str(source), threads, context, mode, root=str(ROOT))


class PeerProcess:
    """A peer that answers one request at a time; a context manager."""

    def __init__(self, name: str, order: Order, python: Path | None = None, patience_s: float = PATIENCE_S) -> None:
        """``python`` ``None``: this one. Raises ``EngineError``, also where it cannot be started."""
        self.name, self._patience_s, self._open = name, patience_s, b""
        # A file: a pipe that nobody reads fills up, and a chatty peer would wait for ever.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        read_fd, write_fd = os.pipe()
        self._answers = os.fdopen(read_fd, "rb", buffering=0)
        try:
            self._process = self._start(str(python or sys.executable), order, write_fd)
        except OSError as problem:
            self._answers.close()
            self._said.close()
            raise EngineError(f"bench: {name}: {python} cannot be started: {problem.strerror}") from None
        finally:
            os.close(write_fd)
        try:
            self.greeting = self._answer()
        except BaseException:
            self.close()
            raise

    def _start(self, python: str, order: Order, write_fd: int) -> subprocess.Popen[bytes]:
        quiet = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
        # What is set for this Python is not meant for another one.
        inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        return subprocess.Popen(
            [python, str(PROGRAMS / "worker.py"), json.dumps(msgspec.to_builtins(order)), str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            pass_fds=(write_fd,),
            env=inherited | quiet | {"OMP_NUM_THREADS": str(order.threads)},
            start_new_session=True,  # what it starts itself ends with it
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        self._said.close()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def ask(self, what: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        # A peer that is gone leaves a broken pipe here; what it said last is read below.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": what, **given}).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer()

    def number(self, what: str, **given: Any) -> float:
        """An answer that must be one above zero."""
        return positive(self.name, what, self.ask(what, **given))

    def _answer(self) -> Any:
        line = self._line()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, Mapping) and isinstance(answer.get("error"), str):
            raise EngineError(f"bench: {self.name}: {' '.join(answer['error'].split())}")
        if not isinstance(answer, Mapping) or "ok" not in answer:
            raise EngineError(f"bench: {self.name} answers nonsense: {line[:80].decode(errors='replace').strip()!r}")
        return answer["ok"]

    def _line(self) -> bytes:
        end_s = time.monotonic() + self._patience_s
        while b"\n" not in self._open:
            left_s = end_s - time.monotonic()
            if left_s <= 0.0 or not select.select([self._answers], [], [], left_s)[0]:
                raise EngineError(f"bench: {self.name} gave no answer within {self._patience_s:g} s")
            data = self._answers.read(1 << 16)
            if not data:
                raise EngineError(f"bench: {self.name} ended: {self._last_words()}")
            self._open += data
            if len(self._open) > _LONGEST_LINE:
                raise EngineError(f"bench: {self.name} answers nonsense: a line without an end")
        line, _, self._open = self._open.partition(b"\n")
        return line

    def _last_words(self) -> str:
        try:
            ended = self._process.wait(5.0)
        except subprocess.TimeoutExpired:  # it closed the pipe and lives on
            return "it closed its answers"
        self._said.seek(0)
        said = [text.strip() for text in self._said.read().decode(errors="replace").splitlines() if text.strip()]
        return said[-1] if said else f"without a word ({ended})"


def positive(name: str, what: str, value: Any) -> float:
    """A finite number above zero. Raises ``EngineError``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < float("inf"):
        raise EngineError(f"bench: {name} answers nonsense: {what} of {str(value)[:80]!r}")
    return float(value)
