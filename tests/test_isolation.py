"""Two users of one daemon, as processes that have given up root: who connects, what is counted, what is remembered."""

from __future__ import annotations

import grp
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from scheduling import until
from server_runs import CHAT, COMPLETIONS, Running, chat, listening, tiny_model
from test_systemd import settings

from edge_runtime.config import Config, IsolationConfig, LimitsConfig, ServerConfig
from edge_runtime.reuse import BLOCK
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.server.service import Model, Service, Standing
from edge_runtime.server.sockets import UnixListener, open_inherited

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")

OUTSIDER, OTHER = 54321, 54322
"""Uids of nobody."""
PATIENCE_S = 120

# Becomes another user, then sends each request on a connection of its own before it reads any answer.
_CHILD = """
import json, os, socket, sys
order = json.load(sys.stdin)
os.setgroups(order["groups"])
os.setresgid(order["uid"], order["uid"], order["uid"])
os.setresuid(order["uid"], order["uid"], order["uid"])
kept, told = [], []
for data in order["requests"]:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(order["patience_s"])
    try:
        one.connect(order["path"])
        one.sendall(data.encode())
    except OSError as problem:
        told.append(type(problem).__name__)
        continue
    kept.append(one)
for one in kept:
    data = b""
    while part := one.recv(65536):
        data += part
    told.append(data.decode())
json.dump(told, sys.stdout)
"""


@dataclass
class Visit:
    """A process of another user."""

    process: subprocess.Popen[str]

    def told(self) -> list[str]:
        """By request: what came, or the error of the system."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        found: list[str] = json.loads(out)
        return found

    def statuses(self) -> list[int]:
        return sorted(int(one.split()[1]) for one in self.told())


def visit(path: str | Path, *requests: str, uid: int = OUTSIDER, groups: tuple[int, ...] = ()) -> Visit:
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    order = {"path": str(path), "requests": requests, "uid": uid, "groups": groups, "patience_s": PATIENCE_S}
    assert process.stdin is not None
    process.stdin.write(json.dumps(order))
    process.stdin.close()
    process.stdin = None
    return Visit(process)


def asks(path: str, body: dict[str, Any], *headers: str) -> str:
    text = json.dumps(body)
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {len(text)}", *headers]
    return "\r\n".join([*lines, "", text])


@pytest.fixture
def place() -> Iterator[Path]:
    """Where everybody may look: what keeps others out must be the socket, and not how pytest works."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    if any(not above.stat().st_mode & 0o001 for above in made.parents):
        pytest.skip("the directory for temporary files is closed to others")
    yield made
    shutil.rmtree(made)


# --- who connects ---------------------------------------------------------------------------------

GROUP = "daemon"


def gid_of(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def connects(path: Path, *groups: int) -> str:
    """Nothing is read from a listener: whoever connects waits in its backlog."""
    script = _CHILD.replace("while part := one.recv(65536)", "while part := b''")
    assert script != _CHILD
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    order = {"path": str(path), "requests": [""], "uid": OUTSIDER, "groups": groups, "patience_s": PATIENCE_S}
    out, err = process.communicate(json.dumps(order), timeout=PATIENCE_S)
    assert process.returncode == 0, err
    (told,) = json.loads(out)
    return told or "connects"


def test_who_is_not_in_the_group_does_not_connect(place: Path) -> None:
    ours = UnixListener(place / "run" / "api.sock", 0o660, GROUP)
    try:
        assert connects(ours.path) == "PermissionError"
        assert connects(ours.path, gid_of(GROUP)) == "connects"
        # Each of the two is enough: the directory, and the socket's own mode.
        ours.path.parent.chmod(0o755)
        assert connects(ours.path) == "PermissionError"
        ours.path.chmod(0o666)
        assert connects(ours.path) == "connects"
        ours.path.parent.chmod(0o750)
        assert connects(ours.path) == "PermissionError"
    finally:
        ours.close()


def test_a_socket_of_its_own_user_alone(place: Path) -> None:
    ours = UnixListener(place / "api.sock", 0o600, GROUP)
    try:
        assert connects(ours.path, gid_of(GROUP)) == "PermissionError"
    finally:
        ours.close()


def test_systemds_socket_lets_in_whom_its_unit_says(place: Path) -> None:
    """Made as the socket unit says, and as it is used: neither its mode nor its group are changed."""
    unit = settings("edge-runtime.socket")["Socket"]
    path, gid = place / "run" / "api.sock", gid_of(GROUP)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        os.chown(path, -1, gid)
        os.chown(path.parent, -1, gid)
        path.chmod(int(unit["SocketMode"], 8))
        path.parent.chmod(int(unit["DirectoryMode"], 8))
        made.listen()
        opened = open_inherited(made.fileno(), "api", tcp=False)
        assert connects(path) == "PermissionError"
        assert connects(path, gid) == "connects"
        opened.detach()
        assert path.exists() and path.stat().st_gid == gid


# --- what is counted ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def everybody(place: Path) -> Path:
    """A place of a socket that all may use, once its mode says so."""
    return place / "api.sock"


def serving(model: Model, scheduler: Scheduler, path: Path) -> Service:
    config = Config("b", server=ServerConfig(socket=str(path)))
    return Service(config, Standing("ready", "", model, scheduler))


# What might be taken for who somebody is.
DISGUISES = ("x-forwarded-for: 10.0.0.{}", "forwarded: for=10.0.0.{}", "authorization: Bearer user{}", "x-user: {}",
             "x-real-ip: 10.0.0.{}", "cookie: session={}")  # fmt: skip


def test_limits_are_by_user_however_he_connects_and_whoever_he_says_he_is(model: Model, everybody: Path) -> None:
    """Of a scheduler that does not run: one of each user could start, two may wait."""
    scheduler = Scheduler(model.served, Limits(queue=64, queue_per_client=2, running_per_client=1))
    names = [{"user": f"u{n}", "safety_identifier": f"s{n}", "cache_salt": f"c{n}"} for n in range(9)]
    disguised = [
        asks(COMPLETIONS, {"prompt": "x", "max_tokens": 2, **name}, *(one.format(number) for one in DISGUISES))
        for number, name in enumerate(names)
    ]
    with listening(serving(model, scheduler, everybody), str(everybody)) as run:
        everybody.chmod(0o666)
        first = visit(run.path, *disguised)
        until(lambda: scheduler.snapshot().requests.refused == 6)
        second = visit(run.path, asks(CHAT, chat("x", n=4)), asks(CHAT, chat("x", n=3)), uid=OTHER)
        until(lambda: scheduler.snapshot().requests.received == 9 + 4 + 3)
        seen = scheduler.snapshot().requests
        assert (seen.waiting, seen.refused) == (3 + 3, 6 + 4)
        scheduler.close()
        assert first.statuses().count(429) == 6 and second.statuses().count(429) == 1


def test_who_is_not_named_is_not_ahead_of_others(everybody: Path) -> None:
    """Root is, and who steps back may."""
    model = tiny_model(everybody.parent)
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    service = serving(model, scheduler, everybody)
    wishes = [asks(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "priority": wish}) for wish in (-2, -1, 0, 2)]
    with listening(service, str(everybody)) as run:
        everybody.chmod(0o666)
        assert run.ask("POST", CHAT, chat(priority=-2, max_tokens=1))[0] == 200
        told = visit(run.path, *wishes).told()
        assert [one.split()[1] for one in told] == ["403", "403", "200", "200"]
        assert "limits.priority_users" in told[0] and f"uid {OUTSIDER}" in told[0] and '"param":"priority"' in told[0]
        service.config = replace(service.config, limits=LimitsConfig(priority_users=(OUTSIDER,)))
        assert set(visit(run.path, *wishes).statuses()) == {200}
        assert 403 in visit(run.path, *wishes, uid=OTHER).statuses()
    scheduler.close()


def test_only_root_and_the_daemons_user_swap_a_bundle(model: Model, everybody: Path) -> None:
    scheduler = Scheduler(model.served, Limits())
    with listening(serving(model, scheduler, everybody), str(everybody)) as run:
        everybody.chmod(0o666)
        (told,) = visit(run.path, asks("/v1/admin/bundle", {"path": "/x"})).told()
        assert told.split()[1] == "403" and f"uid {OUTSIDER}" in told
    scheduler.close()


# --- what is remembered ---------------------------------------------------------------------------

SECRET = "".join(chr(ord("a") + (7 * place * place + place) % 26) for place in range(2 * BLOCK))


def cached(told: str) -> int:
    found: int = json.loads(told.partition("\r\n\r\n")[2])["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def completes(run: Running, **fields: Any) -> int:
    """As root: cached tokens."""
    status, _, body = run.ask("POST", COMPLETIONS, {"prompt": SECRET, "max_tokens": 2, **fields})
    assert status == 200, body
    found: int = body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("kept_apart", ["nobody", "all", "root", "the other"])
def test_one_users_prompt_is_anothers_prefix_only_where_that_is_shared(everybody: Path, kept_apart: str) -> None:
    isolation = {
        "nobody": IsolationConfig(),
        "all": IsolationConfig("private"),
        "root": IsolationConfig(private_users=(0,)),
        "the other": IsolationConfig(private_users=(OUTSIDER,)),
    }[kept_apart]
    model = tiny_model(everybody.parent)
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    service = serving(model, scheduler, everybody)
    body = {"prompt": SECRET, "max_tokens": 2}
    try:
        with listening(service, str(everybody)) as run:
            everybody.chmod(0o666)
            # As a reload would: for requests to come.
            service.config = replace(service.config, isolation=isolation)
            assert completes(run) == 0
            mine = completes(run)
            assert mine >= 2 * BLOCK - 2  # all but the last token, whose row decides
            salted = {**body, "cache_salt": "pepper"}
            (told,) = visit(run.path, asks(COMPLETIONS, salted)).told()
            assert cached(told) == 0  # the client's own wish
            (told,) = visit(run.path, asks(COMPLETIONS, body)).told()
            assert cached(told) == (mine // BLOCK * BLOCK if kept_apart == "nobody" else 0)
            # A salt is a user's: another who has learnt it gets nothing by it.
            assert completes(run, cache_salt="pepper") == 0
            assert completes(run, cache_salt="pepper") == mine
    finally:
        scheduler.close()
