"""The doctor on where the daemon is to listen: what it would refuse at its start is told before, with its fix."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge_runtime.cli import main
from edge_runtime.config import ServerConfig
from edge_runtime.doctor import listening
from edge_runtime.doctor.finding import Check
from edge_runtime.doctor.listening import listening_checks
from edge_runtime.errors import ConfigError
from edge_runtime.server.sockets import UnixListener, bind_tcp


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory, as the current one: a socket's path is short."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    monkeypatch.chdir(tmp_path)
    yield folder
    folder.chmod(0o755)


def of_socket(path: Path | str) -> Check:
    (one,) = listening_checks(ServerConfig(socket=str(path)))
    return one


def of_port(address: str, path: Path) -> Check:
    _, one = listening_checks(ServerConfig(socket=str(path), tcp=address))
    return one


def occupied(folder: Path) -> Path:
    (folder / "api.sock").write_text("mine")
    return folder / "api.sock"


def too_deep(folder: Path) -> Path:
    return folder / "a/b/api.sock"


def below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("mine")
    return folder / "file/api.sock"


def everybodys(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder / "api.sock"


@pytest.mark.parametrize(
    ("fault", "words", "fix"),
    [
        (occupied, "is not a socket", "mv "),
        (too_deep, "there is no ", "mkdir -p "),
        (below_a_file, "", "server.socket"),
        (everybodys, "by everybody", "chmod o-w "),
    ],
)
def test_what_the_daemon_refuses_is_told_with_its_fix(
    place: Path, fault: Callable[[Path], Path], words: str, fix: str
) -> None:
    path = fault(place)
    before = sorted(place.iterdir())
    told = of_socket(path)
    assert told.status == "problem" and words in told.text and fix in told.fix and "server.socket" in told.fix
    assert sorted(place.iterdir()) == before, "the doctor makes nothing"
    with pytest.raises((ConfigError, OSError)):
        UnixListener(path, 0o660, None)


@pytest.mark.parametrize("name", ["api.sock", "new/api.sock"])
def test_what_the_daemon_takes_is_right(place: Path, name: str) -> None:
    assert of_socket(place / name).status == "ok" and list(place.iterdir()) == []
    listener = UnixListener(place / name, 0o660, None)
    told = of_socket(place / name)
    assert told.status == "ok" and "a daemon answers" in told.text
    listener.socket.close()  # it crashed: its socket stays
    assert of_socket(place / name).status == "ok"
    listener.close()


def test_where_everybody_writes_and_nobody_takes_away(place: Path) -> None:
    place.chmod(0o1777)
    assert of_socket(place / "api.sock").status == "ok"


def test_a_directory_that_this_user_may_not_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    told = of_socket(place / "api.sock")
    assert told.status == "problem" and f"may not write in {place}" in told.text and "sudo chown" in told.fix
    told = of_socket(place / "new/api.sock")
    assert told.status == "problem" and "may not make" in told.text and "sudo install -d -o " in told.fix
    monkeypatch.setattr(listening, "_AT_BOOT", place)
    told = of_socket(place / "new/api.sock")
    assert told.status == "advice" and "systemd makes it" in told.text and "install-service" in told.fix


def test_what_is_another_users(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service has a user of its own, and the doctor is run by somebody else: no problem, but told."""
    listener = UnixListener(place / "api.sock", 0o660, None)
    listener.socket.close()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 4711)
    told = of_socket(place / "api.sock")
    assert told.status == "advice" and "belongs to" in told.text
    (place / "api.sock").unlink()
    if mine != 0:  # root's is everybody's
        told = of_socket(place / "api.sock")
        assert told.status == "advice" and "belongs to" in told.text


def test_a_port(place: Path) -> None:
    path = place / "api.sock"
    with bind_tcp("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = of_port(address, path)
        assert told.status == "problem" and "is taken" in told.text and "ss -ltnp" in told.fix
        assert "server.tcp" in told.fix
        listener = UnixListener(path, 0o660, None)
        assert of_port(address, path).status == "ok", "its own daemon's"
        listener.close()
    assert of_port(address, path).status == "ok"
    bind_tcp(address).close()  # and it is left free
    told = of_port("203.0.113.9:80", path)
    assert told.status == "problem" and "no address of this machine" in told.text and "server.tcp" in told.fix


def test_a_host_that_nobody_knows(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    told = of_port("nowhere.invalid:80", place / "api.sock")
    assert told.status == "problem" and "Name or service not known" in told.text


def test_the_command_looks_at_both(place: Path) -> None:
    config = place / "c.yaml"
    occupied(place)
    config.write_text(f"bundle: {place}\nserver: {{socket: {place}/api.sock, tcp: 127.0.0.1:0}}\n")
    done = CliRunner().invoke(main, ["doctor", "--config", str(config)])
    assert done.exit_code == 1
    assert "problem  socket: " in done.stdout and "ok       TCP port: 127.0.0.1:0 is free" in done.stdout
