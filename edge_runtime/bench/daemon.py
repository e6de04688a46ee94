"""A daemon of one's own, in a process of its own, for the demo and for measurements. Knows no figure."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..client import Client, EdgeRuntimeError
from ..console import shown
from ..errors import EngineError

_STOP_S = 30.0
_LOOK_S = 0.1
"""Between two looks at a daemon that starts."""
_MOST_SAID = 1 << 20


@contextlib.contextmanager
def running_daemon(bundle: Path, *, engine: dict[str, Any] | None = None, ready_s: float = 120.0) -> Iterator[Path]:
    """Its socket. ``engine``: keys of the configuration's section. Raises ``EngineError`` with its last line, and says
    whether it ended, failed, or was not waited for any longer."""
    # Short: a socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        socket, config = Path(folder) / "api.sock", Path(folder) / "config.yaml"
        given = {"bundle": str(bundle.resolve()), "server": {"socket": str(socket)}, "engine": engine or {}}
        config.write_text(yaml.safe_dump(given), encoding="utf-8")
        command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config)]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            try:
                _wait(process, socket, ready_s, said)
                yield socket
            finally:
                _stop(process)


def _wait(process: subprocess.Popen[bytes], socket: Path, ready_s: float, said: Any) -> None:
    """Until it is ready, has ended, says that it failed, or ``ready_s`` are over: which of them is told apart."""
    until_s = time.monotonic() + ready_s
    with Client(socket, patience_s=0.0) as client:
        while True:
            # First: one that has ended by now has said all that it will.
            ended = process.poll() is not None
            try:
                health = client.health()
                if health.ready:
                    return
                failed = health.state == "failed"
            except EdgeRuntimeError:
                failed = False
            if ended or failed:
                raise EngineError(f"the daemon did not start: {_last_line(said)}")
            if time.monotonic() > until_s:
                raise EngineError(
                    f"the daemon was not ready within {ready_s:g} s, and this waits no longer; it last said: "
                    f"{_last_line(said)}"
                )
            time.sleep(_LOOK_S)


def _last_line(said: Any) -> str:
    """Of what it printed."""
    text = os.pread(said.fileno(), _MOST_SAID, 0).decode(errors="replace")
    lines = [shown(line) for line in text.split("\n") if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
