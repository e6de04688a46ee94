"""Parts of the daemon that a whole process shows badly: when the watchdog is fed, and what the log may say."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edge_runtime.config import Config, ServerConfig
from edge_runtime.decoder import Decoder
from edge_runtime.errors import EngineError
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served
from edge_runtime.scheduler.snapshot import Snapshot
from edge_runtime.server.daemon import Daemon, moves
from edge_runtime.server.listeners import Listeners
from edge_runtime.server.logs import OneLine, event
from edge_runtime.server.notify import Notifier
from edge_runtime.testing import FakeEngine


def scheduler() -> Scheduler:
    served = Served("fake", Decoder(FakeEngine()), lambda token: b"x", (1,), lambda: None)
    return Scheduler(served, Limits())


def snapshot(**more: object) -> Snapshot:
    return replace(scheduler().snapshot(), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("idle", "beat_s", "fed"),
    [(True, 0.0, True), (True, 100.0, True), (False, 100.0, True), (False, 90.1, True), (False, 89.9, False)],
)
def test_when_the_watchdog_is_fed(idle: bool, beat_s: float, fed: bool) -> None:
    assert moves(snapshot(idle=idle, beat_s=beat_s), 100.0, 10.0) is fed


def test_an_engine_thread_that_ended_ends_the_daemon(tmp_path: Path) -> None:
    """So that it is started anew, instead of refusing everything for ever."""
    config = Config("none", server=ServerConfig(socket=str(tmp_path / "s")))

    async def run() -> None:
        listeners = Listeners(config.server, {})
        try:
            daemon = Daemon(lambda: config, config, listeners, Notifier(None), None)
            made = scheduler()
            made.start()
            looking = asyncio.create_task(daemon._look_after(made))
            made.close()
            await looking
        finally:
            listeners.close()

    with pytest.raises(EngineError, match="engine's thread ended"):
        asyncio.run(run())


# --- the log --------------------------------------------------------------------------------------


def record(text: str, level: int = logging.INFO, problem: BaseException | None = None) -> logging.LogRecord:
    caught = None if problem is None else (type(problem), problem, problem.__traceback__)
    return logging.LogRecord("edge_runtime", level, "file.py", 1, text, (), caught)


def test_an_event_is_one_line_whatever_it_holds() -> None:
    line = event("loading", bundle="/a b", name='x"y', load_s=1.23456, what="a\nb\x1b", nothing=None, empty="")
    assert line == 'loading bundle="/a b" name="x\\"y" load_s=1.23 what="a\\nb\\u001b" empty=""'
    shown = OneLine(journal=True).format(record("a\n\n  b\r\nc \ud800"))
    assert shown == "<6>a | b | c \\ud800"
    assert OneLine(journal=True).format(record("x", logging.ERROR)) == "<3>x"
    assert OneLine(journal=False).format(record("x", logging.WARNING)).endswith("Z warning x")


def test_an_exception_says_where_and_not_what() -> None:
    """Its words may quote what somebody wrote."""
    try:
        {}["the secret prompt"]
    except KeyError as caught:
        problem = caught
    line = OneLine(journal=False).format(record("Exception in ASGI application\n", logging.ERROR, problem))
    number = problem.__traceback__.tb_lineno if problem.__traceback__ else 0
    assert line.endswith(f"error Exception in ASGI application [KeyError at {Path(__file__).name}:{number}]")
    assert "secret" not in line and sys.exc_info() == (None, None, None)
