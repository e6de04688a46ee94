"""A soak of seconds on the tiny bundle: every kind of request and of what happens to a daemon, and a record that says
so. Needs what ``test_telemetry_real_jtop`` needs of the machine, and is skipped as that is."""

from __future__ import annotations

from pathlib import Path

import tiny_bundle as tiny
from test_telemetry_real_jtop import _possible  # noqa: F401 - the same conditions

from edge_runtime.bench.soak.figures import summed_up
from edge_runtime.bench.soak.mix import Sizes
from edge_runtime.bench.soak.plan import LAP, SoakPlan
from edge_runtime.bench.soak.record import read_lines
from edge_runtime.bench.soak.verdicts import verdicts
from edge_runtime.boards import board_named
from edge_runtime.cli.soak import run

SHORT = SoakPlan(
    minutes=0.05, laps=1, lap_s=4.0, clients=4, sessions=2, threads=1, context=1024, think_s=0.2, hold_s=0.3, probes=2,
    crowd=12, queue=6, limit_c=60.0, air_c=25.0, warm_c=40.0, hot_c=100.0, patience_s=120.0, seed=1,
    sizes=Sizes(tokens=16, document=240, formed=96, each=2),
)  # fmt: skip


def test_all_that_happens_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    run(tmp_path, tiny.bundle(), board_named("orin-nano-8"), "sysfs", SHORT, path)
    figures = summed_up(read_lines(path))
    assert figures.ended == "complete" and figures.checkpoints
    assert set(figures.happenings) == set(LAP)
    missed = [str(verdict) for verdict in verdicts(figures) if not verdict.met]
    assert not missed, missed
