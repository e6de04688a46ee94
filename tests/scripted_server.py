"""An HTTP server on a Unix socket that does what a test tells it to, connection by connection."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_S = 60.0
"""Only what hangs for good takes that long."""


@dataclass
class Exchange:
    """One connection, as the script sees it."""

    connection: socket.socket
    buffer: bytes = b""

    def request(self) -> tuple[str, dict[str, Any] | None]:
        """("POST /path", body) of the next request on it."""
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        while len(self.buffer) < length:
            self._more()
        body, self.buffer = self.buffer[:length], self.buffer[length:]
        return lines[0].rsplit(" ", 1)[0], json.loads(body) if body else None

    def _more(self) -> None:
        data = self.connection.recv(65536)
        if not data:
            raise EOFError
        self.buffer += data

    def answer(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-length": str(len(data)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.send_head(status, given)
        self.send(data)

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.send("\r\n".join(lines).encode())

    def stream(self, *events: Any, done: bool = True, sizes: int = 1 << 20) -> None:
        """Server-sent events; ``sizes``: bytes of each chunk."""
        self.send_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        data = b"".join(b"data: " + json.dumps(one, ensure_ascii=False).encode() + b"\n\n" for one in events)
        data += b"data: [DONE]\n\n" if done else b""
        for first in range(0, len(data), sizes):
            self.chunk(data[first : first + sizes])
        if done:
            self.send(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def reset(self) -> None:
        """As a process that is killed."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def until_left(self) -> None:
        """Returns when the client has closed its side."""
        with suppress(OSError):
            while self.connection.recv(65536):
                pass


Script = Callable[[Exchange], None]


@dataclass
class Scripted:
    path: Path
    seen: int = 0
    """Connections so far on which something was asked."""
    problems: list[BaseException] = field(default_factory=list)


@contextmanager
def scripted_server(path: Path, scripts: Sequence[Script]) -> Iterator[Scripted]:
    """Connection by connection; the last script goes on for those that come after. At the end every script must have
    come to its end, too."""
    state = Scripted(path)
    with socket.socket(socket.AF_UNIX) as listening:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        listening.listen()
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                connection, _ = listening.accept()
                if stop.is_set():
                    connection.close()
                    return
                connection.settimeout(PATIENCE_S)
                if not connection.recv(1, socket.MSG_PEEK):
                    # Somebody looked whether anybody is there.
                    connection.close()
                    continue
                script = scripts[min(state.seen, len(scripts) - 1)]
                state.seen += 1
                with connection:
                    try:
                        script(Exchange(connection))
                    except EOFError:
                        pass
                    except BaseException as problem:  # noqa: BLE001 - told at the end
                        state.problems.append(problem)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield state
        finally:
            stop.set()
            with suppress(OSError), socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
            thread.join(PATIENCE_S)
            path.unlink(missing_ok=True)
    assert not thread.is_alive() and state.problems == []
