"""The whole loop on a board that is not there: the real daemon serves a real bundle, the real jtop service reads a
simulated board, and a plant heats that board by what the daemon does. Knows the daemon by its socket alone.

What is simulated is the board: its heat, its power, its files. So this shows that the loop closes and holds its limit;
it says nothing of how fast a board is.
"""

from __future__ import annotations

import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from ..boards import Board
from ..client.blocking import Client
from ..client.results import EdgeRuntimeError
from ..errors import EdgeError, EngineError, InputError
from ..simulator.driven import drive
from ..simulator.namespace import BoardNamespace, JtopService
from ..simulator.plant import Plant, PlantParameters
from ..simulator.scenario import board_plant
from ..simulator.tree import BoardTree
from ..status import Status

_SMALLER = 12.0
"""Times as little heat as a board's masses hold: minutes become seconds, and a run need not take an hour."""
_CONFIG = """bundle: {bundle}
engine: {{threads: 0, sessions: 2, context: 1024}}
server: {{socket: /run/api.sock}}
budget: {{telemetry: {telemetry}, interval_s: 0.2, temperature_c: {temperature}, power_mw: {power}}}
drain_s: 5
"""
_PROMPT = "Write down what happened on the river that day, from the morning on."
_LOOK_S = 0.25
_LOADS_S = 300.0
_CAP_S = 10.0
_MOST_TOLD = 500
"""Characters of what a daemon said that does not come up."""
_K = 2
"""Drafts of the steps that the plant reckons with."""


@dataclass(frozen=True, slots=True)
class Moment:
    time_s: float
    temperature_c: float
    """Of the plant itself, as the next; sensors err."""
    power_w: float
    clock_mhz: float
    duty: float
    state: str | None
    """As the daemon tells it."""
    tokens: int
    refused: int


@dataclass(frozen=True, slots=True)
class LiveRun:
    limit_c: float | None
    cap_w: float | None
    moments: tuple[Moment, ...]
    changes: tuple[tuple[float, str, str], ...]
    """(seconds, state, reason), each time that the state or its cause was another."""
    joules_per_token: float | None
    source: str | None
    """Of the daemon's readings."""
    switched_off: bool = False
    """Whether the board's hardware switched itself off, being too hot."""

    @property
    def over_c(self) -> float | None:
        """Most above the limit; below 0 where it was never reached."""
        if self.limit_c is None:
            return None
        return max(one.temperature_c for one in self.moments) - self.limit_c

    @property
    def over_s(self) -> float | None:
        """The longest time above it."""
        if self.limit_c is None:
            return None
        return longest_over_s([(one.time_s, one.temperature_c) for one in self.moments], self.limit_c)

    @property
    def power_share(self) -> float | None:
        """The highest mean over ten seconds, of the cap."""
        if self.cap_w is None:
            return None
        times = [0.0, *(one.time_s for one in self.moments)]
        joules = [0.0]
        for before_s, one in zip(times, self.moments, strict=False):
            joules.append(joules[-1] + one.power_w * (one.time_s - before_s))
        means = [
            (joules[last] - joules[first]) / (times[last] - times[first])
            for last in range(len(times))
            if (first := bisect_right(times, times[last] - _CAP_S) - 1) >= 0
        ]
        return max(means, default=0.0) / self.cap_w

    @property
    def tokens_per_s(self) -> float:
        return self.moments[-1].tokens / self.moments[-1].time_s


def longest_over_s(course: Sequence[tuple[float, float]], limit_c: float) -> float:
    """The longest time above a limit; (seconds, C) each."""
    longest, since = 0.0, None
    for time_s, temperature_c in course:
        if temperature_c <= limit_c:
            since = None
            continue
        since = time_s if since is None else since
        longest = max(longest, time_s - since)
    return longest


def small_plant(board: Board, ambient_c: float) -> PlantParameters:
    """Of the board, with masses so small that it is hot within seconds."""
    plant = board_plant(board, ambient_c)
    cooling = plant.cooling
    return replace(
        plant,
        cooling=replace(cooling, die_j_per_c=cooling.die_j_per_c / 2.0, sink_j_per_c=cooling.sink_j_per_c / _SMALLER),
    )


def run_live(
    bundle: Path, tree: BoardTree, plant: PlantParameters, *, limit_c: float | None, cap_mw: int | None, seconds: float,
    seed: int = 1, clients: int = 2, telemetry: str = "jtop", progress: Callable[[float], None] = lambda share: None,
) -> LiveRun:  # fmt: skip
    """``seconds`` of load after the daemon is ready; ``seed``: of what sensors err by. Needs root; raises
    ``NamespaceUnavailable`` where it is not possible, and ``EngineError`` where the daemon does not come up."""
    with ExitStack() as stack:
        place = stack.enter_context(BoardNamespace(tree))
        service = JtopService(place)
        stack.callback(service.kill)
        client = stack.enter_context(daemon_on(place, bundle, limit_c, cap_mw, telemetry))
        moving = Plant(plant, seed)
        busy = SimpleNamespace(duty=0.0, over=False)
        driving = threading.Thread(
            target=drive,
            args=(tree, moving, lambda: busy.duty, _K, lambda: busy.over, time.monotonic, time.sleep),
            daemon=True,
        )
        stack.callback(_end, busy, driving)
        driving.start()
        asking = [threading.Thread(target=_ask, args=(client, busy), daemon=True) for _ in range(clients)]
        for thread in asking:
            stack.callback(_end, busy, thread)
            thread.start()
        moments, changes, status = _watch(client, moving, busy, seconds, progress)
        return LiveRun(
            limit_c, None if cap_mw is None else cap_mw / 1e3, moments, changes, status.board.joules_per_token,
            status.board.source, moving.off,
        )  # fmt: skip


def _end(busy: SimpleNamespace, thread: threading.Thread) -> None:
    busy.over = True
    thread.join()


@contextmanager
def daemon_on(
    place: BoardNamespace, bundle: Path, limit_c: float | None, cap_mw: int | None, telemetry: str
) -> Iterator[Client]:
    """A client of the daemon that serves ``bundle`` there; it ends with the block."""
    config = _CONFIG.format(
        bundle=bundle.absolute(), telemetry=telemetry, temperature="null" if limit_c is None else limit_c,
        power="null" if cap_mw is None else cap_mw,
    )  # fmt: skip
    with serving(place, config) as served:
        yield served.client


@dataclass(frozen=True, slots=True)
class Serving:
    """A daemon on a simulated board."""

    client: Client
    process: subprocess.Popen[bytes]
    """That entered the board for it, and ends when it does."""
    config: Path
    log: Path


@contextmanager
def serving(place: BoardNamespace, config: str) -> Iterator[Serving]:
    """By a configuration whose socket is ``/run/api.sock``. It ends with the block. Raises ``EngineError`` or
    ``InputError`` where it does not come up."""
    root = place.tree.root
    path, log = root / "serve.yaml", root / "serve.log"
    path.write_text(config, encoding="utf-8")
    command = place.command(place.python, "-m", "edge_runtime", "serve", "--config", str(path))
    with log.open("wb") as told:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True)
    try:
        with Client(root / "run/api.sock", patience_s=0.0) as client:
            _until_ready(client, process, log)
            yield Serving(client, process, path, log)
    finally:
        process.terminate()
        process.wait()


def _until_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _LOADS_S
    while True:
        with suppress(EdgeRuntimeError, EdgeError):
            if client.health().ready:
                return
        if process.poll() is not None or time.monotonic() > deadline_s:
            kind = InputError if process.returncode == InputError.exit_code else EngineError
            raise kind(f"the daemon does not come up: {_last_word(log)}")
        time.sleep(0.1)


def _last_word(log: Path) -> str:
    """Its error, of a log that has a line for every event; or else whatever came last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it says nothing"])[-1][:_MOST_TOLD]


def _ask(client: Client, busy: SimpleNamespace) -> None:
    """One answer after another, as a program does that waits as long as it is told to."""
    while not busy.over:
        try:
            client.complete(_PROMPT, max_tokens=200)
        except EdgeRuntimeError as problem:
            time.sleep(min(2.0, problem.retry_after_s or 1.0))


def _cause(reason: str) -> str:
    return reason.split(":")[0]


def _watch(
    client: Client, plant: Plant, busy: SimpleNamespace, seconds: float, progress: Callable[[float], None]
) -> tuple[tuple[Moment, ...], tuple[tuple[float, str, str], ...], Status]:
    began_s = last_s = time.monotonic()
    status = client.status()
    before = status.board.busy_s or 0.0
    first, joules, drawn_s = status.speed.generated_tokens, plant.joules, plant.time_s
    moments: list[Moment] = []
    changes: list[tuple[float, str, str]] = []
    while last_s - began_s < seconds:
        time.sleep(_LOOK_S)
        status, now_s = client.status(), time.monotonic()
        done_s = status.board.busy_s or 0.0
        busy.duty = min(1.0, max(0.0, (done_s - before) / (now_s - last_s)))
        state, reason = status.board.throttle_state or "", status.budget.reason or ""
        if not changes or (changes[-1][1], _cause(changes[-1][2])) != (state, _cause(reason)):
            changes.append((now_s - began_s, state, reason))
        moments.append(
            Moment(
                now_s - began_s,
                plant.die_c,
                (plant.joules - joules) / max(1e-9, plant.time_s - drawn_s),
                plant.clock_mhz,
                busy.duty,
                state,
                status.speed.generated_tokens - first,
                status.requests.refused,
            )
        )
        before, last_s, joules, drawn_s = done_s, now_s, plant.joules, plant.time_s
        progress(min(1.0, (now_s - began_s) / seconds))
    return tuple(moments), tuple(changes), status
