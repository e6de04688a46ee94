"""How many files a daemon may open, whatever started it."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import tiny_bundle as tiny
from daemon_runs import PATIENCE_S, daemon, write_config

CONNECTIONS = 120


def test_as_many_connections_as_are_allowed_however_few_files_a_shell_gives(tmp_path: Path) -> None:
    server = {"socket": "api.sock", "max_connections": CONNECTIONS}
    config = write_config(tmp_path / "daemon.yaml", tiny.bundle(), server=server)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        # The child inherits it; nothing here needs more meanwhile.
        resource.setrlimit(resource.RLIMIT_NOFILE, (CONNECTIONS - 20, hard))
        try:
            running = stack.enter_context(daemon(tmp_path, config))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        running.until("EXTEND_TIMEOUT_USEC")
        connections = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(CONNECTIONS)]
        for connection in connections:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(running.socket_path))
        for connection in reversed(connections):
            connection.sendall(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert "few open files" not in running.log() and "out of system resource" not in running.log()
