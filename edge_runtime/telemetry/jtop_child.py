"""The only place that imports jtop, and a program of its own: one connection to its service, one sample a line.

It knows what jtop's values look like; nothing of the runtime, which it does not import and which never imports it while
it runs. So jtop's licence (AGPL), the start method that it forces on ``multiprocessing`` and its hung threads stay in
this process, which may run on another Python: the one that the service was installed for.

    {"connected": {"version": "7.2.2", "interval_s": 1.0}}
    {"sample": {"time_s": 8123.2, "source": "jtop", "rails": [...], "zones": [...], "gpu": {...}, ...}}
    {"trouble": {"kind": "no-service", "text": "..."}}        and then it ends: a new process is a new client

It ends when its stdin does.
"""

from __future__ import annotations

import getpass
import grp
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

SOCKET = "/run/jtop.sock"
_OFF_C = -256
_LONGEST_TEXT = 300
_RESTART = "sudo systemctl restart jtop"

Emit = Callable[[dict[str, Any]], None]


class Trouble(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = " ".join(text.split())[:_LONGEST_TEXT]


def main(arguments: list[str]) -> NoReturn:
    """``arguments``: the interval, and after how long without a new reading the service counts as frozen; seconds."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # jtop prints here and there

    def emit(line: dict[str, Any]) -> None:
        lines.write(json.dumps(line) + "\n")
        lines.flush()

    threading.Thread(target=_end_with_the_reader, daemon=True).start()
    try:
        watch(float(arguments[0]), float(arguments[1]), emit)
    except Trouble as trouble:
        _tell(trouble, emit)
    except Exception as problem:  # noqa: BLE001 -- whatever jtop raises is told, and this process is at its end
        _tell(trouble_of(problem), emit)
    # jtop's threads may hang, and one of them is joined at a normal exit.
    os._exit(1)


def watch(interval_s: float, frozen_s: float, emit: Emit) -> NoReturn:
    """Until something goes wrong, which is raised."""
    _check_socket()
    try:
        import jtop
    except ImportError as problem:
        text = f"jetson-stats is not installed for {sys.executable}: install the version that the service has"
        raise Trouble("not-installed", text) from problem
    client = jtop.jtop(interval=interval_s)
    client.start()
    emit({"connected": {"version": jtop.__version__, "interval_s": client.interval}})
    # The first client's interval holds for all.
    patience_s = max(frozen_s, 3.0 * client.interval)
    newest, since_s = -1.0, time.monotonic()
    while True:
        alive = client.ok()
        stats = json.loads(client.json())
        if stats["uptime"] != newest:
            newest, since_s = stats["uptime"], time.monotonic()
            emit({"sample": sample(stats, read_s(newest))})
        silent_s = time.monotonic() - since_s
        # A client whose service hangs is handed its old values again, and mostly told that all is well.
        if not alive or silent_s > patience_s:
            raise Trouble("frozen", f"the jtop service has sent nothing new for {silent_s:.1f} s: {_RESTART}")


def read_s(uptime_s: float) -> float:
    """When the service read its values, on the monotonic clock of this machine."""
    now_s = time.monotonic()  # first: a pause between both makes the values older, and never newer, than they are
    return now_s - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - uptime_s)


def sample(stats: dict[str, Any], time_s: float) -> dict[str, Any]:
    """One of jtop's readings in the runtime's words. Values that are off are left out, and ``problems`` says so."""
    problems: list[str] = []
    told: dict[str, Any] = {"time_s": time_s, "source": "jtop"}
    told["rails"] = _rails(stats.get("power") or {}, problems)
    told["zones"] = _zones(stats.get("temperature") or {}, problems)
    told["gpu"] = _gpu(stats.get("gpu") or {})
    told["power_mode"] = ((stats.get("nvp") or {}).get("model") or {}).get("name")
    told["fan"] = _fan(stats.get("fan") or {})
    told["problems"] = problems
    return told


def _rails(power: dict[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    """The one that jtop took for the total among them. Its own sum is of no use: a rail that fails drops out of it."""
    found = dict(power.get("rail") or {})
    total = power.get("tot") or {}
    if total.get("name"):
        found[total["name"]] = total
    rails = []
    for name, values in found.items():
        milliwatts = values.get("power")
        if values.get("online", True) and isinstance(milliwatts, int):
            rails.append({"name": name, "power_mw": max(0, milliwatts)})
        else:
            problems.append(f"rail {name}: off")
    return rails


def _zones(temperature: dict[str, Any], problems: list[str]) -> list[dict[str, Any]]:
    zones = []
    for name, values in temperature.items():
        if "max" in values or "crit" in values:
            continue  # of a disk or a card, which jtop shows beside the chip's
        celsius = values.get("temp")
        if not values.get("online", True) or not isinstance(celsius, int | float) or celsius == _OFF_C:
            problems.append(f"zone {name}: off")
        else:
            zones.append({"name": name, "temperature_c": float(celsius)})
    return zones


def _gpu(gpus: dict[str, Any]) -> dict[str, float]:
    told: dict[str, float] = {}
    for values in list(gpus.values())[:1]:
        clocks, load = values.get("freq") or {}, (values.get("status") or {}).get("load")
        for name, key in (("clock_mhz", "cur"), ("max_clock_mhz", "max")):
            if isinstance(clocks.get(key), int | float) and clocks[key] > 0:
                told[name] = clocks[key] / 1e3
        if isinstance(load, int | float):
            told["load"] = min(1.0, max(0.0, load / 100))
    return told


def _fan(fans: dict[str, Any]) -> float | None:
    speeds = [speed for values in fans.values() for speed in (values.get("speed") or [])]
    return min(1.0, max(0.0, speeds[0] / 100)) if speeds and isinstance(speeds[0], int | float) else None


def trouble_of(problem: Exception) -> Trouble:
    """What is behind an exception of jtop's, and what to do."""
    text = str(problem) or type(problem).__name__
    if isinstance(problem, EOFError | BrokenPipeError | ConnectionResetError) or "connection" in text:
        why = "it ends with code 0 when a reading fails, which systemd does not restart"
        return Trouble("lost", f"the jtop service is gone ({why}): {_RESTART}")
    if type(problem).__name__ == "Empty":
        return Trouble("frozen", f"the jtop service does not answer: {_RESTART}")
    if "ismatch" in text or "uthentication" in text:
        return Trouble("version", f"{text.split('. Please')[0]}: install the same version for both")
    if "not active" in text:
        return Trouble("no-service", f"nobody answers at {SOCKET}: the jtop service has ended: {_RESTART}")
    if "access" in text or isinstance(problem, PermissionError):
        return Trouble("no-access", _no_access())
    return Trouble("failed", f"jtop: {type(problem).__name__}: {text}")


def _check_socket() -> None:
    """Before jtop is imported: its own words for these are one and the same."""
    if not os.path.exists(SOCKET):
        raise Trouble("no-service", f"{SOCKET} is not there: the jtop service does not run: {_RESTART}")
    if not os.access(SOCKET, os.R_OK | os.W_OK):
        raise Trouble("no-access", _no_access())


def _no_access() -> str:
    try:
        group, user = grp.getgrgid(os.stat(SOCKET).st_gid).gr_name, getpass.getuser()
    except (KeyError, OSError):
        group, user = "jtop", "USER"
    return f"no right to {SOCKET}: sudo usermod -aG {group} {user}, and log in again"


def _tell(trouble: Trouble, emit: Emit) -> None:
    with suppress(OSError):  # the reader has gone
        emit({"trouble": {"kind": trouble.kind, "text": trouble.text}})


def _end_with_the_reader() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
