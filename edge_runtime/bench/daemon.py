"""A daemon of one's own, in a process of its own, for the demo and for measurements. Knows no figure."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ..client import Client, EdgeRuntimeError
from ..errors import EngineError

_STOP_S = 30.0


@contextlib.contextmanager
def running_daemon(bundle: Path, *, engine: dict[str, Any] | None = None, ready_s: float = 120.0) -> Iterator[Path]:
    """Its socket. ``engine``: keys of the configuration's section. Raises ``EngineError`` with its last line."""
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
    with Client(socket) as client:
        try:
            client.wait_until_ready(ready_s)
        except EdgeRuntimeError as problem:
            process.kill()
            process.wait()
            said.seek(0)
            lines = said.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), str(problem))
            raise EngineError(f"the daemon did not start: {last}") from None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
