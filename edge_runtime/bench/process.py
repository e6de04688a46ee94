"""Starts peers in processes of their own and talks to them. Knows no figure."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import EngineError


class PeerProcess:
    """A peer that answers one request at a time; a context manager."""

    def __init__(self, kind: str, source: Path, threads: int, context: int) -> None:
        self.kind = kind
        # A file: a pipe that nobody reads fills up, and a chatty peer would wait for ever.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", "edge_runtime.bench.worker", kind, str(source), str(threads), str(context)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [*command, str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            pass_fds=(write_fd,),
            env=environment,
            text=True,
        )
        os.close(write_fd)
        self._answers = os.fdopen(read_fd, encoding="utf-8")
        try:
            self.load_s = float(self._answer()["load_s"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        self._said.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def ask(self, what: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        # A peer that is gone leaves a broken pipe here; what it said last is read below.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": what, **given}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._said.seek(0)
        said = [text for text in self._said.read().decode(errors="replace").splitlines() if text.strip()]
        raise EngineError(f"bench: {self.kind} ended: {said[-1] if said else 'without a word'}")
