"""Stand-ins for both ends of jtop's process: what it says, without jtop, and a jtop that does what it is told.

Knows the lines of ``telemetry.jtop_child`` and as much of jtop's client as that uses.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from edge_runtime.telemetry.sample import Sample

FOREVER = "exec sleep 1000"
PATIENCE_S = 120.0
"""How long a test waits for what must come: only a broken one waits that long."""


def sample_line(sample: Sample) -> str:
    return json.dumps({"sample": msgspec.to_builtins(sample)})


def trouble_line(kind: str, text: str) -> str:
    return json.dumps({"trouble": {"kind": kind, "text": text}})


def saying(*lines: str, then: str = "exit 1") -> list[str]:
    """A process that says these lines, and then runs a shell command."""
    told = [f"printf '%s\\n' {shlex.quote(line)}" for line in lines]
    return ["/bin/sh", "-c", "\n".join([*told, then])]


def in_turn(folder: Path, *commands: list[str]) -> list[str]:
    """Each start of the process runs the next of these; the last again and again."""
    count = folder / "starts"
    cases = [f"{index}) exec {shlex.join(command)};;" for index, command in enumerate(commands[:-1])]
    cases.append(f"*) exec {shlex.join(commands[-1])};;")
    counting = [f"n=$(cat {count} 2>/dev/null || echo 0)", f"echo $((n + 1)) >{count}"]
    return ["/bin/sh", "-c", "\n".join([*counting, "case $n in", *cases, "esac"])]


def until(holds: Callable[[], object]) -> None:
    """For what a process does in its time. It does not spin: the process needs the processor."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.002)


STATS: dict[str, Any] = {
    "uptime": 100.0,
    "power": {
        "rail": {"VDD_SOC": {"volt": 5000, "curr": 200, "power": 1000, "avg": 900, "online": True}},
        "tot": {"volt": 5000, "curr": 1000, "power": 5000, "avg": 4900, "online": True, "name": "VDD_IN"},
    },
    "temperature": {"cpu": {"temp": 51.5, "online": True}, "tj": {"temp": 52.0, "online": True}},
    "gpu": {"gpu": {"freq": {"cur": 612000, "max": 918000, "min": 306000}, "status": {"load": 97.5}}},
    "mem": {"RAM": {"tot": 7_800_000, "used": 3_000_000, "lfb": 100}},
    "fan": {"pwmfan": {"speed": [40.0], "rpm": [1500]}},
    "nvp": {"model": {"name": "25W", "id": 1}},
}

_JTOP = '''
import json, time
__version__ = "7.2.2"
STATS = json.loads({stats!r})

class JtopException(Exception):
    pass

class jtop:
    def __init__(self, interval):
        self.interval, self.asked = 0.05, 0

    def start(self):
        {start}

    def ok(self):
        self.asked += 1
        time.sleep(0.01)
        {ok}

    def json(self):
        return json.dumps(dict(STATS, uptime={uptime}))
'''

_CHILD = """
import sys
sys.path[:0] = {paths!r}
from edge_runtime.telemetry import jtop_child
jtop_child.SOCKET = {socket!r}
jtop_child.main(["0.05", "0.3"])
"""


def child_with(
    folder: Path, start: str = "pass", ok: str = "return True", uptime: str = "100.0 + self.asked"
) -> list[str]:
    """The real process with a jtop of these bodies, and a socket that is there."""
    folder.mkdir(exist_ok=True)
    (folder / "jtop.py").write_text(_JTOP.format(stats=json.dumps(STATS), start=start, ok=ok, uptime=uptime))
    return child_without_jtop(folder, "jtop.py")


def child_without_jtop(folder: Path, socket: str) -> list[str]:
    """With whatever jtop is in the folder. ``socket``: a name in it."""
    paths = [str(folder), str(Path(__file__).resolve().parent.parent)]
    return [sys.executable, "-S", "-c", _CHILD.format(paths=paths, socket=str(folder / socket))]
