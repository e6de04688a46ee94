"""``edge-runtime plan``: what a bundle needs in memory, before anything is loaded. Asks and shows; reckons nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..bench.residence import measure
from ..boards import BOARDS, board_named
from ..bundle import TARGET, Manifest, read_manifest, size_problems
from ..config import BudgetConfig, Config, EngineConfig, Overrides, read_config
from ..console import counted, plain_console
from ..engines.engine_record import RECORD_NAME
from ..errors import BundleError, ConfigError, EdgeError
from ..loading import load_of
from ..memory import Plan, Room, shown
from ..memory import plan as plan_memory
from ..needs import Load, Needs
from ..parameters import MOST_TOKENS, Place, Whole
from ..resident import Resident
from ..schema import plain
from ..server.preparing import board_room, machine_room, settings_of
from ..telemetry.recording import read_recording

_THIS = "this"
_MISFIT = 1


@click.command()
@click.option(
    "--bundle",
    metavar="DIR",
    type=Place(),
    help="Bundle to load.  [default: that of the configuration]",
)
@click.option(
    "--board",
    metavar="NAME",
    default=_THIS,
    show_default=True,
    help="Where: " + ", ".join(board.name for board in BOARDS) + ", or the machine that this runs on.",
)
@click.option("--context", type=Whole(1, MOST_TOKENS), metavar="N", help="Tokens of prompt and answer together.")
@click.option("--sessions", type=Whole(1, 256), metavar="M", help="Slots of the KV arena.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Where the engines run.  [default: as configured; without a configuration cpu]",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=Place(),
    help="Configuration of the daemon, whose engine and budget are planned; options go first.",
)
@click.option(
    "--measure",
    "measured",
    is_flag=True,
    help="Also load it here, in a process of its own, and show the peak beside the plan's.",
)
@click.option("--json", "as_json", is_flag=True, help="All of it, as a JSON object.")  # fmt: skip
def plan(bundle: Path | None, board: str, config_path: Path | None, measured: bool, as_json: bool, **given: Any) -> int:
    """What a bundle takes of a device's memory, and what to change where it does not fit.

    The manifest is enough for it; of files that lie beside it, the sizes must be right. Where TensorRT engines are
    built, they are what is reckoned with.

    Exit code 0: it fits; 1: it does not; 2: something that was given is wrong.
    """
    config = _config(bundle, config_path)
    engine = replace(config.engine, **{key: value for key, value in given.items() if value is not None})
    manifest = read_manifest(Path(config.bundle))
    load = load_of(manifest, settings_of(engine), Path(config.bundle))
    found = plan_memory(manifest, load, _room(board, config.budget))
    problems = size_problems(Path(config.bundle), manifest)
    if not as_json:
        _show(manifest, found)
    seen = None
    try:
        _refuse(problems)
        if not as_json:
            _show_verdict(found)
        if measured:
            seen = _measured(replace(config, engine=engine), found)
    finally:
        # With what went wrong behind it: what was reckoned is right all the same.
        if as_json:
            told = {"fits": found.fits, **plain(found), **_sums(found), "problems": problems, "measured": plain(seen)}
            click.echo(json.dumps(told, indent=2))
    if not as_json:
        _show_measured(found.needs, seen)
    return 0 if found.fits else _MISFIT


def _refuse(problems: tuple[str, ...]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BundleError(f"{problems[0]}{more}")


def _measured(config: Config, found: Plan) -> Resident | None:
    """Raises ``EdgeError``, unless it is said already that it does not fit."""
    try:
        return measure(config)
    except EdgeError as problem:
        if found.fits:
            raise
        click.echo(f"not measured: {problem}", err=True)
        return None


def _config(bundle: Path | None, path: Path | None) -> Config:
    """Raises ``ConfigError``."""
    if path is not None:
        config = read_config(path, Overrides(bundle=bundle))
        if config.budget.recording is not None:
            read_recording(Path(config.budget.recording))  # the daemon would not start without it
        return config
    if bundle is None:
        raise ConfigError("give --bundle or --config")
    return Config(str(bundle), EngineConfig())


def _room(board: str, budget: BudgetConfig) -> Room:
    """Raises ``ConfigError``."""
    if board != _THIS:
        return board_room(board_named(board), budget)
    room = machine_room(budget)
    if room is None:
        raise ConfigError("/proc/meminfo does not tell this machine's memory: name a board with --board")
    return room


def _sums(found: Plan) -> dict[str, int]:
    needs, room = found.needs, found.room
    return {
        "loading_bytes": needs.loading,
        "loaded_bytes": needs.loaded,
        "peak_bytes": needs.peak,
        "allowed_bytes": room.allowed,
        "left_bytes": found.left,
    }


def _show(manifest: Manifest, found: Plan) -> None:
    from rich.table import Table

    load, needs, room = found.load, found.needs, found.room
    console = plain_console()
    sessions = counted(load.sessions, "session")
    table = Table(title=f"{manifest.name} on {room.name}, {load.device}: {sessions} of {load.context} tokens")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for what, size in _lines(load, needs):
        table.add_row(what, shown(size))
    table.add_section()
    table.add_row("peak while loading", shown(needs.loading))
    table.add_row("peak in all", shown(needs.peak))
    table.add_row(f"allowed ({_allowed(room)})", shown(room.allowed))
    table.add_row("left to the system" if found.fits else "left to the system, were it loaded", shown(found.left))
    console.print(table)
    console.print(
        "Peak in all: the sum of the lines above, or the peak while loading where that is more. While loading, "
        "scratch, logits, tokenizer, earlier texts and grammars are not there yet, and one matrix is there twice."
    )
    if needs.looked_up:
        console.print(f"Not counted: {shown(needs.looked_up)} of tables that are read a few rows at a time.")
    console.print(_basis(manifest, load, needs), soft_wrap=True, markup=False)
    if load.device == "cuda":
        console.print("Figures of CUDA are reckoned, not measured on a board.")


def _basis(manifest: Manifest, load: Load, needs: Needs) -> str:
    """Where the figures come from."""
    if load.built is not None:
        return f"Reckoned from {RECORD_NAME}: engines that were built on {load.built.where}."
    if load.not_built is not None:
        return f"A guess from the manifest, with assumed factors: {load.not_built}."
    if needs.exact:
        return "Reckoned from the manifest."
    if manifest.model(TARGET).dialect == "ort":
        return "A guess: this bundle does not say what its graphs need. Export it again for exact figures."
    return "A guess from the manifest, with assumed factors."


def _show_verdict(found: Plan) -> None:
    if found.fits:
        click.echo("It fits.")
        return
    click.echo(f"It does not fit: {_short(found)}. What would change that:")
    for change in found.changes:
        click.echo(f"  {change.what}: {shown(change.peak)}, {'fits' if change.fits else 'does not fit'}")


def _short(found: Plan) -> str:
    room, peak = found.room, found.needs.peak
    over = f"{shown(peak - room.allowed)} too much"
    if peak + room.reserve > room.available:
        return over
    # "left to the system" is then a large number, and says nothing.
    return f"{over} for budget.memory_gb, though {room.name} has the room"


def _show_measured(needs: Needs, seen: Resident | None) -> None:
    if seen is None:
        return
    planned = max(needs.loading, needs.loaded)
    click.echo(
        f"Measured: peak {shown(seen.peak)} resident ({shown(seen.anonymous)} of it its own, the rest mapped), without "
        f"grammars; planned {shown(planned)}, {100 * (planned / seen.peak - 1):+.1f}%."
    )


def _allowed(room: Room) -> str:
    if room.allowed < room.budgeted:
        return f"{shown(room.available)} available less {shown(room.reserve)} in reserve"
    if room.budget is not None:
        return "the configured budget"
    return f"{shown(room.total)} in all less {shown(room.reserve)} in reserve"


def _lines(load: Load, needs: Needs) -> list[tuple[str, int]]:
    found = []
    for one in needs.models:
        found += [
            (f"{one.role}: weights", one.weights),
            (f"{one.role}: mapped files", one.mapped),
            (f"{one.role}: KV cache", one.kv),
            (f"{one.role}: hidden rows", one.hidden),
            (f"{one.role}: scratch", one.scratch),
            (f"{one.role}: logits", one.logits),
        ]
    found += [
        ("earlier texts", needs.suffix),
        ("tokenizer", needs.tokenizer),
        ("grammars, from the first structured answer on", needs.grammar),
        ("process and libraries", needs.process),
    ]
    return [(what, size) for what, size in found if size]
