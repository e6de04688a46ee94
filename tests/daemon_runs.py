"""``edge-runtime serve`` as a process, and a service manager that speaks systemd's protocols with it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from edge_runtime.client import Client, Status

ROOT = Path(__file__).parent.parent
PATIENCE_S = 120.0
"""Only what hangs for good takes that long."""

# The real command line, and an engine that stands still while the file of that name is a pipe (see ``Gate``). A test
# of an engine that hangs for good may shorten the daemon's patience with it.
_GATED = """
import os
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.server import daemon
daemon._ENGINE_PATIENCE_S = float(os.environ.get("TEST_PATIENCE_S", daemon._ENGINE_PATIENCE_S))
gate, forward = os.environ["TEST_GATE"], OrtEngine.forward
def gated(self, step):
    try:
        with open(gate, "rb", buffering=0) as pipe:
            with open(gate + ".reached", "wb", buffering=0) as reached:
                reached.write(b"x")
            pipe.read(1)
    except FileNotFoundError:
        pass
    return forward(self, step)
OrtEngine.forward = gated
from edge_runtime.cli import main
main()
"""


class Gate:
    """Between ``shut`` and ``open`` no engine of the process takes a step. For one turn."""

    def __init__(self, path: Path) -> None:
        self.path, self._reached = path, path.with_name(path.name + ".reached")
        # Both ends of both: neither side finds a pipe without the other.
        self._made = path.with_name(path.name + ".made")
        for pipe in (self._made, self._reached):
            os.mkfifo(pipe)
        self._pipes = [os.open(pipe, os.O_RDWR) for pipe in (self._made, self._reached)]
        self._opened = False

    def shut(self) -> None:
        os.link(self._made, self.path)

    def hold(self) -> None:
        self.shut()
        self.reached()

    def reached(self) -> None:
        """Returns once an engine stands before it."""
        assert select.select([self._pipes[1]], [], [], PATIENCE_S)[0], "no engine came to the gate"

    def open(self) -> None:
        self.path.unlink(missing_ok=True)
        if not self._opened:
            os.write(self._pipes[0], b"x" * 64)
            self._opened = True

    def close(self) -> None:
        self.open()
        for pipe in self._pipes:
            os.close(pipe)


class Running:
    """A daemon, and what it has told its manager and its log."""

    def __init__(self, process: subprocess.Popen[bytes], socket_path: Path, notify: socket.socket, log: Path) -> None:
        self.process, self.socket_path, self._notify, self._log = process, socket_path, notify, log
        self.told: list[dict[str, str]] = []
        """Every datagram so far."""

    def client(self, **options: Any) -> Client:
        return Client(self.socket_path, **options)

    def next_told(self, patience_s: float = PATIENCE_S) -> dict[str, str]:
        """Raises ``TimeoutError``."""
        self._notify.settimeout(patience_s)
        data = self._notify.recv(4096).decode()
        told = dict(line.split("=", 1) for line in data.split("\n"))
        self.told.append(told)
        return told

    def until(self, name: str, wanted: Callable[[str], bool] = lambda value: True) -> dict[str, str]:
        """The next datagram that assigns ``name``."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if self.process.poll() is not None and not self._waits():
                raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log()}")
            try:
                told = self.next_told(1.0)
            except TimeoutError:
                continue
            if name in told and wanted(told[name]):
                return told
        raise AssertionError(f"no {name} but {self.told}:\n{self.log()}")

    def silence_s(self, seconds: float) -> bool:
        """Whether, after what was on its way, nothing comes for so long."""
        for _ in range(100):
            try:
                self.next_told(seconds)
            except TimeoutError:
                return True
        return False

    def _waits(self) -> bool:
        self._notify.setblocking(False)
        try:
            self._notify.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def ready(self) -> None:
        self.until("READY")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """The exit code."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ends()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def log_lines(self, word: str) -> list[str]:
        return [line for line in self.log().splitlines() if word in line]


def settled(client: Client) -> Status:
    """Once nothing runs or waits. How soon a client that left is seen is the server's business."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        status = client.status()
        if status.requests.running == status.requests.waiting == 0:
            return status
        assert time.monotonic() < end_s, status


def write_config(path: Path, bundle: Path, **sections: Any) -> Path:
    """Small and quick; ``sections`` replace those of the same name."""
    config = {
        "bundle": str(bundle),
        "engine": {"sessions": 2, "context": 512, "threads": 1, "drafter": "none"},
        "server": {"socket": "api.sock"},
        **sections,
    }
    # In one step: a daemon may read it at any moment.
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(config), encoding="utf-8")
    new.rename(path)
    return path


@contextmanager
def daemon(
    tmp_path: Path,
    config: Path,
    *options: str,
    gate: Gate | None = None,
    passed: socket.socket | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Killed at the end, if it still lives. ``passed``: its file descriptor 3, as by a socket unit."""
    with ExitStack() as stack:
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify_path = tmp_path / f"notify-{time.monotonic_ns()}"
        notify.bind(str(notify_path))
        log_path = notify_path.with_suffix(".log")
        log = stack.enter_context(log_path.open("wb"))
        given = {**os.environ, "NOTIFY_SOCKET": str(notify_path), "PYTHONUNBUFFERED": "1", **(environment or {})}
        program = ["-m", "edge_runtime"] if gate is None else ["-c", _GATED]
        if gate is not None:
            given["TEST_GATE"] = str(gate.path)
        command = [sys.executable, *program, "serve", "--config", str(config), *options]
        more: dict[str, Any] = {}
        if passed is not None:
            # Only the process itself knows its number.
            command = ["/bin/sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=api exec "$@"', "sh", *command]
            number = passed.fileno()
            more = {"pass_fds": (3,), "preexec_fn": lambda: os.dup2(number, 3)}
        process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, env=given, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)
        )
        try:
            yield Running(process, tmp_path / "api.sock", notify, log_path)
        finally:
            process.kill()
