"""Whether the daemon could listen where its configuration says: asks the places of this machine, and judges them.

By the rules of ``server.sockets``, in whose way it does not get: nothing is made, and no port stays taken.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from ..config import ServerConfig, host_and_port
from .finding import Check

_SOCKET, _PORT = "socket", "TCP port"
_ELSEWHERE = "another place in server.socket"
_AT_BOOT = Path("/run")
"""What is below it is made anew at every boot, for a service by systemd."""


def listening_checks(server: ServerConfig) -> Iterator[Check]:
    """Of this process's user and machine, as they are now."""
    answers = _answers(Path(server.socket))
    yield Check(_SOCKET, "ok", f"a daemon answers at {server.socket}") if answers else _socket(Path(server.socket))
    if server.tcp is not None:
        yield _port(server.tcp, answers)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            # EAGAIN: it listens, and many wait.
            return probe.connect_ex(os.fspath(path)) in (0, errno.EAGAIN, errno.EINPROGRESS)
        except OSError:
            return False  # a path that is too long


def _socket(path: Path) -> Check:
    try:
        return _left_behind(path) or _directory(path.parent)
    except OSError as problem:
        return Check(_SOCKET, "problem", f"{path}: {problem.strerror}", _ELSEWHERE)


def _left_behind(path: Path) -> Check | None:
    """What stands where the socket is to be."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        text = f"{path} is there already and is not a socket: the daemon does not take its place"
        return Check(_SOCKET, "problem", text, f"mv {shlex.quote(str(path))} ELSEWHERE, or {_ELSEWHERE}")
    if found.st_uid != os.geteuid():
        text = f"{path} belongs to {_user(found.st_uid)}: a daemon of {_user(os.geteuid())} does not take its place"
        return Check(_SOCKET, "advice", text, f"start it as {_user(found.st_uid)}, or {_ELSEWHERE}")
    return None


def _directory(parent: Path) -> Check:
    quoted, me = shlex.quote(str(parent)), _user(os.geteuid())
    if not parent.exists():
        return _to_be_made(parent, quoted, me)
    if not parent.is_dir():
        return Check(_SOCKET, "problem", f"{parent} is no directory", _ELSEWHERE)
    found = parent.stat()
    sticky = bool(found.st_mode & stat.S_ISVTX)  # as /tmp: nobody takes away what is another's
    if not sticky and found.st_mode & stat.S_IWOTH:
        return Check(_SOCKET, "problem", f"{parent} can be written by everybody: who connects could be deceived there",
                     f"chmod o-w {quoted}, or {_ELSEWHERE}")  # fmt: skip
    if not sticky and found.st_uid not in (0, os.geteuid()):
        owner = _user(found.st_uid)
        text = f"{parent} belongs to {owner}: a daemon of {owner} listens there, and one of {me} does not"
        return Check(_SOCKET, "advice", text, f"start it as {owner}, or {_ELSEWHERE}")
    if not os.access(parent, os.W_OK | os.X_OK):
        text = f"{me} may not write in {parent}"
        return Check(_SOCKET, "problem", text, f"sudo chown {shlex.quote(me)} {quoted}, or {_ELSEWHERE}")
    return Check(_SOCKET, "ok", f"{parent} can be written")


def _to_be_made(parent: Path, quoted: str, me: str) -> Check:
    above = parent.parent
    if not above.is_dir():
        text = f"there is no {above}, and the daemon makes {parent.name} alone"
        return Check(_SOCKET, "problem", text, f"mkdir -p {quoted}, or {_ELSEWHERE}")
    if os.access(above, os.W_OK | os.X_OK):
        return Check(_SOCKET, "ok", f"{parent} will be made")
    if above == _AT_BOOT:
        text = f"{me} may not make {parent}; for the service systemd makes it"
        return Check(_SOCKET, "advice", text, f"edge-runtime install-service, or {_ELSEWHERE}")
    made = f"sudo install -d -o {shlex.quote(me)} {quoted}"
    return Check(_SOCKET, "problem", f"{me} may not make {parent}", f"{made}, or {_ELSEWHERE}")


def _port(address: str, answers: bool) -> Check:
    """``answers``: a daemon that runs may be the one that has it."""
    host, port = host_and_port(address, "config")
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as problem:
        return _not_had(address, port, problem, answers)
    return Check(_PORT, "ok", f"{address} is free")


def _not_had(address: str, port: int, problem: OSError, answers: bool) -> Check:
    another = "another HOST:PORT in server.tcp"
    if problem.errno == errno.EADDRINUSE:
        if answers:
            return Check(_PORT, "ok", f"{address} is taken, as it is by a daemon that runs")
        text = f"{address} is taken: the daemon does not start"
        return Check(_PORT, "problem", text, f"sudo ss -ltnp 'sport = :{port}' says by whom; or {another}")
    if problem.errno == errno.EADDRNOTAVAIL:
        return Check(_PORT, "problem", f"{address} is no address of this machine", f"ip addr shows them; {another}")
    if problem.errno == errno.EACCES:
        return Check(_PORT, "problem", f"{address}: ports below 1024 are root's", another)
    return Check(_PORT, "problem", f"{address}: {problem.strerror}", another)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
