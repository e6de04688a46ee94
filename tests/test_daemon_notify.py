"""What a service manager is told: the datagrams of sd_notify, and when the watchdog is fed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_runtime.server.notify import Notifier, watchdog_period_s


@contextmanager
def manager(address: str | bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address)
        bound.settimeout(30)
        yield bound


def test_what_is_said(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": path, "HOME": "/"}
    with manager(path) as systemd:
        notifier = Notifier.of(environment)
        assert environment == {"HOME": "/"}  # what a child says is not ours
        before = time.monotonic()
        notifier.status("loading\nREADY=1 of it")
        notifier.extend(1.5)
        notifier.ready("serving")
        notifier.reloading()
        notifier.alive()
        notifier.stopping("draining")
        said = [systemd.recv(4096).decode() for _ in range(6)]
        notifier.close()
        notifier.alive()  # after the end: nothing
    reloading, clock = said.pop(3).split("\n")
    assert said == [
        "STATUS=loading READY=1 of it",  # no line of it is an assignment
        "EXTEND_TIMEOUT_USEC=1500000",
        "READY=1\nSTATUS=serving",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining",
    ]
    assert reloading == "RELOADING=1"
    assert before <= int(clock.removeprefix("MONOTONIC_USEC=")) / 1e6 + 0.001 <= time.monotonic() + 0.001


def test_an_abstract_address() -> None:
    name = f"edge-runtime-test-{os.getpid()}"
    with manager(b"\0" + name.encode()) as systemd:
        notifier = Notifier("@" + name)
        notifier.alive()
        assert systemd.recv(100) == b"WATCHDOG=1"
        notifier.close()


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative"])
def test_where_nobody_listens_nothing_is_said(address: str | None) -> None:
    notifier = Notifier(address)
    notifier.ready("serving")
    notifier.close()


def test_a_manager_that_does_not_read_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_runtime.server.notify._PATIENCE_S", 0.01)
    path = str(tmp_path / "notify")
    notifier = Notifier(path)
    notifier.ready("nobody is there")
    with manager(path):
        for _ in range(50):  # more than a queue holds
            notifier.alive()
    notifier.alive()
    notifier.close()


@pytest.mark.parametrize(
    ("environment", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500", "WATCHDOG_PID": "42"}, 0.0005),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "41"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
        ({"WATCHDOG_USEC": ""}, None),
    ],
)
def test_the_period_of_the_watchdog(environment: dict[str, str], period_s: float | None) -> None:
    assert watchdog_period_s(environment, 42) == period_s
