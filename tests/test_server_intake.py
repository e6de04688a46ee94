"""What one client has on the way to the scheduler costs no other: bodies are bounded, and so is their preparation."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scheduling import until
from server_runs import CHAT, Puppet, Running, chat, parsed, post, read_all, request, running, say, tiny_model

from edge_runtime.config import ServerConfig
from edge_runtime.server.connection import Peer
from edge_runtime.server.intake import MOST_BODIES, Intake

LARGE = 2000
"""Bytes: the most of a body, of this daemon."""


@pytest.fixture
def uids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of who connects next; the last one stays."""
    given: list[int] = []
    monkeypatch.setattr(
        "edge_runtime.server.connection._peer",
        lambda transport: Peer(given.pop(0) if len(given) > 1 else given[0], None),
    )
    return given


@pytest.fixture
def puppet() -> Puppet:
    return Puppet(answer=lambda asked, sink: say(sink, "ok"))


@pytest.fixture
def run(tmp_path: Path, puppet: Puppet) -> Iterator[Running]:
    with running(tiny_model(tmp_path), puppet, tmp_path, ServerConfig(max_body_bytes=LARGE)) as found:
        yield found


class Slow:
    """A template that takes its time over a conversation that says so."""

    def __init__(self, plain: Any) -> None:
        self.plain, self.go_on = plain, threading.Event()
        self.begun = 0

    def encode(self, tokenizer: Any, said: Any, **more: Any) -> Any:
        if said[0].content == "slow":
            self.begun += 1
            assert self.go_on.wait(60)
        return self.plain.encode(tokenizer, said, **more)


def test_one_clients_bodies_are_bounded_together(run: Running, uids: list[int]) -> None:
    """Begun, and never sent to their end."""
    uids += [1] * 40 + [2, 1]
    head = request("POST", CHAT, content_type="application/json", content_length=str(LARGE), connection="close")
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(run.connect()) for _ in range(40)]
        for connection in held:
            connection.sendall(head + b" " * (LARGE - 1))
        statuses: list[int] = []
        for connection in held[MOST_BODIES + 1 :]:
            connection.shutdown(1)
            status, _, body = parsed(read_all(connection))
            statuses.append(status)
            assert body["error"]["code"] == "queue_full" and "client 1 has" in body["error"]["message"]
        assert set(statuses) == {429}
        assert run.ask("POST", CHAT, chat())[0] == 200  # uid 2
    until(lambda: run.ask("POST", CHAT, chat(metadata={"x": "y" * 200}))[0] == 200)  # uid 1 again


def test_bodies_are_given_back_while_another_of_the_client_stays() -> None:
    intake = Intake(LARGE)
    with intake.visit(1):
        for _ in range(3 * MOST_BODIES):
            with intake.visit(1) as visit:
                visit.hold(LARGE)


def test_who_waits_for_his_own_does_not_hold_all_connections(tmp_path: Path, uids: list[int], puppet: Puppet) -> None:
    model = tiny_model(tmp_path)
    slow = Slow(model.template)
    uids += [1] * 20 + [2]
    with (
        running(replace(model, template=slow), puppet, tmp_path, ServerConfig(max_connections=20)) as run,  # type: ignore[arg-type]
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(run.connect()) for _ in range(20)]
        for connection in waiting:
            connection.sendall(post(CHAT, chat("slow")))
        until(lambda: slow.begun == 2)
        until(lambda: len(select.select(waiting, [], [], 0)[0]) == 10)  # refused; the others wait
        assert run.ask("POST", CHAT, chat("quick"))[0] == 200
        slow.go_on.set()
        begins = [_first_of(connection) for connection in waiting]
    assert begins.count(b"HTTP/1.1 200") == 10 and begins.count(b"HTTP/1.1 429") >= 9  # one gave way, read or not


def _first_of(connection: socket.socket) -> bytes:
    try:
        return connection.recv(12)
    except ConnectionError:
        return b""


def test_nobody_waits_for_what_others_have_prepared(run: Running, uids: list[int], puppet: Puppet) -> None:
    model = run.service.standing.model
    assert model is not None
    slow = Slow(model.template)
    run.service.standing = replace(run.service.standing, model=replace(model, template=slow))  # type: ignore[arg-type]
    uids += [1] * 30 + [2]
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(run.connect()) for _ in range(30)]
        for connection in waiting:
            connection.sendall(post(CHAT, chat("slow"), connection="close"))
        until(lambda: slow.begun == 2)
        assert run.ask("POST", CHAT, chat("quick"))[0] == 200
        assert slow.begun == 2
        for connection in waiting[10:]:
            connection.close()
        slow.go_on.set()
        for connection in waiting[:10]:
            assert parsed(read_all(connection))[0] == 200
    # Of those that left nothing more is made, but for what had begun.
    assert run.ask("POST", CHAT, chat("quick"))[0] == 200
    assert 10 <= slow.begun <= 12


def test_who_leaves_no_longer_waits(run: Running, uids: list[int]) -> None:
    model = run.service.standing.model
    assert model is not None
    slow = Slow(model.template)
    run.service.standing = replace(run.service.standing, model=replace(model, template=slow))  # type: ignore[arg-type]
    uids += [1]
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(run.connect()).sendall(post(CHAT, chat("slow"), connection="close"))
        until(lambda: slow.begun == 2)
        for _ in range(200):
            with run.connect() as connection:
                connection.sendall(post(CHAT, chat("slow"), connection="close"))
        # It waits as well, once the daemon has seen the others leave.
        until(lambda: not select.select([asked(run, stack)], [], [], 0.2)[0])
        slow.go_on.set()
        assert run.ask("POST", CHAT, chat("quick"))[0] == 200
    assert slow.begun < 20


def asked(run: Running, stack: contextlib.ExitStack) -> socket.socket:
    connection = stack.enter_context(run.connect())
    connection.sendall(post(CHAT, chat("quick"), connection="close"))
    return connection
