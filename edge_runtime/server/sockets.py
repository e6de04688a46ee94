"""Where the daemon listens: a Unix socket bound safely, sockets inherited from systemd, TCP where it is configured.
Knows no HTTP.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import shlex
import socket
import stat
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..config import host_and_port
from ..errors import ConfigError

_FIRST_INHERITED = 3
_BACKLOG = 1024


class UnixListener:
    """A listening Unix socket that this process made. ``close`` removes it, unless another has taken its place."""

    def __init__(self, path: Path, mode: int, group: str | None) -> None:
        """Raises ``ConfigError`` where the place is not ours to take."""
        self.path = path
        gid = _gid(group)
        try:
            _make_parent(path.parent, gid)
            with _alone_in(path.parent):
                _clear(path)
                self.socket = _bound(path, mode, gid)
                self._identity = _identity(path)
        except OSError as problem:
            raise ConfigError(f"socket {path}: {problem.strerror or problem}") from None

    def close(self) -> None:
        self.socket.close()
        with suppress(OSError, ConfigError), _alone_in(self.path.parent):
            # Numbers of files are used again: what bears ours and is answered by somebody is not ours.
            if _identity(self.path) == self._identity:
                _clear(self.path)


def inherited_sockets(environment: MutableMapping[str, str], pid: int) -> dict[int, str]:
    """File descriptors that systemd passed, and their names (sd_listen_fds). Takes the variables out of
    ``environment``: no child is to believe that they are meant for it. Raises ``ConfigError``.
    """
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if not given["LISTEN_FDS"] or given["LISTEN_PID"] != str(pid):
        return {}
    count = given["LISTEN_FDS"]
    if not (count.isascii() and count.isdecimal() and int(count) < 1024):
        raise ConfigError(f"LISTEN_FDS must be a number, not {count!r}")
    names = given["LISTEN_FDNAMES"].split(":") if given["LISTEN_FDNAMES"] else []
    names += ["unknown"] * (int(count) - len(names))
    descriptors = range(_FIRST_INHERITED, _FIRST_INHERITED + int(count))
    for descriptor in descriptors:
        with suppress(OSError):
            os.set_inheritable(descriptor, False)
    return dict(zip(descriptors, names, strict=False))


def open_inherited(descriptor: int, name: str, *, tcp: bool) -> socket.socket:
    """A listening stream socket, made so elsewhere. Raises ``ConfigError`` for anything else, and for one of TCP
    unless ``tcp`` is configured."""
    where = f"inherited file descriptor {descriptor} ({name})"
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{where} is not a socket")
        opened = socket.socket(fileno=descriptor)
        if opened.type != socket.SOCK_STREAM or not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            opened.detach()
            raise ConfigError(f"{where} is not a listening stream socket")
    except OSError as problem:
        raise ConfigError(f"{where}: {problem.strerror}") from None
    if opened.family != socket.AF_UNIX and not tcp:
        opened.detach()
        raise ConfigError(f"{where} is a TCP socket, and server.tcp is not configured")
    opened.setblocking(False)
    return opened


def bind_tcp(address: str) -> socket.socket:
    """Raises ``ConfigError``."""
    host, port = host_and_port(address, "config")
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as problem:
        raise ConfigError(f"server.tcp {address}: {problem.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as problem:
        bound.close()
        raise ConfigError(f"server.tcp {address}: {problem.strerror}") from None
    return bound


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        fix = f"sudo groupadd --system {shlex.quote(group)}, or name another in server.group"
        raise ConfigError(f"server.group: no group {group!r} on this machine: {fix}") from None


def _make_parent(parent: Path, gid: int | None) -> None:
    if not parent.exists():
        # One directory and no more: what is missing above it was misspelt.
        if not parent.parent.is_dir():
            raise ConfigError(f"socket directory {parent}: there is no {parent.parent}")
        with suppress(FileExistsError):
            parent.mkdir(mode=0o700)
            if gid is not None:
                os.chown(parent, -1, gid)
            parent.chmod(0o750)
    found = parent.stat()
    if found.st_mode & stat.S_ISVTX:
        return  # As /tmp: nobody takes away what is another's.
    # Whoever may write there could put another socket in the place of ours, and read what clients send.
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"socket directory {parent} belongs to another user, {_user(found.st_uid)}")
    if found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"socket directory {parent} can be written by everybody")


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Of two daemons that start at once, one finds the other's socket complete."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Remove what a daemon that is no more left behind, and nothing else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"socket {path}: there is something that is not a socket")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"socket {path} belongs to another user, {_user(found.st_uid)}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        problem = probe.connect_ex(os.fspath(path))
    # EAGAIN: it listens, and many wait.
    if problem in (0, errno.EAGAIN, errno.EINPROGRESS):
        raise ConfigError(f"another daemon answers at {path}")
    if problem not in (errno.ECONNREFUSED, errno.ENOENT):
        raise ConfigError(f"socket {path} is not ours: {os.strerror(problem)}")
    path.unlink(missing_ok=True)


def _bound(path: Path, mode: int, gid: int | None) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(os.fspath(path))
        try:
            if gid is not None:
                os.chown(path, -1, gid)
            path.chmod(mode)
            # Only now: until a socket listens, nobody can connect to it, whatever mode it had.
            bound.listen(_BACKLOG)
            bound.setblocking(False)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    except OSError:
        bound.close()
        raise
    return bound


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
