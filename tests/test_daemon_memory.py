"""A daemon whose machine runs out of memory: it forgets, then refuses, and serves again when there is room."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import tiny_bundle as tiny
from daemon_runs import PATIENCE_S, Running, daemon, settled, write_config

from edge_runtime.client import Client, EdgeRuntimeError

PROMPT = "The quick brown"


def test_under_pressure_it_forgets_refuses_and_comes_back(tmp_path: Path) -> None:
    """As if others had taken the memory: the reserve is raised beyond all that the machine has."""
    path = write_config(tmp_path / "c.yaml", tiny.bundle())
    with daemon(tmp_path, path) as running, running.client(patience_s=0.0) as client:
        running.ready()
        before = answer(client)
        assert isinstance(before, str) and any(slot.tokens for slot in settled(client).slots)
        reserve(running, path, 1000.0)
        refused = until(client, EdgeRuntimeError)
        assert isinstance(refused, EdgeRuntimeError) and "memory runs out" in str(refused)
        assert refused.status == 503 and refused.retry_after_s
        wait(client, lambda: not any(slot.tokens for slot in client.status().slots))
        assert client.health().ready
        reserve(running, path, 0.0)
        assert until(client, str) == before
        assert len(running.log_lines("pressure=evict")) == len(running.log_lines("pressure=shed")) == 1


def reserve(running: Running, path: Path, gigabytes: float) -> None:
    write_config(path, tiny.bundle(), budget={"reserve_gb": gigabytes})
    running.signal(signal.SIGHUP)
    running.until("RELOADING")
    running.until("READY")


def answer(client: Client) -> str | EdgeRuntimeError:
    try:
        return client.complete(PROMPT, max_tokens=4, temperature=0.0).text
    except EdgeRuntimeError as problem:
        return problem


def until(client: Client, kind: type) -> str | EdgeRuntimeError:
    """The first answer of that kind."""
    answers = []
    wait(client, lambda: isinstance(answers.append(answer(client)) or answers[-1], kind))
    return answers[-1]


def wait(client: Client, done) -> None:  # type: ignore[no-untyped-def]
    end_s = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end_s, client.status()
        time.sleep(0.05)
