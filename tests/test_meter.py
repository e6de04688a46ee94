"""Joules between two calls: those of the board, or none. On simulated boards' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_runtime.boards import board_named
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.meter import Meter, board_meter
from edge_runtime.telemetry.monitor import Monitor
from edge_runtime.telemetry.opening import Jtop
from edge_runtime.telemetry.sample import Sample
from edge_runtime.telemetry.sysfs import SysfsSource
from edge_runtime.testing import ManualClock


class Readings:
    """A source that a test sets."""

    name, trouble = "test", None

    def __init__(self) -> None:
        self.sample: Sample | None = None

    def latest(self) -> Sample | None:
        return self.sample

    def close(self) -> None:
        """Nothing is open."""


def test_joules_are_power_times_time() -> None:
    clock, source = ManualClock(), Readings()
    monitor = Monitor(source, clock=clock)
    meter = Meter(monitor, "a test")
    assert meter.taken_j() is None, "it was not started"
    for second in range(5):
        source.sample = Sample(float(second), "test", power_mw=10_000 + 1000 * second)
        monitor.poll()
        clock.advance(1.0)
        if second == 1:
            meter.start()  # at 2 s: 10.5 J between readings and 11 W since the last
    assert meter.taken_j() == pytest.approx(11.5 + 12.5 + 13.5 + 14.0 - 11.0)


def test_a_gap_that_nobody_read_is_not_told_as_energy() -> None:
    clock, source = ManualClock(), Readings()
    monitor = Monitor(source, clock=clock)
    source.sample = Sample(0.0, "test", power_mw=10_000)
    monitor.poll()
    meter = Meter(monitor)
    meter.start()
    clock.advance(60.0)
    source.sample = Sample(60.0, "test", power_mw=10_000)
    monitor.poll()
    assert meter.taken_j() is None


def test_a_machine_that_is_no_board_has_none_and_says_why(tmp_path: Path) -> None:
    with board_meter(tmp_path) as meter:
        meter.start()
        assert meter.taken_j() is None and "no Jetson" in meter.reason


def test_a_board_has_some(tmp_path: Path) -> None:
    tree = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"))
    assert SysfsSource(tree.root).latest() is not None
    with board_meter(tree.root, Jtop((), False)) as meter:
        meter.start()
        taken = meter.taken_j()
        assert taken is not None and taken >= 0.0 and "Orin Nano" in meter.reason
