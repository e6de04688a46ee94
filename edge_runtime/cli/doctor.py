"""``edge-runtime doctor``: whether this machine is set up, and what to mend. Asks and shows; judges nothing."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..bundle import read_manifest
from ..config import Config, Overrides, read_config
from ..doctor.checks import Check, check
from ..doctor.machine import ask_jtop, read_machine
from ..errors import InputError
from ..loading import load_of
from ..memory import Plan
from ..memory import plan as plan_memory
from ..parameters import Place
from ..schema import plain
from ..server.preparing import machine_room, settings_of
from ..telemetry.identity import identify

_STYLES = {"ok": "green", "advice": "yellow", "problem": "red"}


@click.command()
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=Place(),
    help="Configuration of the daemon, whose bundle and limits are looked at too.",
)
@click.option(
    "--root",
    metavar="DIR",
    default="/",
    type=Place(exists=True, file_okay=False),
    help="Where the file system of the machine begins.  [default: /]",
)
@click.option("--json", "as_json", is_flag=True, help="All checks, as a JSON object.")  # fmt: skip
def doctor(config_path: Path | None, root: Path, as_json: bool) -> int:
    """Look over board, system, rights, memory and the configured bundle; print each problem with its fix.

    Exit code 0: no problem; 1: there are some; 2: something that was given is wrong.
    """
    config = None if config_path is None else read_config(config_path, Overrides())
    # A tree of files has no service; what only a board has is not asked of another machine.
    jtop = ask_jtop() if root == Path("/") and identify(root).tegra else None
    machine = read_machine(root, jtop=jtop, place=None if config is None else Path(config.bundle))
    plan, broken = _plan(config, root)
    checks = (*check(machine, config, plan), *broken)
    problems = sum(one.status == "problem" for one in checks)
    if as_json:
        click.echo(json.dumps({"problems": problems, "checks": plain(checks)}, indent=2))
    else:
        _show(checks, problems)
    return 1 if problems else 0


def _plan(config: Config | None, root: Path) -> tuple[Plan | None, tuple[Check, ...]]:
    if config is None:
        return None, ()
    try:
        manifest = read_manifest(Path(config.bundle))
        load = load_of(manifest, settings_of(config.engine))
    except InputError as problem:
        return None, (Check("bundle", "problem", str(problem), "edge-export export ...; bundle: in the configuration"),)
    room = machine_room(config.budget, root)
    return None if room is None else plan_memory(manifest, load, room), ()


def _show(checks: tuple[Check, ...], problems: int) -> None:
    for one in checks:
        click.echo(f"{click.style(f'{one.status:<8}', fg=_STYLES[one.status])} {one.name}: {one.text}")
        if one.fix and one.status != "ok":
            click.echo(f"{'':<8} fix: {one.fix}")
    click.echo(f"{problems} problem{'' if problems == 1 else 's'}.")
