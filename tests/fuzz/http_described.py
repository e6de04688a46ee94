"""schemathesis against a daemon, from the description that it serves, with all of its checks. Knows no engine.

schemathesis speaks TCP, the daemon a Unix socket: a relay between the two passes bytes on.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from http_daemon import attacked  # noqa: E402 - the tests' helpers are no package

SETTINGS = """
[checks]
# What no JSON schema can say is refused with 400: fields that need each other, a prompt beyond the context, a grammar
# that cannot be compiled. Which words those are is counted below.
positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "404", "499", "504"]
# A deadline that a request sets itself may pass; what other 5xx there is, is a finding.
not_a_server_error.expected-statuses = ["2xx", "4xx", "504"]
# null is a default everywhere, so that a body with one is right.
negative_data_rejection.expected-statuses = ["400", "403", "404", "405", "413", "415", "431", "501", "505"]
"""


@contextmanager
def relay(path: str) -> Iterator[int]:
    """A port of TCP that leads to a Unix socket."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listening.accept()
                    far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    far.connect(path)
                    for one, other in ((near, far), (far, near)):
                        threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def described(seconds: int, seed: int) -> Iterator[str]:
    """Lines of a report. Raises ``AssertionError`` where schemathesis found something."""
    with attacked() as one, relay(one.run.path) as port, tempfile.TemporaryDirectory() as place:
        settings, told = Path(place) / "settings.toml", Path(place) / "told.ndjson"
        settings.write_text(SETTINGS, encoding="utf-8")
        # As a file: of a description that it fetches, schemathesis leaves out the path that it was fetched from.
        description = Path(place) / "openapi.json"
        description.write_text(json.dumps(one.run.ask("GET", "/openapi.json")[2]), encoding="utf-8")
        one.serves()
        before = one.taken()
        command = [_program(), "--config-file", str(settings), "run"]
        command += [str(description), "--url", f"http://127.0.0.1:{port}", "--checks", "all", "--mode", "all"]
        command += ["--seed", str(seed)]
        command += ["--max-time", str(seconds), "--continue-on-failure", "--workers", "2"]
        command += ["--request-timeout", "600", "--max-response-time", "600"]
        command += ["--suppress-health-check", "all", "--warnings", "off", "--no-color"]
        command += ["--report", "ndjson", "--report-ndjson-path", str(told)]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        one.serves()
        one.idle()
        after = one.taken()
        yield process.stdout
        statuses = _statuses(told)
        yield f"{sum(statuses.values())} requests: " + ", ".join(f"{key}: {n}" for key, n in sorted(statuses.items()))
        memory = f"{before.rss_mb:.0f} -> {after.rss_mb:.0f} MB, peak {after.peak_mb:.0f}"
        yield f"memory {memory}; files {before.files} -> {after.files}"
        assert "Traceback" not in one.said(), one.said()[-4000:]
        assert process.returncode == 0, f"schemathesis found something: {process.returncode}"


def _program() -> str:
    """Of this environment, or of the path: it may have one of its own. Raises ``AssertionError``."""
    beside = Path(sys.executable).with_name("schemathesis")
    found = str(beside) if beside.exists() else shutil.which("schemathesis")
    assert found, "schemathesis is not installed: pip install '.[fuzz-http]'"
    return found


def _statuses(told: Path) -> Counter[str]:
    found: Counter[str] = Counter()

    def look(data: Any) -> None:
        if isinstance(data, dict):
            if isinstance(data.get("status_code"), int):
                found[str(data["status_code"])] += 1
            for value in data.values():
                look(value)
        elif isinstance(data, list):
            for value in data:
                look(value)

    with told.open(encoding="utf-8") as lines:
        for line in lines:
            look(json.loads(line))
    return found


if __name__ == "__main__":
    for line in described(int(60 * float(sys.argv[1])), int(sys.argv[2]) if len(sys.argv) > 2 else 0):
        print(line, flush=True)
