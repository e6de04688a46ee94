"""Where the daemon listens: whose place it takes and whose it does not, and what it inherits."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_runtime.config import ServerConfig
from edge_runtime.errors import ConfigError
from edge_runtime.server.listeners import Listeners
from edge_runtime.server.sockets import UnixListener, bind_tcp, inherited_sockets, open_inherited

ROOT = os.geteuid() == 0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Short enough for a socket, wherever pytest works."""
    return tmp_path / "run" / "api.sock"


def listener(path: Path, mode: int = 0o660, group: str | None = None) -> UnixListener:
    return UnixListener(path, mode, group)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def left_behind(path: Path) -> None:
    """As by a daemon that was killed."""
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def test_directories_that_were_misspelt_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no {tmp_path}/nope/x$"):
        listener(tmp_path / "nope" / "x" / "y" / "api.sock")
    with pytest.raises(ConfigError, match=f"there is no {tmp_path}/nope$"):
        listener(tmp_path / "nope" / "x" / "api.sock")
    assert not any(tmp_path.iterdir())


def test_a_socket_in_a_directory_of_its_own(place: Path) -> None:
    before = os.umask(0o077)
    try:
        ours = listener(place)
    finally:
        os.umask(before)
    assert answers(place) and (bits(place), bits(place.parent)) == (0o660, 0o750)
    assert not os.get_inheritable(ours.socket.fileno())
    ours.close()
    assert not place.exists()
    ours.close()


def test_nobody_connects_before_mode_and_group_are_set(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    chmod, chown = os.chmod, os.chown
    group = __import__("grp").getgrgid(os.getegid()).gr_name

    def watched_chmod(path: object, mode: int, **more: object) -> None:
        if str(path) == str(place):
            seen.append(("mode", answers(place)))
        chmod(path, mode, **more)  # type: ignore[arg-type]

    def watched_chown(path: object, uid: int, gid: int) -> None:
        if str(path) == str(place):
            seen.append(("group", answers(place)))
        chown(path, uid, gid)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chmod", watched_chmod)
    monkeypatch.setattr(os, "chown", watched_chown)
    ours = listener(place, 0o600, group)
    assert seen == [("group", False), ("mode", False)] and answers(place) and bits(place) == 0o600
    ours.close()


@pytest.mark.skipif(not ROOT, reason="only root may give a file another group")
def test_the_group_of_socket_and_directory(place: Path) -> None:
    ours = listener(place, group="daemon")
    gid = __import__("grp").getgrnam("daemon").gr_gid
    assert (place.stat().st_gid, place.parent.stat().st_gid) == (gid, gid)
    ours.close()


def test_a_socket_that_nobody_answers_is_replaced(place: Path) -> None:
    left_behind(place)
    assert place.exists() and not answers(place)
    ours = listener(place)
    assert answers(place)
    ours.close()


def test_a_daemon_that_lives_is_left_alone(place: Path) -> None:
    first = listener(place)
    with pytest.raises(ConfigError, match=rf"^another daemon answers at {place}$"):
        listener(place)
    assert answers(place)
    first.close()


def test_a_daemon_with_a_full_backlog_lives(place: Path) -> None:
    first = listener(place)
    first.socket.listen(0)
    waiting = []
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.setblocking(False)
        waiting.append(one)
        if one.connect_ex(str(place)):
            break
    with pytest.raises(ConfigError, match="another daemon answers"):
        listener(place)
    for one in waiting:
        one.close()
    first.close()


def test_of_many_that_start_at_once_one_wins(place: Path) -> None:
    left_behind(place)
    won: list[UnixListener] = []
    lost: list[str] = []
    start = threading.Barrier(8)

    def run() -> None:
        start.wait()
        try:
            won.append(listener(place))
        except ConfigError as problem:
            lost.append(str(problem))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and lost == [f"another daemon answers at {place}"] * 7
    assert answers(place)
    won[0].close()
    assert not place.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "datagram"])
def test_what_is_no_socket_of_ours_stays(place: Path, kind: str) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        if kind == "file":
            place.write_text("precious")
        elif kind == "directory":
            place.mkdir()
        elif kind == "link":
            left_behind(place.with_name("elsewhere"))
            place.symlink_to("elsewhere")
        else:
            other.bind(str(place))
        with pytest.raises(ConfigError, match=r"not a socket|not ours"):
            listener(place)
        assert place.is_symlink() or place.exists()


@pytest.mark.skipif(not ROOT, reason="only root can give a socket to another user")
def test_a_socket_of_another_user_is_refused(place: Path) -> None:
    left_behind(place)
    os.chown(place, 1, -1)
    with pytest.raises(ConfigError, match=r"belongs to another user, \w+"):
        listener(place)
    os.chown(place, 54321, -1)
    with pytest.raises(ConfigError, match="uid 54321"):
        listener(place)
    assert place.exists()


@pytest.mark.skipif(not ROOT, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_refused(place: Path) -> None:
    place.parent.mkdir()
    os.chown(place.parent, 54321, -1)
    with pytest.raises(ConfigError, match="belongs to another user, uid 54321"):
        listener(place)
    place.parent.chmod(0o1777)
    listener(place).close()


def test_a_directory_that_everybody_writes_is_refused(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="written by everybody"):
        listener(place)
    # As /tmp is: there, nobody can take away what is another's.
    place.parent.chmod(0o1777)
    listener(place).close()


def test_only_what_is_still_ours_is_removed(place: Path) -> None:
    first = listener(place)
    place.unlink()
    first.close()
    second = listener(place)
    place.unlink()
    third = listener(place)
    second.close()
    assert answers(place)
    place.unlink()
    place.write_text("a file by now")
    third.close()
    assert place.read_text() == "a file by now"


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, words in ((tmp_path / "file" / "api.sock", "Not a directory"), (tmp_path / ("x" * 200), "too long")):
        with pytest.raises(ConfigError, match=words):
            listener(path)
    with pytest.raises(ConfigError, match="no group 'nosuchgroup'"):
        listener(tmp_path / "api.sock", group="nosuchgroup")
    assert not (tmp_path / "api.sock").exists()


# --- inherited ------------------------------------------------------------------------------------


def test_descriptors_are_for_the_process_that_they_name() -> None:
    given = {"LISTEN_PID": "42", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:other", "HOME": "/"}
    assert inherited_sockets({**given}, 41) == {}
    left = dict(given)
    assert inherited_sockets(left, 42) == {3: "api", 4: "other"}
    assert left == {"HOME": "/"}  # no child takes them for its own
    assert inherited_sockets({"LISTEN_PID": "42", "LISTEN_FDS": "2"}, 42) == {3: "unknown", 4: "unknown"}
    assert inherited_sockets({}, 42) == {}
    assert inherited_sockets({"LISTEN_PID": "42", "LISTEN_FDS": "0"}, 42) == {}
    for count in ("two", "-1", "1e3", "99999", "²"):
        with pytest.raises(ConfigError, match="LISTEN_FDS"):
            inherited_sockets({"LISTEN_PID": "42", "LISTEN_FDS": count}, 42)


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    opened: list[int] = []
    yield opened
    for one in opened:
        os.close(one)


def test_only_listening_stream_sockets_are_taken(place: Path, descriptors: list[int]) -> None:
    def passed(one: socket.socket) -> int:
        descriptors.append(one.detach())
        return descriptors[-1]

    with pytest.raises(ConfigError, match=r"\(x\) is not a listening"):
        open_inherited(passed(socket.socket(socket.AF_UNIX)), "x", tcp=False)
    with pytest.raises(ConfigError, match="not a listening"):
        open_inherited(passed(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)), "x", tcp=False)
    reader, writer = os.pipe()
    descriptors += [reader, writer]
    with pytest.raises(ConfigError, match="not a socket"):
        open_inherited(reader, "x", tcp=False)
    with pytest.raises(ConfigError, match="Bad file descriptor"):
        open_inherited(987, "x", tcp=False)
    tcp = passed(bind_tcp("127.0.0.1:0"))
    with pytest.raises(ConfigError, match=r"server\.tcp is not configured"):
        open_inherited(tcp, "x", tcp=False)
    opened = open_inherited(tcp, "x", tcp=True)
    assert opened.family == socket.AF_INET
    opened.detach()
    place.parent.mkdir()
    ours = listener(place)
    opened = open_inherited(ours.socket.fileno(), "api", tcp=False)
    assert opened.getsockname() == str(place)
    opened.detach()
    ours.close()


_INHERITS = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from edge_runtime.config import ServerConfig
from edge_runtime.server.listeners import Listeners
listeners = Listeners(ServerConfig(socket="/nowhere/at/all"), os.environ)
print([facts for facts in listeners.facts()], os.get_inheritable(3), sorted(os.environ.keys() & {"LISTEN_FDS"}))
listeners.close()
"""


def test_inherited_sockets_take_the_place_of_the_path_and_stay(place: Path) -> None:
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place))
        bound.listen()

        def pass_on() -> None:
            os.dup2(bound.fileno(), 3)

        done = subprocess.run(
            [sys.executable, "-c", _INHERITS],
            env={**os.environ, "LISTEN_FDS": "1"},
            pass_fds=(3,),
            preexec_fn=pass_on,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"[{{'address': '{place}', 'inherited': 'yes'}}] False []\n"
        assert answers(place)  # it is systemd's


def test_tcp_only_where_it_is_configured(place: Path) -> None:
    listeners = Listeners(ServerConfig(socket=str(place)), {})
    assert [one.family for one in listeners.sockets] == [socket.AF_UNIX]
    listeners.close()
    listeners = Listeners(ServerConfig(socket=str(place), tcp="127.0.0.1:0"), {})
    assert [one.family for one in listeners.sockets] == [socket.AF_UNIX, socket.AF_INET]
    assert [str(facts["address"]).split(":")[0] for facts in listeners.facts()] == [str(place), "127.0.0.1"]
    port = listeners.sockets[1].getsockname()[1]
    for address, words in ((f"127.0.0.1:{port}", "in use"), ("no-such-host.invalid:80", "server.tcp")):
        with pytest.raises(ConfigError, match=words):
            Listeners(ServerConfig(socket=str(place.with_name("b")), tcp=address), {})
        assert not place.with_name("b").exists()
    listeners.close()
    assert not place.exists()
