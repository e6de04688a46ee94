"""The daemon on a simulated board through the real jtop service: what it reads, and what it does when the board is hot.
Needs what ``test_telemetry_real_jtop`` needs, and is skipped as that is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jtop_lines import until
from test_telemetry_real_jtop import _possible  # noqa: F401 - the same conditions
from tiny_bundle import bundle_without_draft

from edge_runtime.bench.live import LiveRun, Moment, daemon_on
from edge_runtime.boards import board_named
from edge_runtime.client.results import EdgeRuntimeError
from edge_runtime.simulator.namespace import BoardNamespace, JtopService
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.sample import GpuReading, Sample, Zone


def shown(temperature_c: float) -> Sample:
    return Sample(0.0, "plant", 9000, zones=(Zone("tj", temperature_c),), gpu=GpuReading(612.0, load=0.5))


def test_a_board_that_is_too_hot_stops_the_daemon_and_one_that_has_cooled_lets_it_go_on(tmp_path: Path) -> None:
    tree = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"))
    tree.show(shown(45.0))
    with BoardNamespace(tree) as place:
        service = JtopService(place)
        try:
            with daemon_on(place, bundle_without_draft(), 80.0, None, "jtop") as client:
                until(lambda: client.status().board.throttle_state in ("warm", "normal"))
                board = client.status().board
                assert (board.power_mw, board.temperature_c, board.source) == (9000, 45.0, "jtop")
                tree.show(shown(96.0))
                until(lambda: client.status().board.throttle_state == "critical")
                with pytest.raises(EdgeRuntimeError) as refused:
                    client.complete("a b c", max_tokens=4)
                assert refused.value.status == 503 and (refused.value.retry_after_s or 0.0) >= 1.0
                assert "temperature" in str(refused.value) and "80 C" in str(refused.value)
                assert client.status().budget.admit is False
                tree.show(shown(50.0))
                until(lambda: bool(client.status().budget.admit))
                done = client.complete("a b c", max_tokens=4)
                assert done.usage is not None and done.usage.joules is not None and done.usage.joules >= 0.0
        finally:
            service.kill()


def test_no_board_is_left_behind(tmp_path: Path) -> None:
    """In the midst of it, whatever it is at then: the daemon, its board and the folder are gone."""
    command = [sys.executable, "-m", "edge_runtime", "simulate", "--bundle", str(bundle_without_draft())]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL) as running:
        until(lambda: running.poll() is not None or any(tmp_path.glob("edge-board-*/board/serve.log")))
        running.terminate()
        assert running.wait() == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_run() -> None:
    temperatures = [70.0, 79.0, 80.5, 80.9, 79.0, 80.2, 79.5]
    moments = tuple(Moment(float(at), one, 10.0, 612.0, 0.5, "warm", 3 * at, 0) for at, one in enumerate(temperatures))
    run = LiveRun(80.0, None, moments, (), None, "jtop")
    assert run.over_c == pytest.approx(0.9) and run.over_s == 1.0 and run.tokens_per_s == 3.0


def test_a_cap_is_a_mean_over_ten_seconds() -> None:
    watts = [10.0] * 10 + [30.0] * 5 + [5.0] * 10
    moments = tuple(Moment(at + 1.0, 50.0, one, 612.0, 0.5, "warm", 0, 0) for at, one in enumerate(watts))
    run = LiveRun(None, 18.0, moments, (), None, "jtop")
    assert run.power_share == pytest.approx((5 * 10 + 5 * 30) / 10 / 18.0) and run.over_c is None
