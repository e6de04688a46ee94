"""One client's connection: who it is, and how long it may take. Knows no endpoint.

A subclass of uvicorn's protocol, which reads no peer credentials and waits for ever for a slow request or a reader that
does not read. A connection whose client closed its side, even one half of it, is given up: on a Unix socket the two
look the same until something is written.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from ..config import ServerConfig
from .problems import Problem, Refusal

_CREDENTIALS = struct.Struct("3i")
_MOST_PIPELINED = 64 << 10
"""Bytes of later requests that may wait behind one that is being answered."""
_MOST_SMALL_CHUNKS, _SMALL_CHUNK = 4096, 64
_KEEP_ALIVE_S = 75
"""Idle. Longer than clients keep theirs (httpx: 5 s), so that none sends a request into a connection that closes."""
_QUOTED = re.compile(r":? (?:bytearray\()?b['\"].*", re.DOTALL)
"""What h11 quotes, as Python spells it. A header may hold a secret: none of it is said again."""
_SPARE_CONNECTIONS = 64
"""Above the limit, that are still told why they are refused."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    uid: int
    pid: int | None


ANONYMOUS = Peer(-1, None)
"""Everybody on TCP."""


def peer_of(scope: Any) -> Peer:
    peer = scope.get("state", {}).get("peer")
    return peer if isinstance(peer, Peer) else ANONYMOUS


def uvicorn_config(app: Any, server: ServerConfig, **settings: Any) -> uvicorn.Config:
    """How the daemon runs uvicorn. It opens and hands over the sockets itself."""
    return uvicorn.Config(
        app,
        http=connection_class(server),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        **{"timeout_keep_alive": _KEEP_ALIVE_S, **settings},
    )


def connection_class(server: ServerConfig) -> type[H11Protocol]:
    """``Connection`` with these limits, as uvicorn wants it: a class."""
    return type("Connection", (Connection,), {"limits": server})


class _Parser(h11.Connection):
    """h11 bounds only a head that is incomplete: one that comes whole in a read is counted here."""

    def __init__(self, most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._most = most
        self._parts = self._bytes = 0
        """Of the body so far: how often h11 handed some of it out, and how much."""

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._check_chunks(len(event.data))
            return event
        self._parts = self._bytes = 0
        before = len(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request):
            if before - len(self.trailing_data[0]) > self._most:
                raise h11.RemoteProtocolError("too large", error_status_hint=431)
            if not event.http_version.startswith(b"1."):
                version = event.http_version.decode("ascii")
                raise h11.RemoteProtocolError(f"HTTP/{version} is not spoken here, but 1.1", error_status_hint=505)
            _check_framing(event)
        return event


    def _check_chunks(self, size: int) -> None:
        """One read of the socket may hold forty thousand chunks of a byte, and nobody else is heard while they are
        read: a second and more. Raises ``h11.RemoteProtocolError``."""
        self._parts += 1
        self._bytes += size
        if self._parts > _MOST_SMALL_CHUNKS and self._bytes < self._parts * _SMALL_CHUNK:
            raise h11.RemoteProtocolError(f"more than {_MOST_SMALL_CHUNKS} chunks of less than {_SMALL_CHUNK} bytes")


def _check_framing(request: Any) -> None:
    """Where a body ends must have one answer. h11 believes one of two, and whoever stands between client and daemon may
    believe the other: what is a body to one is a request to the other. Raises ``h11.RemoteProtocolError``."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and b"content-length" in names:
        raise h11.RemoteProtocolError("Content-Length beside Transfer-Encoding")
    if b"transfer-encoding" in names and request.http_version == b"1.0":
        raise h11.RemoteProtocolError("Transfer-Encoding in HTTP/1.0")


class Connection(H11Protocol):
    limits = ServerConfig()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = _Parser(self.limits.max_header_bytes)
        self._refused = False
        """Whether all that is left is to let the client finish what it says."""
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        made: Any = _Transport(transport, self._close)
        super().connection_made(made)
        # A chunk that the kernel does not take is a reader that does not read: told at once, and nothing piles up.
        transport.set_write_buffer_limits(high=0)
        self.app_state = {**self.app_state, "peer": _peer(transport)}
        count = len(self.connections) - self.limits.max_connections
        if count > 0 and self._takes_a_place():
            count = 0
        if count > _SPARE_CONNECTIONS:
            transport.abort()
        elif count > 0:
            self.app = _full(self.limits.max_connections)
        self._watch_request()

    @property
    def _uid(self) -> int:
        peer: Peer = self.app_state["peer"]
        return peer.uid

    def _takes_a_place(self) -> bool:
        """Nobody locks others out by holding connections: of the user with most of them, if that is not this one, one
        on which nothing is answered gives way. Whether one did."""
        held = Counter(one._uid for one in self.connections if isinstance(one, Connection))
        (heaviest, most), *_ = held.most_common(1)
        if most <= held[self._uid]:
            return False
        for one in self.connections:
            if isinstance(one, Connection) and one._uid == heaviest and not one._answers:
                self.connections.discard(one)
                one.transport.abort()
                return True
        return False

    @property
    def _answers(self) -> bool:
        """Whether a request is here, all of it, and its answer is not sent."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.conn.their_state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            return  # Behind its last request a client has nothing to say.
        super().data_received(data)
        self._keep_reading()
        self._watch_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_request()

    def shutdown(self) -> None:
        if not self._refused:
            super().shutdown()
        if self._refused:
            self._hang_up()

    def send_400_response(self, msg: str) -> None:
        """Called while uvicorn handles h11's error, which knows the status better."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._hang_up()
            return
        problem = sys.exc_info()[1]
        status = problem.error_status_hint if isinstance(problem, h11.RemoteProtocolError) else 400
        if status == 431:
            text = f"the headers have more than {self.limits.max_header_bytes} bytes"
        else:
            text = f"no valid HTTP request: {_QUOTED.sub('', str(problem))}" if problem is not None else msg
        self._refuse(Refusal(status, "bad_http_request", text))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_request(self) -> None:
        """From its first byte to its last a request has ``read_timeout_s``; so has the first one to begin."""
        if self._refused:
            return
        state, cycle = self.conn.their_state, self.cycle
        arriving = state is h11.SEND_BODY
        if state is h11.IDLE:
            arriving = cycle is None or bool(self.conn.trailing_data[0])
        if self.transport.is_closing() or not arriving:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None
        elif self._read_timer is None:
            self._read_timer = self.loop.call_later(self.limits.read_timeout_s, self._too_slow)
        if state is h11.IDLE and not arriving and cycle.response_complete and self.timeout_keep_alive_task is None:
            # A body that was refused and then thrown away ends without uvicorn's own timer.
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _keep_reading(self) -> None:
        """uvicorn stops reading while a later request waits, and then nobody would see the client leave."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or not self.flow.read_paused:
            return
        if len(self.conn.trailing_data[0]) > _MOST_PIPELINED:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _too_slow(self) -> None:
        self._read_timer = None
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            text = f"no whole request within {self.limits.read_timeout_s:g} s"
            self._refuse(Refusal(408, "request_timeout", text))
        else:
            self.transport.abort()

    def _await_reader(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.limits.write_timeout_s, self._unread, size)

    def _unread(self, size: int) -> None:
        if self.transport.get_write_buffer_size() < size:
            self._await_reader()
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Past h11, whose state may be an error: nothing else is sent on this connection."""
        self.transport.write(_response(refusal))
        late = refusal.http_status == 408
        if late or (self.cycle is not None and not self.cycle.response_complete):
            self._hang_up()
        else:
            self._linger()

    def _close(self) -> None:
        """As uvicorn asks for behind the last answer, perhaps before its request was read to the end."""
        if self.conn.their_state is h11.SEND_BODY and not self._refused:
            self._linger()
        elif not self._refused:
            self._hang_up()

    def _hang_up(self) -> None:
        made: Any = self.transport
        made.hang_up()

    def _linger(self) -> None:
        """Closed with bytes unread, a socket fails the client that still sends, before it has read its answer."""
        self._refused = True
        self.flow.resume_reading()
        made: Any = self.transport
        made.leaving = True
        self._unset_keepalive_if_required()
        self._unset_timers()
        self.transport.write_eof()
        self._read_timer = self.loop.call_later(self.limits.read_timeout_s, self.transport.abort)

    def _unset_timers(self) -> None:
        for timer in (self._read_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._read_timer = self._write_timer = None


class _Transport:
    """asyncio's, but that its protocol decides how it is closed."""

    def __init__(self, made: asyncio.Transport, close: Callable[[], None]) -> None:
        self._made, self._close = made, close
        self.leaving = False
        """Whether nothing more is sent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def is_closing(self) -> bool:
        return self.leaving or self._made.is_closing()

    def close(self) -> None:
        self._close()

    def hang_up(self) -> None:
        self._made.close()


def _peer(transport: asyncio.Transport) -> Peer:
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return ANONYMOUS
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(uid, pid)


def _response(refusal: Refusal) -> bytes:
    problem = Problem.of(refusal)
    head = [
        b"HTTP/1.1 %d %s" % (problem.status, STATUS_PHRASES[problem.status]),
        b"content-type: application/json",
        b"content-length: %d" % len(problem.body),
        b"connection: close",
    ]
    return b"\r\n".join([*head, b"", problem.body])


def _full(most: int) -> Any:
    """An app that refuses, and lets the connection go."""
    body = msgspec.json.encode(
        {
            "error": {
                "message": f"more than {most} connections",
                "type": "unavailable_error",
                "param": None,
                "code": "too_many_connections",
            }
        }
    )
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
