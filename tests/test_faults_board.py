"""Sensors that vanish, freeze and lie: what becomes of them on the way to status, governor and log."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from jtop_lines import STATS, until

from edge_runtime.boards import board_named
from edge_runtime.resident import machine_memory
from edge_runtime.server.board import Trouble
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry import jtop_child
from edge_runtime.telemetry.jtop import cleaned
from edge_runtime.telemetry.monitor import Monitor
from edge_runtime.telemetry.plausible import impossible
from edge_runtime.telemetry.recording import line_of
from edge_runtime.telemetry.sample import GpuReading, MemoryReading, Rail, Sample, Throttling, Zone
from edge_runtime.telemetry.sysfs import SysfsSource
from edge_runtime.testing import FaultySource, ManualClock
from edge_runtime.testing.faults import LIES

_LARGE = tuple("9" * count for count in (18, 30, 400, 5000))
TEXTS = ("", "-1", "-99999999", *_LARGE, "nan", "inf", "1e9", "\0\0", "\u00b2", "x" * 70_000)
KINDS = (
    "in1_input", "curr1_input", "temp", "trip_point_0_temp", "type", "cur_freq", "max_freq", "load", "pwm1",
    "oc1_event_cnt", "cur_state", "max_state", "in1_label", "meminfo", "buddyinfo", "status", "nvpmodel.conf",
    "compatible",
)  # fmt: skip


def _made(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _numbers(path: Path, text: str) -> None:
    """In the forms that are looked for, so that it is not thrown out at once."""
    lines = (
        f"MemTotal: {text} kB", f"MemAvailable: {text} kB", f"Node 0, zone Normal {text} {text}", f"pmode:{text}",
        f"< POWER_MODEL ID={text} NAME=X >",
    )  # fmt: skip
    path.write_text("\n".join(lines), encoding="utf-8")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


REPLACED: dict[str, Callable[[Path], None]] = {
    "gone": lambda path: path.unlink(), "a directory": _directory, "a pipe": _pipe, "a link to itself": _loop,
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BoardTree:
    return BoardTree.build(tmp_path_factory.mktemp("board") / "board", board_named("orin-nano-8"))


def _first(tree: BoardTree, name: str) -> Path:
    return min(path for path in tree.root.rglob(name) if path.is_file())


def _read(source: SysfsSource) -> None:
    """It raises nothing, waits for nobody, and says nothing that cannot be."""
    sample = source.latest()
    if sample is not None:
        assert impossible(sample) == ""
        assert line_of(sample)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_lies_costs_its_value_and_nothing_else(built: BoardTree, name: str) -> None:
    running = SysfsSource(built.root)
    path = _first(built, name)
    before = path.read_bytes()
    whole = running.latest()
    assert whole is not None and not whole.problems
    try:
        for write in (_made, _numbers):
            for text in TEXTS:
                write(path, text)
                _read(running)
                _read(SysfsSource(built.root))
                machine_memory(built.root)
        for put in REPLACED.values():
            put(path)
            _read(running)
            _read(SysfsSource(built.root))
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            path.write_bytes(before)
    finally:
        path.write_bytes(before)
    again = SysfsSource(built.root).latest()
    assert again is not None and not again.problems


NONSENSE = (10**30, -(10**9), math.nan, math.inf, -1e300, 1e300)


@pytest.mark.parametrize("value", NONSENSE)
def test_what_jtop_says_is_bounded_field_by_field(value: float) -> None:
    lying = Sample(
        5.0, "jtop", rails=(Rail("VDD_IN", 9000), Rail("VDD_SOC", value)),  # type: ignore[arg-type]
        zones=(Zone("tj", 50.0), Zone("cpu", value)), gpu=GpuReading(value, value, value),
        memory=MemoryReading(8 << 30, value), throttling=Throttling((("oc1", value), ("oc2", 3)), (), value, 104.5),  # type: ignore[arg-type]
        fan=value,
    )  # fmt: skip
    sample = cleaned(lying, board_named("orin-nano-8"), 10.0)
    assert impossible(sample) == "" and line_of(sample)
    assert (sample.power_mw, sample.rails, sample.zones) == (9000, (Rail("VDD_IN", 9000),), (Zone("tj", 50.0),))
    assert sample.throttling.over_current_events == (("oc2", 3),) and sample.throttling.critical_trip_c == 104.5
    critical = replace(lying, throttling=Throttling(passive_trip_c=99.0, critical_trip_c=value))
    assert cleaned(critical, board_named("orin-nano-8"), 10.0).throttling == Throttling(passive_trip_c=99.0)
    assert (sample.gpu, sample.fan, sample.memory) == (GpuReading(), None, None)
    assert all("\n" not in problem and len(problem) < 120 for problem in sample.problems) and len(sample.problems) >= 7


def test_the_child_hands_on_no_value_of_another_kind() -> None:
    for key in STATS:
        for value in (None, [], "x", -1, math.nan, {"x": None}, {"x": []}):
            try:
                told = jtop_child.sample({**STATS, key: value}, 1.0)
            except (AttributeError, TypeError, KeyError):
                continue  # told as trouble, and the process ends: a new one is a new client
            assert impossible(msgspec.json.decode(json.dumps(told), type=Sample)) == ""


def _monitor(clock: ManualClock) -> tuple[FaultySource, Monitor]:
    source = FaultySource(clock)
    monitor = Monitor(source, clock=clock)
    clock.advance(100_000.0)
    monitor.poll()
    assert monitor.is_fresh and monitor.trouble is None
    return source, monitor


@pytest.mark.parametrize("name", LIES)
def test_a_source_that_lies_reaches_nobody_with_it(name: str) -> None:
    """Whoever wrote the source."""
    clock = ManualClock()
    source, monitor = _monitor(clock)
    source.lie = LIES[name]
    for _ in range(5):
        clock.advance(1.0)
        monitor.poll()
    sample = monitor.latest
    assert sample is not None and impossible(sample) == "" and sample.time_s <= clock.now_s
    assert monitor.trouble or sample.problems, "and it is told"
    assert not math.isnan(monitor.energy().joules) and monitor.energy().joules <= 5 * 9.1
    source.lie = None
    clock.advance(1.0)
    monitor.poll()
    assert monitor.is_fresh and monitor.trouble is None and monitor.latest is not None and not monitor.latest.problems


def _vanish(source: FaultySource) -> None:
    source.gone = True


def _freeze(source: FaultySource) -> None:
    source.frozen_s = 100_000.0


def _raise(source: FaultySource) -> None:
    source.raises = PermissionError(13, "Permission denied")


SILENT: dict[str, tuple[Callable[[FaultySource], None], str]] = {
    "vanished": (_vanish, "its sensors are gone"),
    "frozen": (_freeze, "nothing was read for more than 3 s"),
    "raises": (_raise, "PermissionError"),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_source_that_says_nothing_new_is_told_once_and_so_is_its_end(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    break_it, words = SILENT[name]
    clock = ManualClock()
    source, monitor = _monitor(clock)
    trouble = Trouble(monitor)
    trouble.look()
    assert not caplog.records
    with caplog.at_level(logging.INFO):
        break_it(source)
        for _ in range(20):
            clock.advance(1.0)
            monitor.poll()
            trouble.look()
        assert not monitor.is_fresh and words in (monitor.trouble or "")
        assert [words in record.message for record in caplog.records] == [True]
        source.gone, source.frozen_s, source.raises = False, None, None
        monitor.poll()
        trouble.look()
    assert len(caplog.records) == 2 and caplog.records[1].message == "telemetry trouble=over"


def test_a_poll_that_never_comes_back_is_told_by_whoever_asks() -> None:
    """A bus that hangs holds the thread that reads, and nobody else."""
    clock = ManualClock()
    _, monitor = _monitor(clock)
    clock.advance(60.0)
    assert not monitor.is_fresh and "nothing was read" in (monitor.trouble or "")


_HOLDER = """
import sys, time
from edge_runtime.telemetry.jtop import JtopSource
source = JtopSource(sys.argv[1:])
while source.latest() is None:
    time.sleep(0.01)
print("there", flush=True)
time.sleep(1000)
"""
_CHILD = """
import json, os, runpy, sys, threading, time
end = runpy.run_path(sys.argv[1])["_end_with_the_reader"]
threading.Thread(target=end, daemon=True).start()
open(sys.argv[2], "w").write(str(os.getpid()))
print(json.dumps({"sample": {"time_s": 1.0, "source": "jtop"}}), flush=True)
time.sleep(1000)
"""


def test_a_daemon_that_is_killed_leaves_no_child(tmp_path: Path) -> None:
    """The child's own way to end: with its stdin, however that ended."""
    note = tmp_path / "pid"
    child = [sys.executable, "-I", "-c", _CHILD, jtop_child.__file__, str(note)]
    with subprocess.Popen([sys.executable, "-c", _HOLDER, *child], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"there\n"
        holder.kill()
    place = Path(f"/proc/{note.read_text()}/stat")
    until(lambda: not place.exists() or ") Z " in place.read_text())
