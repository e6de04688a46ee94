"""``edge-runtime soak``: the daemon under everything, for hours. Knows what to ask and to show, and leaves the rest to
``bench.soak``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from ..bench.machine import machine
from ..bench.records import command, started
from ..bench.soak.figures import Quarters, SoakFigures, summed_up
from ..bench.soak.plan import SoakPlan, soak_plan
from ..bench.soak.record import SCHEMA, Record, Settings, read_lines
from ..bench.soak.run import soak as run_soak
from ..bench.soak.stage import staged
from ..bench.soak.verdicts import unjudged, verdicts
from ..boards import BOARDS, Board, board_named
from ..bundle import read_manifest, verify_files
from ..console import counted, ends_tidily, plain_console, shown
from ..cores import usable_cores
from ..errors import ConfigError
from ..parameters import MOST_SEED, MOST_THREADS, Finite, Kept, Place, Whole, refuse_useless

_OUTCOMES = ("right", "left", "refused", "wrong", "lost")


@click.command()
@click.option("--bundle", type=Place(exists=True, file_okay=False), metavar="DIR",
              help="What the daemon serves.")  # fmt: skip
@click.option("--minutes", type=Finite(1.0, 100_000.0, "minutes"), default=120.0, show_default=True,
              help="Of load; rests come on top.")  # fmt: skip
@click.option("--lap", type=Finite(0.5, 60.0, "minutes"), default=5.0, show_default=True, metavar="MINUTES",
              help="In which everything happens once; at rest behind it memory, descriptors and speed are looked at.")
@click.option("--clients", type=Whole(1, 11), metavar="N", default=4, show_default=True,
              help="That ask at once, with pauses.")  # fmt: skip
@click.option("--threads", type=Whole(1, MOST_THREADS), metavar="N", default=usable_cores(), show_default=True,
              help="Of the daemon.")  # fmt: skip
@click.option("--board", default="orin-nano-8", show_default=True, metavar="NAME",
              help=f"That is simulated: one of {', '.join(board.name for board in BOARDS)}.")  # fmt: skip
@click.option("--telemetry", type=click.Choice(["sysfs", "jtop"]), default="sysfs", show_default=True,
              help="How the daemon reads the board; jtop: by the real service.")  # fmt: skip
@click.option("--temperature-limit", type=Finite(55.0, 90.0, "degrees Celsius"), default=60.0, show_default=True,
              metavar="C", help="What the governor is to keep.")  # fmt: skip
@click.option(
    "--seed",
    type=Whole(0, MOST_SEED),
    default=1,
    show_default=True,
    help="Of who asks what, and of what sensors err by.",
)
@click.option("--record", "record_path", type=Kept(), metavar="FILE",
              help="Write all that happens here, a line of JSON each, as it comes.")  # fmt: skip
@click.option("--show", "shown", type=Place(exists=True, dir_okay=False), metavar="FILE",
              help="Run nothing: sum up such a file, also one that breaks off.")  # fmt: skip
@click.pass_context
def soak(said: click.Context, /, **given: Any) -> None:
    """Put the real daemon on a simulated board through hours of mixed load, reloads, heat and want of memory, and hold
    what it promises. Exit code 1 where something was missed. Needs root, util-linux and a C compiler."""
    console = plain_console(None if sys.stdout.isatty() else 120)
    if given["shown"] is not None:
        refuse_useless(said, "--show runs nothing", set(given) - {"shown"})
        raise SystemExit(0 if _show(console, given["shown"]) else 1)
    if given["bundle"] is None:
        raise ConfigError("--bundle DIR says what the daemon is to serve")
    board = board_named(given["board"])
    verify_files(given["bundle"], read_manifest(given["bundle"]), hashes=False)
    plan = soak_plan(
        given["minutes"], given["lap"], given["clients"], given["threads"], given["temperature_limit"], given["seed"]
    )
    with tempfile.TemporaryDirectory(prefix="edge-soak-") as folder:
        path = given["record_path"] or Path(folder) / "record.jsonl"
        run(Path(folder), given["bundle"], board, given["telemetry"], plan, path)
        met = _show(console, path)
    raise SystemExit(0 if met else 1)


def run(folder: Path, bundle: Path, board: Board, telemetry: str, plan: SoakPlan, path: Path) -> None:
    """``folder``: for the board. Raises ``EdgeError`` for what keeps it from beginning; Ctrl-C ends it early."""
    settings = Settings(
        SCHEMA, command(), started(), machine(), bundle.name, plan.minutes, plan.lap_s, plan.clients, plan.sessions,
        plan.threads, board.name, telemetry, plan.limit_c, plan.seed,
    )  # fmt: skip
    # The record last: an older one stays where there is nothing to write down.
    with ends_tidily(), staged(folder, bundle, board, telemetry, plan) as stage, Record(path) as record:
        record.add(settings)
        try:
            with _telling() as told:
                asyncio.run(run_soak(stage, plan, record, told))
        except KeyboardInterrupt:
            click.echo("stopped: what came before is summed up", err=True)


class _telling:
    """A line that says what is done now, on a terminal."""

    def __enter__(self) -> Callable[[str, float], None]:
        console = plain_console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn())
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._bars.start()
        task = self._bars.add_task("begins", total=1.0)
        return lambda what, share: self._bars.update(task, description=what, completed=min(1.0, share))

    def __exit__(self, *unused: object) -> None:
        self._bars.stop()


def _show(console: Console, path: Path) -> bool:
    """Whether nothing was missed."""
    figures = summed_up(read_lines(path))
    settings = figures.settings
    _say(
        console,
        f"SIMULATED BOARD ({settings.board}, read by {settings.telemetry}), real daemon: {settings.bundle}, "
        f"{counted(settings.clients, 'client')}, {counted(settings.sessions, 'session')}, "
        f"{counted(settings.threads, 'thread')}; {settings.started}; {figures.seconds / 60:.1f} minutes, "
        f"{counted(len(figures.checkpoints), 'lap')}; {figures.ended}",
    )
    if figures.pauses:
        console.print(
            f"the soak itself was held up {counted(len(figures.pauses), 'time')}, {sum(figures.pauses):.0f} s in all "
            "(stopped, starved, or the machine slept): no time of an answer then counts"
        )
    console.print(_requests(figures))
    console.print(_times(figures))
    met = True
    for verdict in verdicts(figures):
        met = met and verdict.met
        _say(console, str(verdict), style=None if verdict.met else "red")
    for what in unjudged(figures):
        _say(console, f"not judged: {what}")
    return met


def _say(console: Console, line: str, style: str | None = None) -> None:
    """The daemon's log and its texts are in it, and a file that anybody may have written."""
    console.print(shown(line), style=style)


def _requests(figures: SoakFigures) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("asked for", *_OUTCOMES):
        table.add_column(column, justify="left" if column == "asked for" else "right")
    for kind, counts in sorted(figures.outcomes.items()):
        table.add_row(shown(kind), *(str(counts[outcome]) for outcome in _OUTCOMES))
    done = ", ".join(f"{count}x {what}" for what, count in figures.happenings.items())
    table.caption = shown(f"done to it: {done}") if done else None
    return table


def _times(figures: SoakFigures) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("p95", "first quarter", "last quarter", "last over first"):
        table.add_column(column, justify="left" if column == "p95" else "right")
    rows: tuple[tuple[str, Quarters | None], ...] = (
        ("under load: first token, ms", figures.ttft),
        ("under load: later token, ms", figures.tpot),
        ("at rest: first token, ms", figures.probe_ttft),
        ("at rest: later token, ms", figures.probe_tpot),
        ("at rest: processor time, ms", figures.probe_work),
    )
    for name, found in rows:
        if found is not None:
            first, last, ratio = found.first, found.last, found.ratio
            table.add_row(
                name, *(f"{1e3 * one.median:.1f} [{1e3 * one.low:.1f}, {1e3 * one.high:.1f}]" for one in (first, last)),
                f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
            )  # fmt: skip
    return table
