"""``edge-runtime simulate --bundle``: the real daemon on a simulated board, as tables. Knows what to show, no more."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..bench.live import LiveRun, run_live, small_plant
from ..boards import Board
from ..bundle import read_manifest, verify_files
from ..console import ends_tidily
from ..files import replace_text
from ..simulator.tree import BoardTree
from .simulate_tables import SWITCHED_OFF, Row, changes_table, held_table, limit_rows, lines_table, off_rows

_COLUMNS = 60
_Bars = Callable[[float], None]


def live(
    console: Console, bundle: Path, board: Board, ambient_c: float, limit_c: float, cap_w: float | None, seconds: float,
    seed: int, json_path: Path | None, progress: _Bars,
) -> bool:  # fmt: skip
    """Whether all was held. Raises ``BundleError`` for a bundle that no daemon would serve."""
    # Before a board is built and a daemon started that would only say the same.
    verify_files(bundle, read_manifest(bundle), hashes=False)
    with ends_tidily(), tempfile.TemporaryDirectory(prefix="edge-board-") as folder:
        run = run_live(
            bundle, BoardTree.build(Path(folder) / "board", board), small_plant(board, ambient_c), limit_c=limit_c,
            cap_mw=None if cap_w is None else round(1e3 * cap_w), seconds=seconds, seed=seed,
            progress=progress,
        )  # fmt: skip
    console.print(
        f"SIMULATION, no board was measured: the daemon serves {bundle} on a simulated {board.title} at "
        f"{ambient_c:g} C, read through {run.source}; its heat sink is made small, so that seconds are enough",
    )
    console.print(_course(run))
    if run.switched_off:
        console.print(SWITCHED_OFF, style="red")
    console.print(changes_table(run.changes))
    table, held = held_table(_rows(run))
    console.print(table)
    if json_path is not None:
        replace_text(json_path, json.dumps(asdict(run), indent=1) + "\n")
    return held


def _course(run: LiveRun) -> Table:
    shown = run.moments[:: -(-len(run.moments) // _COLUMNS)]
    return lines_table(
        f"{run.moments[-1].time_s:.0f} s",
        (
            ("die, C", [one.temperature_c for one in shown], "{:.1f}"),
            ("power, W", [one.power_w for one in shown], "{:.1f}"),
            ("GPU, MHz", [one.clock_mhz for one in shown], "{:.0f}"),
            ("busy share", [one.duty for one in shown], "{:.2f}"),
        ),
    )


def _rows(run: LiveRun) -> list[Row]:
    joules = "-" if run.joules_per_token is None else f"{run.joules_per_token:.2f}, by the plant's power"
    return [
        *limit_rows(run.limit_c, run.over_c, run.over_s, run.power_share),
        *off_rows(run.switched_off),
        Row("tokens a second", f"{run.tokens_per_s:.1f}"),
        Row("joules a token", joules),
        Row("requests refused", str(run.moments[-1].refused)),
    ]
