"""``edge-runtime install-service``: the daemon becomes a service of systemd. Asks, shows and lets do."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ..config import DEFAULT_SOCKET, Config, read_config
from ..errors import ConfigError
from ..files import read_text_at_most
from ..parameters import Place, Word
from ..plain_yaml import read_yaml
from ..service.machine import Machine, record_text, run_command
from ..service.steps import (
    RECORD,
    Keep,
    Make,
    Note,
    Record,
    Remove,
    Run,
    Step,
    Unmake,
    Write,
    commands,
    install,
    is_edited,
)
from ..service.units import (
    CONFIG,
    USER,
    WANTED_GROUPS,
    Setup,
    board_config,
    board_config_text,
    check_program,
    check_seen,
    check_user,
    files_of,
)
from ..telemetry.identity import identify

_MOST_BYTES = 1 << 20
_SYSTEMD_RUNS = Path("/run/systemd/system")
_ELSEWHERE = "install it into /opt/edge-runtime (systemd/README.md says how), or name its place with --prefix"
_VERBS: dict[type[Step], str] = {Make: "make", Write: "write", Keep: "keep", Remove: "remove", Unmake: "remove"}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A configuration."""

    source: Path
    """The file that says it."""
    text: str | None
    """What is to stand in ``CONFIG``; ``None``: what stands there."""
    ours: bool = False
    """Out of the package, with the user of this service put in."""


def tree_options(function: F) -> F:
    """Those that installing and uninstalling share."""
    dry = click.option("--dry-run", is_flag=True, help="Show every file and command, and change nothing.")
    root = click.option("--root", metavar="DIR", type=Place(exists=True, file_okay=False), default=Path("/"),
                        show_default=True, help="A tree of files that is to become a machine: files are written there, "
                        "commands are shown and not run.")  # fmt: skip
    return dry(root(function))


@click.command()
@tree_options
@click.option(
    "--prefix",
    metavar="DIR",
    type=Place(),
    help="Where the program is installed on the machine (DIR/bin/edge-runtime).  [default: this program's]",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=Place(),
    help=f"Configuration to be copied to {CONFIG}.  [default: the one that is there, or the board's own]",
)
@click.option(
    "--user",
    metavar="NAME",
    type=Word(),
    default=USER,
    show_default=True,
    help="User and group of the service, made where there are none: who is in it may use the socket.",
)
def install_service(root: Path, dry_run: bool, prefix: Path | None, config_path: Path | None, user: str) -> None:
    """Install the daemon as a service of systemd: units, user, directories, configuration.

    Again is harmless: what is as it is to be, or was edited since, stays. `edge-runtime uninstall-service` undoes it.

    Exit code 0: it is installed; 1: a file or a command failed, and which; 2: something that was given is wrong, or
    systemd or the right to it is missing.
    """
    machine, live = Machine(root), root.samefile("/")
    check_user(user)
    program = _program(machine, prefix, live=live)
    before = machine.record() or Record()
    chosen = _configuration(machine, config_path, user)
    config = _checked(machine, chosen, before, user)
    allow_changes(live=live, dry_run=dry_run)
    groups = machine.groups(WANTED_GROUPS)
    setup = Setup(program, user, groups, config.drain_s, config.server.tcp is not None, chosen.text)
    steps, record = install(files_of(setup), machine.read, machine.is_directory, before)
    if record != before or machine.read(RECORD) is None:
        # First of all: what is half done can be undone.
        above = tuple(step for step in steps if isinstance(step, Make) and RECORD.startswith(f"{step.path}/"))
        steps = (*above, Write(RECORD, record_text(record)), *(step for step in steps if step not in above))
    changed = {step.path for step in steps if isinstance(step, Write | Remove) and step.path != RECORD}
    if not live:
        # Nobody knows what was done to the machine that starts from a tree.
        changed |= {step.path for step in steps if isinstance(step, Keep)}
    bundle = None if machine.place(f"{config.bundle}/bundle.json").is_file() else config.bundle
    carry_out(machine, (*steps, *commands(changed, bundle), *_farewell(user)), live=live, dry_run=dry_run)


def allow_changes(*, live: bool, dry_run: bool) -> None:
    """Raises ``ConfigError`` where nothing can be installed."""
    if dry_run or not live:
        return
    if not _SYSTEMD_RUNS.is_dir():
        fix = "--root DIR writes the files into a tree, --dry-run shows what would be done"
        raise ConfigError(f"systemd does not run here (there is no {_SYSTEMD_RUNS}): {fix}")
    if os.geteuid() != 0:
        raise ConfigError(f"needs root: sudo {' '.join(sys.argv)}, or --dry-run to see what would be done")


def carry_out(machine: Machine, steps: Iterable[Step], *, live: bool, dry_run: bool) -> None:
    """Shows each step, and does it unless it is not to be done. Raises ``EdgeError``."""
    for step in steps:
        if isinstance(step, Note):
            click.echo(step.text)
            continue
        if isinstance(step, Run):
            verb, what = ("run" if live else "later"), " ".join(step.argv)
        else:
            verb, what = _VERBS[type(step)], str(machine.place(step.path))
        why = f"  ({step.why})" if isinstance(step, Keep) else ""
        click.echo(f"{'would ' if dry_run and verb != 'later' else ''}{verb:<6} {what}{why}")
        if not dry_run and (live or not isinstance(step, Run)):
            machine.do(step, run_command)


def _program(machine: Machine, prefix: Path | None, *, live: bool) -> str:
    """Path of the command on the machine. Raises ``ConfigError``."""
    folder = Path(sysconfig.get_path("scripts")) if prefix is None else Path("/") / prefix / "bin"
    program, python = str(folder / "edge-runtime"), str(folder / "python3")
    check_program(program)
    if not machine.place(program).is_file():
        raise ConfigError(f"there is no program {machine.place(program)}: {_ELSEWHERE}")
    check_seen(program, "program", _ELSEWHERE)
    # An environment's Python is a link, which may lead into somebody's home.
    if live and Path(python).exists():
        check_seen(str(Path(python).resolve()), f"the Python of {program},", _ELSEWHERE)
    return program


def _configuration(machine: Machine, given: Path | None, user: str) -> _Chosen:
    """Raises ``ConfigError``."""
    if given is not None:
        return _Chosen(given, read_text_at_most(given, _MOST_BYTES, "config "))
    if machine.read(CONFIG) is not None:
        return _Chosen(machine.place(CONFIG), None)
    board = identify(machine.root).board
    if board is None:
        fix = "give --config FILE; configs/ among the sources has some to start from"
        raise ConfigError(f"no board is known here whose configuration could be taken: {fix}")
    return _Chosen(board_config(board.name), board_config_text(board.name, user), ours=True)


def _checked(machine: Machine, chosen: _Chosen, record: Record, user: str) -> Config:
    """What the service will read. Raises ``ConfigError`` for what a service cannot do."""
    config = _checked_file(chosen.source, user, ours=chosen.ours)
    there = machine.read(CONFIG)
    # An edited one stays, whatever was given.
    if there is not None and there != chosen.text and is_edited(CONFIG, there, record):
        config = _checked_file(machine.place(CONFIG), user, ours=False)
    return config


def _checked_file(place: Path, user: str, *, ours: bool) -> Config:
    """Raises ``ConfigError``."""
    config, where = read_config(place), f"config {place}"
    if config.server.socket != DEFAULT_SOCKET:
        raise ConfigError(f"{where}: server.socket must be {DEFAULT_SOCKET}, where the socket unit listens")
    if config.server.group not in (None, user) and not ours:
        raise ConfigError(f"{where}: server.group must be {user!r}, the group of the service, or be left out")
    for name, said, path in _paths(place, config):
        # The copy lies elsewhere.
        if not said.startswith("/"):
            raise ConfigError(f"{where}: {name} must be an absolute path, for the file will be {CONFIG}: {path}")
        check_seen(path, f"{where}: {name}", "put it below /var/lib/edge-runtime")
    return config


def _paths(place: Path, config: Config) -> Iterator[tuple[str, str, str]]:
    """(key, as it is written, as it is read) of what names a place."""
    data = read_yaml(place, "config ")
    yield "bundle", data["bundle"], config.bundle
    if config.budget.recording is not None:
        yield "budget.recording", data["budget"]["recording"], config.budget.recording


def _farewell(user: str) -> Iterator[Step]:
    yield Note(f"who may use it: sudo usermod -aG {user} NAME, then NAME logs in again")
    yield Note(f"how it is: systemctl status edge-runtime; edge-runtime doctor --config {CONFIG}")
