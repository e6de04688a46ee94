"""``edge-runtime simulate --bundle``: the real daemon on a simulated board, as tables. Knows what to show, no more."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.live import LiveRun, run_live, small_plant
from ..boards import Board
from ..simulator.series import sparkline
from ..simulator.tree import BoardTree
from ..simulator.verdict import OVER_C, OVER_S, POWER_SHARE

_COLUMNS = 60
_Bars = Callable[[float], None]


def live(
    console: Console, bundle: Path, board: Board, ambient_c: float, limit_c: float, cap_w: float | None, seconds: float,
    json_path: Path | None, progress: _Bars,
) -> bool:  # fmt: skip
    """Whether all was held."""
    with tempfile.TemporaryDirectory(prefix="edge-board-") as folder:
        run = run_live(
            bundle, BoardTree.build(Path(folder) / "board", board), small_plant(board, ambient_c), limit_c=limit_c,
            cap_mw=None if cap_w is None else round(1e3 * cap_w), seconds=seconds, progress=progress,
        )  # fmt: skip
    console.print(
        f"SIMULATION, no board was measured: the daemon serves {bundle} on a simulated {board.title} at "
        f"{ambient_c:g} C, read through {run.source}; its heat sink is made small, so that seconds are enough",
        highlight=False,
    )
    console.print(_course(run), highlight=False)
    console.print(_changes(run), highlight=False)
    table, held = _held(run)
    console.print(table, highlight=False)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")
    return held


def _course(run: LiveRun) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(f"{run.moments[-1].time_s:.0f} s", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("lowest", justify="right")
    table.add_column("highest", justify="right")
    every = -(-len(run.moments) // _COLUMNS)
    shown = run.moments[::every]
    for name, values, form in (
        ("die, C", [one.temperature_c for one in shown], "{:.1f}"),
        ("power, W", [one.power_w for one in shown], "{:.1f}"),
        ("GPU, MHz", [one.clock_mhz for one in shown], "{:.0f}"),
        ("busy share", [one.duty for one in shown], "{:.2f}"),
    ):
        low, high = min(values), max(values)
        table.add_row(name, sparkline(values, low, high), form.format(low), form.format(high))
    return table


def _changes(run: LiveRun) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("s", justify="right")
    table.add_column("state")
    table.add_column("reason")
    for time_s, state, reason in run.changes[:_COLUMNS]:
        table.add_row(f"{time_s:.1f}", state, Text(reason))
    return table


def _held(run: LiveRun) -> tuple[Table, bool]:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("", "figure", "wanted", ""):
        table.add_column(name)
    rows = []
    if run.over_c is not None and run.over_s is not None:
        rows.append(("temperature over its limit", f"{run.over_c:+.2f} C", f"<= {OVER_C:g} C", run.over_c <= OVER_C))
        rows.append(("longest time over it", f"{run.over_s:.1f} s", f"<= {OVER_S:g} s", run.over_s <= OVER_S))
    if run.over_power is not None:
        most = POWER_SHARE - 1.0
        wanted = f"<= {most:.0%}"
        rows.append(("ten seconds' power over its cap", f"{run.over_power:+.1%}", wanted, run.over_power <= most))
    for name, figure, wanted, held in rows:
        table.add_row(name, figure, wanted, "held" if held else "NOT HELD")
    joules = "-" if run.joules_per_token is None else f"{run.joules_per_token:.2f} J by the plant's power"
    table.add_row("tokens a second", f"{run.tokens_per_s:.1f}", "", "")
    table.add_row("energy of a token", joules, "", "")
    table.add_row("requests refused", str(run.moments[-1].refused), "", "")
    return table, all(held for *_, held in rows)
