"""A model that was swapped: nobody holds it any more once its last answer has ended. In the daemon itself, on its own
event loop; what it gives back to the system is ``test_reload_memory``'s."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tiny_bundle as tiny
from daemon_runs import PATIENCE_S, write_config

import edge_runtime.server.daemon as daemon_module
from edge_runtime.client import AsyncClient, EdgeRuntimeError
from edge_runtime.config import read_config
from edge_runtime.server.daemon import Daemon
from edge_runtime.server.listeners import Listeners
from edge_runtime.server.notify import Notifier


@asynccontextmanager
async def living(path: Path) -> AsyncIterator[tuple[Daemon, AsyncClient]]:
    config = read_config(path)
    listeners = Listeners(config.server, {})
    daemon = Daemon(lambda: read_config(path), config, listeners, Notifier.of({}), None)
    running = asyncio.create_task(daemon.run())
    try:
        async with AsyncClient(config.server.socket) as client:
            await client.wait_until_ready(PATIENCE_S)
            yield daemon, client
    finally:
        signal.raise_signal(signal.SIGTERM)
        await running
        listeners.close()


async def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "it never came"
        await asyncio.sleep(0.02)


def parts(daemon: Daemon) -> list[weakref.ref[object]]:
    """Of the model that is served now: each is tens of megabytes of a real one."""
    model = daemon._service.standing.model
    assert model is not None
    return [weakref.ref(one) for one in (model.grammars, model.template, model.served.decoder)]


def vocabulary(daemon: Daemon) -> list[object]:
    """What the next model has no need to make anew: it is of the same family."""
    model = daemon._service.standing.model
    assert model is not None
    return [model.tokenizer, model.grammars._tables.built()]


async def replaced(daemon: Daemon, client: AsyncClient, by: Callable[[], Awaitable[object]]) -> None:
    """Requests of each kind, another model, and nobody who holds the one before."""
    await client.chat("a", max_tokens=2, response_format={"type": "json_object"})
    await client.complete("a b c", max_tokens=2)
    async with client.stream_complete("a b c", max_tokens=2) as chunks:
        assert [chunk async for chunk in chunks]
    async with client.stream_chat("a b", max_tokens=200) as chunks:
        await anext(chunks)  # and leaves
    with pytest.raises(EdgeRuntimeError):
        await client.complete("a" * 5000)
    before, known = parts(daemon), vocabulary(daemon)
    await by()
    await until(lambda: not any(one() for one in before))
    assert all(one is other for one, other in zip(vocabulary(daemon), known, strict=True))


def test_nobody_holds_a_model_that_was_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, one that HTTP brought, and one that SIGHUP brought. What they took is returned to the system."""
    returned: list[float] = []
    monkeypatch.setattr(daemon_module, "give_back", lambda: returned.append(time.monotonic()))
    path = write_config(tmp_path / "c.yaml", tiny.bundle())
    twin = Path(shutil.copytree(tiny.bundle(), tmp_path / "twin"))

    async def hang_up() -> None:
        write_config(path, tiny.bundle(), engine={"sessions": 2, "context": 256, "threads": 1})
        os.kill(os.getpid(), signal.SIGHUP)

    async def scenario() -> None:
        async with living(path) as (daemon, client):
            await replaced(daemon, client, lambda: client.swap_bundle(twin))
            await until(lambda: len(returned) == 1)
            await replaced(daemon, client, hang_up)
            await until(lambda: len(returned) == 2)
            await replaced(daemon, client, lambda: client.swap_bundle(twin))
            await until(lambda: len(returned) == 3)

    # By counts of references alone: in a daemon that does little, a collection comes late.
    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
