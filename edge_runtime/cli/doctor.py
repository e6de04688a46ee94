"""``edge-runtime doctor``: whether this machine is set up, and what to mend. Asks and shows; judges nothing."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import click

from ..bundle import TARGET, Manifest, file_problems, read_manifest
from ..config import Config, EngineConfig, Overrides, read_config
from ..console import counted
from ..doctor.checks import check
from ..doctor.engines import Subject as Engines
from ..doctor.engines import check_engines
from ..doctor.finding import Check
from ..doctor.listening import listening_checks
from ..doctor.machine import ask_jtop, read_machine
from ..errors import BundleError, ConfigError, InputError
from ..loading import load_of
from ..memory import Plan, shown
from ..memory import plan as plan_memory
from ..parameters import Place, Written, refuse_useless
from ..schema import plain
from ..server.preparing import machine_room, settings_of
from ..telemetry.identity import identify
from ..telemetry.recording import read_recording
from ..telemetry.sample import Sample
from .doctor_device import Subject, report_of, show

_STYLES = {"ok": "green", "advice": "yellow", "problem": "red"}
_ANOTHER_BUNDLE = "edge-export export ... makes one; bundle: in the configuration names it"
_TOLD_FILES = 3


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
@click.option("--device", is_flag=True, help="Try every engine too, and measure memory, 4-bit products and verifying.")
@click.option(
    "--bundle",
    metavar="DIR",
    type=Place(),
    help="With --device: a bundle to try a layer of, at whose shapes products are measured.  [default: the configured]",
)
@click.option("--output", metavar="FILE", type=Written(), help="With --device: where a report for an issue is written.")
@click.option("--json", "as_json", is_flag=True, help="All checks, as a JSON object.")  # fmt: skip
@click.pass_context
def doctor(
    context: click.Context,
    config_path: Path | None,
    root: Path,
    device: bool,
    bundle: Path | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Look over board, system, rights, memory and the configured bundle; print each problem with its fix.

    With --device every engine that is installed runs a real product, in a process of its own: half a minute, during
    which nothing else should run. What it prints then can be pasted into an issue.

    Exit code 0: no problem; 1: there are some; 2: something that was given is wrong.
    """
    if not device:
        refuse_useless(context, "this goes with --device", ("bundle", "output"))
    else:
        refuse_useless(context, "--device tries this machine", ("root",))
    config = None if config_path is None else read_config(config_path, Overrides())
    # A tree of files has no service; what only a board has is not asked of another machine.
    jtop = ask_jtop() if root == Path("/") and identify(root).tegra else None
    machine = read_machine(root, jtop=jtop, place=None if config is None else Path(config.bundle))
    plan, of_bundle, engines = _bundle(config, root)
    recorded, of_recording = _recording(config)
    # A tree of files has nobody who could listen.
    sockets = () if config is None or root != Path("/") else tuple(listening_checks(config.server))
    if device:
        # Of a configured bundle that is not whole, the checks say enough.
        tried = bundle or (Path(config.bundle) if config is not None and plan is not None else None)
        others = (*sockets, *of_bundle, *of_recording)
        report = report_of(Subject(machine, config, plan, recorded, others, tried, None if bundle else engines))
        show(report, tried, output, in_json=as_json)
        if output is not None and not as_json:
            click.echo(f"{report.problems} problem{'' if report.problems == 1 else 's'}; the report is in {output}")
        return 1 if report.problems else 0
    built = () if engines is None else check_engines(engines, None)
    checks = (*check(machine, config, plan, recorded), *sockets, *of_bundle, *built, *of_recording)
    problems = sum(one.status == "problem" for one in checks)
    if as_json:
        click.echo(json.dumps({"problems": problems, "checks": plain(checks)}, indent=2))
    else:
        _show(checks, problems)
    return 1 if problems else 0


def _bundle(config: Config | None, root: Path) -> tuple[Plan | None, tuple[Check, ...], Engines | None]:
    if config is None:
        return None, (), None
    try:
        manifest = read_manifest(Path(config.bundle))
    except BundleError as problem:
        return None, (Check("bundle", "problem", str(problem), _ANOTHER_BUNDLE),), None
    files = _files(Path(config.bundle), manifest)
    try:
        load = load_of(manifest, settings_of(config.engine), Path(config.bundle))
    except InputError as problem:
        return None, (files, Check("engine settings", "problem", str(problem), _setting(str(problem), manifest))), None
    room = machine_room(config.budget, root)
    engines = None if config.engine.engines is None else Path(config.engine.engines)
    built = Engines(Path(config.bundle), manifest, engines, load)
    return None if room is None else plan_memory(manifest, load, room), (files,), built


def _files(directory: Path, manifest: Manifest) -> Check:
    """Their sizes: hashes take a minute, and the daemon looks at them."""
    problems = tuple(file_problems(directory, manifest, hashes=False))
    if problems:
        more = f"; and {len(problems) - _TOLD_FILES} more" if len(problems) > _TOLD_FILES else ""
        told = "; ".join(problems[:_TOLD_FILES]) + more
        return Check("bundle", "problem", told, f"copy it again, or {_ANOTHER_BUNDLE}")
    size = sum(entry.bytes for entry in manifest.files)
    return Check("bundle", "ok", f"{manifest.name}, {len(manifest.files)} files, {shown(size)}")


def _setting(problem: str, manifest: Manifest) -> str:
    """The key that the message begins with."""
    key = problem.split()[0].rstrip(":")
    if key == "context":
        return f"engine.context: {manifest.model(TARGET).max_context} or less"
    known = key in (field.name for field in fields(EngineConfig))
    return f"another engine.{key} in the configuration" if known else "the section engine of the configuration"


def _recording(config: Config | None) -> tuple[tuple[Sample, ...], tuple[Check, ...]]:
    if config is None or config.budget.recording is None:
        return (), ()
    try:
        recording = read_recording(Path(config.budget.recording))
    except ConfigError as problem:
        fix = "edge-runtime telemetry --follow --json > FILE writes one; budget.recording: FILE"
        return (), (Check("recording", "problem", str(problem), fix),)
    told = counted(len(recording.samples), "sample") + (f"; {recording.note}" if recording.note else "")
    return recording.samples, (Check("recording", "ok", told),)


def _show(checks: tuple[Check, ...], problems: int) -> None:
    for one in checks:
        click.echo(f"{click.style(f'{one.status:<8}', fg=_STYLES[one.status])} {one.name}: {one.text}")
        if one.fix and one.status != "ok":
            click.echo(f"{'':<8} fix: {one.fix}")
    click.echo(f"{problems} problem{'' if problems == 1 else 's'}.")
