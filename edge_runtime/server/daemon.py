"""The daemon's life: listen, load, warm up, serve, reload, drain. Knows the order of things, none of them inside."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import uvicorn

from ..bundle import MANIFEST_NAME
from ..config import Config, ServerConfig
from ..errors import EdgeError, EngineError
from ..pressure import NO_PRESSURE, Pressure, next_pressure
from ..resident import machine_memory, resident
from ..scheduler.governing import Governing
from ..scheduler.scheduler import Scheduler
from ..scheduler.snapshot import Snapshot
from ..telemetry.monitor import Monitor
from .app import create_app
from .board import READINGS, Trouble, governing_of
from .connection import uvicorn_config
from .listeners import Listeners
from .logs import event, flush_log, log_to_stderr
from .notify import Notifier, watchdog_period_s
from .preparing import limits_of, prepare, settings_of
from .service import Model, Service, Standing

T = TypeVar("T")
ReadConfig = Callable[[], Config]

_LOG = logging.getLogger(__name__)
_LOADING_EXTENDS_S, _LOADING_TELLS_S = 30.0, 5.0
"""While a bundle is loaded, the manager is asked for so many more seconds, so often."""
_MOST_LOADING_S = 1800.0
"""Then it is no longer asked: what takes so long hangs."""
_ENGINE_PATIENCE_S = 5.0
"""Beyond the time of a drain, for the step in which the engine is."""
_RESPONSES_S = 5
"""For what is made to reach its readers."""
_LOOK_S = 1.0
_OTHER_FILES = 256
"""Beside connections: those that are still told that they are too many, a bundle and its successor, the board's."""


def run_daemon(read: ReadConfig) -> int:
    """Until it is told to stop; the exit code. ``read`` is called again by SIGHUP. Raises ``EdgeError`` for what
    keeps it from starting, and when the engine fails for good."""
    config = read()
    settings_of(config.engine)
    log_to_stderr(os.environ)
    # What ends a process without a word leaves one: an engine that crashes, a weight file that was cut off (SIGBUS).
    faulthandler.enable()
    period_s = watchdog_period_s(os.environ, os.getpid())
    notifier = Notifier.of(os.environ)
    _allow_files(config.server.max_connections)
    listeners = Listeners(config.server, os.environ)
    daemon = Daemon(read, config, listeners, notifier, period_s)
    try:
        asyncio.run(daemon.run())
    finally:
        listeners.close()
        if daemon.busy:
            _leave_at_once(sys.exc_info()[1])
    notifier.close()
    return 0


def _allow_files(connections: int) -> None:
    """A shell gives 1,024 open files, which is fewer than the connections that are allowed and what they need beside;
    a socket that cannot be accepted is a client that waits for nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _LOG.warning(event("few open files", allowed=most, connections=connections))


class _Server(uvicorn.Server):
    """Signals are the daemon's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Daemon:
    def __init__(
        self, read: ReadConfig, config: Config, listeners: Listeners, notifier: Notifier, watchdog_s: float | None
    ) -> None:
        self.busy = 0
        """Threads that cannot be told to end: those that load a bundle, or wait for an engine that hangs."""
        self._read, self._config = read, config
        self._said = wanted(config)
        """By the file, when it was last obeyed. What HTTP swapped in since then stays until the file changes."""
        self._listeners, self._notifier, self._watchdog_s = listeners, notifier, watchdog_s
        self._service = Service(config, swap=self._swap_bundle, started_s=time.monotonic())
        self._scheduler: Scheduler | None = None
        self._governing = Governing()
        self._monitor: Monitor | None = None
        self._swapping = asyncio.Lock()
        self._stop, self._hang_up = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_asked, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up.set)
        # Somebody is about to write into a bundle: the next look finds out which file (intact.py).
        loop.add_signal_handler(signal.SIGIO, lambda: None)
        server = _Server(
            uvicorn_config(create_app(self._service), self._config.server, timeout_graceful_shutdown=_RESPONSES_S)
        )
        serving: asyncio.Task[object] = asyncio.create_task(server.serve(self._listeners.sockets))
        living: asyncio.Task[object] = asyncio.create_task(self._live())
        stopping: asyncio.Task[object] = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({serving, living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await self._drain()
            for task in (serving, living):
                if task.done():
                    task.result()
        finally:
            for task in (living, stopping):
                task.cancel()
            server.should_exit = True
            await asyncio.gather(serving, living, stopping, return_exceptions=True)
            if self._monitor is not None:
                self._monitor.close()
            _LOG.info(event("stopped"))

    def _stop_asked(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        # Once more: at once, and as a process ends that never heard of signals.
        self._listeners.close()
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    async def _live(self) -> None:
        """From the first load on. Ends by an exception."""
        config = self._config
        for facts in self._listeners.facts():
            _LOG.info(event("listening", **facts))
        self._governing, self._monitor = governing_of(config.budget)
        self._notifier.status(f"loading {config.bundle}")
        _LOG.info(event("loading", bundle=config.bundle))
        extending = asyncio.create_task(self._extend())
        try:
            model = await self._in_thread(lambda: prepare(config), "edge-loading")
        finally:
            # Before anything else is told: READY is the last word on starting.
            extending.cancel()
        self._scheduler = Scheduler(model.served, limits_of(config.limits), governing=self._governing)
        self._scheduler.start()
        self._service.standing = Standing("ready", "", model, self._scheduler)
        self._tell_ready(model)
        await asyncio.gather(self._reload_on_request(), self._look_after(self._scheduler))

    async def _extend(self) -> None:
        for _ in range(int(_MOST_LOADING_S / _LOADING_TELLS_S)):
            self._notifier.extend(_LOADING_EXTENDS_S)
            await asyncio.sleep(_LOADING_TELLS_S)

    def _tell_ready(self, model: Model) -> None:
        _LOG.info(
            event(
                "ready",
                model=model.name,
                drafter=model.drafter,
                context=model.context,
                load_s=model.load_s,
                uptime_s=time.monotonic() - self._service.started_s,
            )
        )
        self._notifier.ready(f"serving {model.name}")

    async def _look_after(self, scheduler: Scheduler) -> None:
        """Feeds the watchdog while decoding moves; raises when it never will again."""
        period_s = self._watchdog_s
        pressure, trouble = NO_PRESSURE, Trouble(self._monitor)
        while True:
            trouble.look()
            flush_log()
            pressure = self._press(scheduler, pressure)
            snapshot = scheduler.snapshot()
            if snapshot.refusal and not self._stop.is_set():
                raise EngineError(f"the engine's thread ended: {snapshot.refusal}")
            if snapshot.idle and (altered := await self._altered()):
                raise EngineError(altered)
            if period_s is not None and moves(snapshot, time.monotonic(), period_s):
                self._notifier.alive()
            await asyncio.sleep(_LOOK_S if period_s is None else min(_LOOK_S, period_s / 4))

    async def _altered(self) -> str:
        """Of a model that nobody asks: its own thread looks around every turn. A file that was touched is hashed."""
        model = self._service.standing.model
        return "" if model is None else await asyncio.to_thread(model.served.altered)

    def _press(self, scheduler: Scheduler, was: Pressure) -> Pressure:
        memory = machine_memory()
        if memory is None:
            return was
        pressure = next_pressure(was, memory.available, self._config.budget.reserve_bytes)
        if pressure.level != was.level:
            _LOG.warning(event("memory", pressure=pressure.level, reason=pressure.reason or "enough is available"))
        if pressure.lets_go or was.lets_go:
            scheduler.press(pressure)
        return pressure

    # Reloading

    async def _reload_on_request(self) -> None:
        while True:
            await self._hang_up.wait()
            self._hang_up.clear()
            self._notifier.reloading()
            problem = ""
            try:
                await self._reload()
            except EdgeError as error:
                problem = f"reload failed: {error}"
                _LOG.error(event("reload failed", reason=str(error)))
            except Exception as error:  # noqa: BLE001 - the log has it
                # Whatever it was: what is served goes on being served.
                problem = f"reload failed: {type(error).__name__}"
                _LOG.exception(event("reload failed", reason=type(error).__name__))
            standing = self._service.standing
            self._service.standing = replace(standing, reason=problem)
            name = standing.model.name if standing.model is not None else "nothing"
            self._notifier.ready(f"serving {name}" + (f"; {problem}" if problem else ""))

    async def _reload(self) -> None:
        """Raises ``EdgeError``; what came before the failure is then in force."""
        scheduler, config, old = self._scheduler, self._read(), self._config
        assert scheduler is not None  # nobody reloads before there is something to reload
        settings_of(config.engine)
        scheduler.set_limits(limits_of(config.limits))
        self._governing.limits = config.budget.limits
        if changed := for_a_restart(old, config):
            _LOG.warning(event(f"{', '.join(changed)} changed: needs a restart"))
        # What is in force, so that the next reload tells it again.
        budget = replace(config.budget, **{name: getattr(old.budget, name) for name in READINGS})
        self._keep(replace(config, bundle=old.bundle, engine=old.engine, server=old.server, budget=budget))
        _LOG.info(event("reloaded limits"))
        said = wanted(config)
        if said != self._said:
            await self._swap(replace(config, server=old.server))
            self._said = said

    async def _swap_bundle(self, directory: Path) -> None:
        """As HTTP asks for it. Raises ``EdgeError``."""
        self._service.ready()
        try:
            await self._swap(replace(self._config, bundle=str(directory)))
        except EdgeError as error:
            _LOG.error(event("swap failed", reason=str(error)))
            raise

    async def _swap(self, config: Config) -> None:
        """The new model is ready before the old one is let go. Raises ``EdgeError``: then it is as it was."""
        async with self._swapping:
            scheduler = self._scheduler
            assert scheduler is not None
            _LOG.info(event("loading", bundle=config.bundle))
            held = resident().now
            try:
                model = await self._in_thread(lambda: prepare(config, held), "edge-loading")
            except MemoryError:
                raise EngineError(f"{config.bundle}: not enough memory beside the model that is served") from None
            try:
                scheduler.swap(model.served)
            except EdgeError:
                model.served.close()
                raise
            standing = self._service.standing
            self._service.standing = replace(standing, model=model, reason="")
            self._keep(replace(self._config, bundle=config.bundle, engine=config.engine))
            _LOG.info(event("swapped", model=model.name, load_s=model.load_s))

    def _keep(self, config: Config) -> None:
        self._config = self._service.config = config

    # The end

    async def _drain(self) -> None:
        drain_s = self._config.drain_s
        self._notifier.stopping(f"draining, {drain_s:g} s at most")
        self._notifier.extend(drain_s + 2 * _ENGINE_PATIENCE_S)
        _LOG.info(event("draining", most_s=drain_s))
        self._service.standing = replace(self._service.standing, state="draining", reason="the daemon stops")
        scheduler = self._scheduler
        if scheduler is None:
            return
        try:
            drained = self._in_thread(lambda: scheduler.drain(drain_s), "edge-draining")
            complete = await asyncio.wait_for(drained, drain_s + _ENGINE_PATIENCE_S)
            closed = self._in_thread(scheduler.close, "edge-closing")
            await asyncio.wait_for(closed, _ENGINE_PATIENCE_S)
        except asyncio.TimeoutError:
            raise EngineError("the engine hangs: it did not end its step") from None
        _LOG.info(event("drained", complete=complete))

    def _in_thread(self, function: Callable[[], T], name: str) -> asyncio.Future[T]:
        """In a thread of its own that no exit waits for: loading cannot be interrupted."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.busy += 1

        def ended(result: T | None, problem: BaseException | None) -> None:
            self.busy -= 1
            if future.done():
                return
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result: T | None = None
            problem: BaseException | None = None
            try:
                result = function()
            except BaseException as caught:  # noqa: BLE001 - whoever waits for it is told
                problem = caught
            try:
                loop.call_soon_threadsafe(ended, result, problem)
            except RuntimeError:
                # The loop is closed: the daemon has ended.
                return

        threading.Thread(target=run, name=name, daemon=True).start()
        return future


def for_a_restart(old: Config, new: Config) -> list[str]:
    """Keys that differ and that only a restart changes."""
    server = [f"server.{one.name}" for one in fields(ServerConfig)
              if getattr(old.server, one.name) != getattr(new.server, one.name)]  # fmt: skip
    return server + [f"budget.{name}" for name in READINGS if getattr(old.budget, name) != getattr(new.budget, name)]


def wanted(config: Config) -> tuple[object, ...]:
    """What is to be loaded; a bundle that was written anew in its old place is another one."""
    try:
        found = (Path(config.bundle) / MANIFEST_NAME).stat()
        written: tuple[int, int] | None = (found.st_ino, found.st_mtime_ns)
    except OSError:
        written = None
    return config.bundle, config.engine, written


def moves(snapshot: Snapshot, now_s: float, period_s: float) -> bool:
    """Whether the engine owes no sign of life, or gave one within the watchdog's period."""
    return snapshot.idle or now_s - snapshot.beat_s < period_s


def _leave_at_once(problem: BaseException | None) -> None:
    """A thread is inside a library that would not survive the interpreter's end."""
    code = 0
    if isinstance(problem, EdgeError):
        sys.stderr.write(f"error: {' '.join(str(problem).split())}\n")
        code = problem.exit_code
    elif problem is not None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
