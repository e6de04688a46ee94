"""A daemon over the fake engine, in a process of its own: whoever attacks it can see what it takes. Knows no attack.

Run as a program it serves: ``http_daemon.py SOCKET SERVER_CONFIG_AS_JSON``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

from server_runs import Running, chat  # noqa: E402 - the tests' helpers are no package

SLOTS, CONTEXT = 4, 4096
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Taken:
    rss_mb: float
    peak_mb: float
    files: int
    threads: int


@dataclass(frozen=True)
class Attacked:
    process: subprocess.Popen[bytes]
    run: Running
    log: Path

    def taken(self) -> Taken:
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        found = dict(line.split(":", 1) for line in lines)
        rss, peak = (int(found[name].split()[0]) / 1000 for name in ("VmRSS", "VmHWM"))
        return Taken(rss, peak, len(os.listdir(f"/proc/{self.process.pid}/fd")), int(found["Threads"]))

    def forget_peak(self) -> None:
        """The next peak is that of what comes."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def serves(self) -> float:
        """Seconds of a small chat. Raises ``AssertionError`` where the daemon is no more what it was."""
        assert self.process.poll() is None, f"the daemon died: {self.process.returncode}\n{self.said()[-4000:]}"
        begun_s = time.monotonic()
        status, _, body = self.run.ask("POST", "/v1/chat/completions", chat(max_tokens=4, seed=1))
        assert status == 200 and body["usage"]["completion_tokens"] > 0, (status, body)
        return time.monotonic() - begun_s

    def idle(self) -> None:
        """Returns once nobody is answered. Raises ``AssertionError``."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            told = self.run.ask("GET", "/v1/status")[2]["requests"]
            if told["running"] == told["waiting"] == 0:
                return
            assert time.monotonic() < end_s, told
            time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def attacked(**server: Any) -> Iterator[Attacked]:
    """``server``: fields of ``ServerConfig``."""
    with tempfile.TemporaryDirectory(prefix="edge-fuzz-") as place:
        path, log = str(Path(place) / "api.sock"), Path(place) / "log"
        command = [sys.executable, str(HERE / "http_daemon.py"), path, json.dumps(server)]
        with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
            try:
                _until_there(process, path, log)
                yield Attacked(process, Running(path, None), log)  # type: ignore[arg-type]
            finally:
                process.kill()


def _until_there(process: subprocess.Popen[bytes], path: str, log: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while True:
        assert process.poll() is None and time.monotonic() < end_s, log.read_text(encoding="utf-8")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(0.05)


def serve(path: str, server: dict[str, Any]) -> None:
    import threading

    from server_runs import listening, tiny_model

    from edge_runtime.config import Config, ServerConfig
    from edge_runtime.scheduler.request import Limits
    from edge_runtime.scheduler.scheduler import Scheduler
    from edge_runtime.server.service import Service, Standing

    place = Path(path).parent
    model = tiny_model(place, slots=SLOTS, capacity=CONTEXT)
    scheduler = Scheduler(model.served, Limits(queue=256, queue_per_client=256))
    scheduler.start()
    config = Config(bundle=str(place), server=ServerConfig(socket=path, **server))
    service = Service(config, Standing("ready", "", model, scheduler))
    with listening(service, path):
        threading.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.argv[1], json.loads(sys.argv[2]))
