"""``edge-runtime simulate``: a governor on boards that are not there. Knows what to ask and to show, no more."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ..bench.compare.plot import check_plot
from ..boards import BOARDS, board_named
from ..console import counted, plain_console
from ..files import replace_text
from ..parameters import MOST_SEED, Finite, Place, Whole, Written, refuse_useless
from ..simulator.loop import simulated
from ..simulator.pilot import Constant, Governed, Pilot
from ..simulator.plot import plot
from ..simulator.scenario import MOST_DRAFTS, board_scenario
from ..simulator.study import FIXED_K, Finding, Floor, floors, study
from ..simulator.verdict import judged
from .progress import long_progress
from .simulate_tables import (
    SWITCHED_OFF,
    changes_table,
    course,
    floors_table,
    held_table,
    plants_line,
    verdict_rows,
)

_DEFAULT_LIMIT_C = 90.0
_DEFAULT_MINUTES = 20.0
_LIVE_MINUTES = 2.0
_SECONDS_A_MINUTE = 0.15
"""Of a core, for a minute of a random plant and for the search beside it: to say beforehand how long a study takes."""
_WORTH_SAYING_S = 20.0
_OF_ONE_BOARD = ("board", "ambient", "temperature_limit", "power_limit", "without_governor", "plot_path")


@click.command()
@click.option("--board", default="orin-nano-8", show_default=True, metavar="NAME",
              help=f"One of {', '.join(board.name for board in BOARDS)}.")  # fmt: skip
@click.option("--ambient", type=Finite(-40.0, 100.0, "degrees Celsius"), default=25.0, show_default=True, metavar="C",
              help="Temperature of the air.")  # fmt: skip
@click.option("--minutes", type=Finite(0.5, 600.0, "minutes"), metavar="N",
              help=f"Of the board's time.  [default: {_DEFAULT_MINUTES:g}; with --bundle {_LIVE_MINUTES:g}]")
@click.option("--temperature-limit", type=Finite(30.0, 105.0, "degrees Celsius"), default=_DEFAULT_LIMIT_C,
              show_default=True, metavar="C", help="What the governor is to keep.")  # fmt: skip
@click.option("--power-limit", type=Finite(1.0, 200.0, "watts"), metavar="W",
              help="The same.  [default: what the board's default mode is named after]")  # fmt: skip
@click.option("--without-governor", is_flag=True, help=f"K={FIXED_K} without waits: the hardware is on its own.")
@click.option(
    "--seed", type=Whole(0, MOST_SEED), default=1, show_default=True, help="Of texts and of what sensors err by."
)
@click.option("--plants", type=Whole(1, 1_000_000), metavar="N",
              help="Instead of a board: so many random plants, of which the governor knows nothing. Some 3 s of a core "
                   "for 20 minutes of one.")  # fmt: skip
@click.option("--bundle", metavar="DIR", type=Place(exists=True, file_okay=False),
              help="Instead of made-up steps: the real daemon serves it, and the real jtop service reads the board. "
                    "In real time; needs root, util-linux, a C compiler and jetson-stats.")  # fmt: skip
@click.option("--plot", "plot_path", type=Written(), help="Draw it: a .svg, .png or .pdf file.")
@click.option("--json", "json_path", type=Written(), help="Write the figures here.")
@click.option("--strict", is_flag=True, help="Exit code 1 where something was not held.")
@click.pass_context
def simulate(said: click.Context, /, **given: Any) -> None:
    """Run the governor against a simulated board, or against many random plants. Nothing here was measured."""
    console = plain_console(None if sys.stdout.isatty() else 100)
    if given["bundle"] is not None:
        refuse_useless(said, "--bundle runs the daemon as it is", ("plants", "plot_path", "without_governor"))
    if given["plants"] is not None:
        refuse_useless(said, "--plants makes many, each with a board and limits of its own", _OF_ONE_BOARD)
    if given["minutes"] is None:
        given["minutes"] = _DEFAULT_MINUTES if given["bundle"] is None else _LIVE_MINUTES
    if given["plot_path"] is not None:
        check_plot(given["plot_path"])
    if given["bundle"] is not None:
        held = _live(console, given)
    elif given["plants"] is not None:
        held = _many(console, given)
    else:
        held = _one(console, given)
    if given["strict"] and not held:
        raise SystemExit(1)


def _live(console: Console, given: dict[str, Any]) -> bool:
    from .simulate_live import live

    board = board_named(given["board"])
    watts = given["power_limit"] or board.default.budget_w
    seconds = round(60.0 * given["minutes"])
    with long_progress("the daemon on a board, seconds", seconds) as told:
        return live(
            console, given["bundle"], board, given["ambient"], given["temperature_limit"], watts,
            60.0 * given["minutes"], given["seed"], given["json_path"], lambda share: told(int(share * seconds)),
        )  # fmt: skip


def _one(console: Console, given: dict[str, Any]) -> bool:
    board = board_named(given["board"])
    watts = given["power_limit"] or board.default.budget_w
    scenario = board_scenario(
        board.name, given["ambient"], 60.0 * given["minutes"], given["temperature_limit"],
        None if watts is None else round(1e3 * watts), given["seed"],
    )  # fmt: skip
    pilot: Pilot = Constant(FIXED_K) if given["without_governor"] else Governed(MOST_DRAFTS)
    who = f"K={FIXED_K} without a governor" if given["without_governor"] else "the governor"
    title = (
        f"{board.title} ({board.default.name}) at {given['ambient']:g} C, {counted(given['minutes'], 'minute')}, {who}"
    )
    trace = simulated(scenario, pilot)
    verdict = judged(trace)
    console.print(f"SIMULATION, no board was measured: {title}")
    console.print(course(trace))
    if trace.off_s is not None:
        warmest_c = max(moment.temperature_c for moment in trace.moments)
        console.print(f"{SWITCHED_OFF}, after {trace.off_s:.1f} s, at {warmest_c:.0f} C", style="red")
    if not given["without_governor"]:
        console.print(changes_table(trace.changes))
    table, held = held_table(verdict_rows(verdict, scenario))
    console.print(table)
    if given["plot_path"] is not None:
        plot(trace, given["plot_path"], title)
    if given["json_path"] is not None:
        moments = [asdict(moment) for moment in trace.moments]
        _write(
            given["json_path"],
            {"simulated": title, "verdict": asdict(verdict), "changes": trace.changes, "moments": moments},
        )
    return held


def _many(console: Console, given: dict[str, Any]) -> bool:
    minutes, count = given["minutes"], given["plants"]
    seeds = range(given["seed"], given["seed"] + count)
    expected_s = _SECONDS_A_MINUTE * minutes * count
    if expected_s > _WORTH_SAYING_S:
        of = f"{counted(count, 'plant')} of {counted(minutes, 'minute')}"
        click.echo(f"{of}: some {expected_s / 60.0:.1f} minutes of a core", err=True)
    with long_progress("plants", count) as told:
        done = iter(range(1, count + 1))
        findings = study(seeds, 60.0 * minutes, lambda finding: told(next(done)))
    asked = floors(findings)
    console.print(
        f"SIMULATION, no board was measured: {counted(count, 'random plant')} (seeds {seeds[0]} to {seeds[-1]}), "
        f"{counted(minutes, 'minute')} each, the governor knows none of their parameters",
    )
    console.print(floors_table(asked))
    console.print(plants_line(findings))
    if given["json_path"] is not None:
        _write(given["json_path"], _figures(findings, asked))
    return all(floor.held for floor in asked)


def _figures(findings: Sequence[Finding], asked: Sequence[Floor]) -> dict[str, Any]:
    return {
        "simulated": "random plants",
        "floors": [{**asdict(floor), "held": floor.held} for floor in asked],
        "plants": [asdict(finding) for finding in findings],
    }


def _write(path: Path, figures: dict[str, Any]) -> None:
    replace_text(path, json.dumps(figures, indent=1) + "\n")
