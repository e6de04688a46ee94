"""The daemon of a soak on its simulated board, and the hands on both: its configuration, its signals, the air around
the board and the memory that others leave it. Knows no request.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from ...boards import Board
from ...simulator.driven import drive
from ...simulator.namespace import BoardNamespace, JtopService
from ...simulator.plant import Plant, at_ambient
from ...simulator.tree import BoardTree
from ...telemetry.sample import MemoryReading
from ..live import Serving, serving, small_plant
from .plan import SoakPlan

_RESERVE_GB = 0.8
_STARVED_BYTES = 300 << 20
"""Available while others take the memory: less than the reserve."""
_K = 2
"""Drafts of the steps that the plant reckons with."""
_CREDENTIALS = struct.Struct("3i")
_DUE_ERRORS = ("swap failed",)
"""What the log may say as an error: it is asked for."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the daemon's process has of the machine."""

    anonymous: int
    """Bytes."""
    files: int
    threads: int
    processor_s: float
    waited_s: float


class Stage:
    """Must be left by its ``with`` block; what is done here is done from one thread at a time."""

    def __init__(self, served: Serving, tree: BoardTree, plant: Plant, busy: SimpleNamespace, plan: SoakPlan) -> None:
        self.socket = tree.root / "run/api.sock"
        self.plant, self.plan = plant, plan
        self.twin = tree.root / "twin"
        """Another path of the same bundle."""
        self.beyond = False
        """Whether the air alone makes the board too hot."""
        self._served, self._tree, self._busy = served, tree, busy
        self._first = served.config.read_text(encoding="utf-8")
        self._memory = tree_memory(tree.board)
        self._pid = _listener(self.socket)
        self._read = 0
        """Bytes of the log that were looked through."""

    @property
    def ended(self) -> int | None:
        """The daemon's exit code; ``None`` while it runs."""
        return self._served.process.poll()

    def busy_share(self, share: float) -> None:
        """What the plant is to believe of the daemon from now on."""
        self._busy.duty = share

    def breathe(self, air_c: float) -> None:
        self.plant.parameters = at_ambient(self.plant.parameters, air_c)

    def starve(self, starved: bool) -> None:
        """Whether others take the board's memory."""
        memory = replace(self._memory, available_bytes=_STARVED_BYTES) if starved else self._memory
        self._tree.set_memory(memory)

    def reload(self, section: str, **keys: Any) -> None:
        """By SIGHUP, of the first configuration with other values of some keys."""
        config = yaml.safe_load(self._first)
        config[section] |= keys
        new = self._served.config.with_suffix(".new")
        new.write_text(yaml.safe_dump(config), encoding="utf-8")
        new.replace(self._served.config)  # in one step: it may be read at any moment
        os.kill(self._pid, signal.SIGHUP)

    def told(self, word: str) -> int:
        """Lines of the log so far that hold it."""
        return self._served.log.read_text(errors="replace").count(word)

    def taken(self) -> Taken:
        place = Path(f"/proc/{self._pid}")
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        ran_ns = waited_ns = 0
        for thread in (place / "task").iterdir():
            with suppress(OSError):  # it may have ended since
                ran, waited, _ = (thread / "schedstat").read_text().split()
                ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
        return Taken(
            1024 * int(status["RssAnon"].split()[0]), len(list((place / "fd").iterdir())), int(status["Threads"]),
            _processor_s(place), waited_ns / 1e9,
        )  # fmt: skip

    def errors(self) -> tuple[str, ...]:
        """Lines of the log since the last call that should not be there."""
        with self._served.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return tuple(line for line in lines if _is_error(line) and not any(word in line for word in _DUE_ERRORS))


def _is_error(line: str) -> bool:
    """Anything but a line of the daemon's own of a lower level."""
    words = line.split(" ", 2)
    return len(words) < 2 or words[1] not in ("debug", "info", "warning")


def _processor_s(place: Path) -> float:
    """Of threads that have ended too."""
    fields = (place / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_memory(board: Board) -> MemoryReading:
    return MemoryReading(board.ram_bytes, board.ram_bytes - (2 << 30), board.ram_bytes // 2, 0)


def _listener(path: Path) -> int:
    """The process that listens at a socket, as this one counts processes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.connect(str(path))
        found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid


def sections(plan: SoakPlan, bundle: Path, telemetry: str) -> dict[str, Any]:
    """The configuration that the daemon begins with."""
    return {
        "bundle": str(bundle.absolute()),
        "engine": {
            "sessions": plan.sessions, "context": plan.context, "threads": plan.threads, "deterministic": True,
        },
        "server": {"socket": "/run/api.sock"},
        "limits": {"queue": plan.queue},
        "budget": {
            "temperature_c": plan.limit_c, "reserve_gb": _RESERVE_GB, "telemetry": telemetry, "interval_s": 0.2,
        },
        "drain_s": 5,
    }  # fmt: skip


@contextmanager
def staged(folder: Path, bundle: Path, board: Board, telemetry: str, plan: SoakPlan) -> Iterator[Stage]:
    """The daemon is ready; all of it ends with the block. Needs root; raises ``NamespaceUnavailable`` where that is not
    enough, ``EngineError`` or ``InputError`` where the daemon does not come up."""
    tree = BoardTree.build(folder / "board", board)
    (tree.root / "twin").symlink_to(bundle.absolute(), target_is_directory=True)
    plant = Plant(small_plant(board, plan.air_c), plan.seed)
    busy = SimpleNamespace(duty=0.0, over=False)
    with ExitStack() as stack:
        place = stack.enter_context(BoardNamespace(tree))
        if telemetry == "jtop":
            stack.callback(JtopService(place).kill)
        driving = threading.Thread(
            target=drive,
            args=(tree, plant, lambda: busy.duty, _K, lambda: busy.over, time.monotonic, time.sleep),
            daemon=True,
        )
        driving.start()
        stack.callback(_end, busy, driving)
        config = yaml.safe_dump(sections(plan, bundle, telemetry))
        served = stack.enter_context(serving(place, config))
        yield Stage(served, tree, plant, busy, plan)


def _end(busy: SimpleNamespace, thread: threading.Thread) -> None:
    busy.over = True
    thread.join()
