"""What the daemon tells a service manager: sd_notify(3) and the watchdog. Knows no scheduler, needs no library.

systemd's manual asks for such a client of one's own rather than for a dependency; the protocol is stable.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

_PATIENCE_S = 1.0
"""A manager that does not read must not hold the daemon for longer, and only for what is said once."""


class Notifier:
    """Says nothing where nobody listens."""

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        self._address: str | bytes = b""
        if not address or address[0] not in "/@":
            # Also vsock:..., which is for virtual machines.
            return
        # @ stands for the null character of an abstract address.
        self._address = b"\0" + address[1:].encode("utf-8", "surrogateescape") if address[0] == "@" else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Takes the variable out: what a child says is not ours to answer for."""
        return cls(environment.pop("NOTIFY_SOCKET", None))

    def ready(self, status: str) -> None:
        self._send("READY=1", _status(status), patience_s=_PATIENCE_S)

    def status(self, text: str) -> None:
        self._send(_status(text))

    def reloading(self) -> None:
        """To be followed by ``ready``."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", patience_s=_PATIENCE_S)

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", _status(status), patience_s=_PATIENCE_S)

    def alive(self) -> None:
        """The watchdog's food."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Starting, or stopping, may take so much longer from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *assignments: str, patience_s: float = 0.0) -> None:
        """What will be said again may be lost."""
        if self._socket is None:
            return
        self._socket.settimeout(patience_s)
        # A manager that went away is no reason to stop serving.
        with suppress(OSError):
            self._socket.sendto("\n".join(assignments).encode("utf-8", "replace"), self._address)


def watchdog_period_s(environment: Mapping[str, str], pid: int) -> float | None:
    """How long the manager goes without a sign of life; ``None`` where it does not watch this process."""
    microseconds, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(pid))
    if owner != str(pid) or not (microseconds.isascii() and microseconds.isdecimal() and int(microseconds)):
        return None
    return int(microseconds) / 1e6


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())}"
