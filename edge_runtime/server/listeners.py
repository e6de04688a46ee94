"""All that one daemon listens on. Knows what is configured and what is inherited, not how a socket is bound."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from ..config import ServerConfig
from .sockets import UnixListener, bind_tcp, inherited_sockets, open_inherited


class Listeners:
    """Sockets that systemd passed take the place of the configured path."""

    def __init__(self, server: ServerConfig, environment: MutableMapping[str, str]) -> None:
        """Raises ``ConfigError``; nothing is then left behind."""
        inherited = inherited_sockets(environment, os.getpid())
        self.sockets = [open_inherited(number, name, tcp=server.tcp is not None) for number, name in inherited.items()]
        self._inherited = len(self.sockets)
        self._own: UnixListener | None = None
        try:
            if not inherited:
                self._own = UnixListener(Path(server.socket), int(server.mode, 8), server.group)
                self.sockets.append(self._own.socket)
            if server.tcp is not None and all(one.family == socket.AF_UNIX for one in self.sockets):
                self.sockets.append(bind_tcp(server.tcp))
        except BaseException:
            self.close()
            raise

    def facts(self) -> Iterator[dict[str, object]]:
        """For the log."""
        for index, one in enumerate(self.sockets):
            address = one.getsockname()
            if one.family != socket.AF_UNIX:
                address = f"{address[0]}:{address[1]}"
            yield {"address": address, "inherited": "yes" if index < self._inherited else None}

    def close(self) -> None:
        """Paths that this process made are removed. Again is harmless."""
        for one in self.sockets:
            one.close()
        if self._own is not None:
            self._own.close()
            self._own = None
