"""``edge-runtime doctor --device``: tries every engine that is installed and makes a report. Asks and shows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ..bundle import Manifest, read_manifest
from ..config import Config
from ..console import plain_console
from ..doctor import engines
from ..doctor.checks import check
from ..doctor.device import curves, judge
from ..doctor.facts import facts_of
from ..doctor.faults import TITLES
from ..doctor.finding import Check
from ..doctor.machine import Machine
from ..doctor.private import private_here, scrubbed, scrubbed_data
from ..doctor.probes.cut import NoLayer
from ..doctor.probes.layers import bundle_shapes
from ..doctor.report import Report, markdown
from ..doctor.trying import DEFAULT_SHAPES, MOST_SHAPES, MOST_VALUES, try_all
from ..errors import ConfigError, why
from ..files import replace_text
from ..memory import Plan
from ..schema import plain
from ..telemetry.sample import Sample

_ANYBODY = "$USER"
"""In place of the user's name: a shell knows whom it means, and a reader need not."""

Heard = Callable[[str, str], None]
"""(probe, what it does)"""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked over."""

    machine: Machine
    config: Config | None
    plan: Plan | None
    recorded: Sequence[Sample]
    others: tuple[Check, ...]
    """Of bundle and recording, found already."""
    bundle: Path | None
    engines: engines.Subject | None = None
    """What of the configured bundle is to be built."""


def report_of(subject: Subject) -> Report:
    """Runs every probe, which takes half a minute. Raises ``BundleError`` ahead of them where the bundle is none."""
    began_s = time.monotonic()
    machine, bundle = subject.machine, subject.bundle
    manifest = None if bundle is None else read_manifest(bundle)
    shapes, unread = _shapes(bundle, manifest)
    with _progress() as heard:
        trial = try_all(machine.identity, shapes, bundle, heard)
    built = subject.engines
    if built is None and bundle is not None and manifest is not None:
        built = engines.Subject(bundle, manifest, None, None)
    nameless = replace(machine, user=replace(machine.user, name=_ANYBODY))
    checks = (
        *check(nameless, subject.config, subject.plan, subject.recorded),
        *subject.others,
        *unread,
        *(() if built is None else engines.check_engines(built, trial.outcome("tensorrt"))),
        *judge(trial),
    )
    facts = facts_of(machine, trial, None if manifest is None else manifest.name)
    return Report(facts, checks, trial.outcomes, curves(trial), time.monotonic() - began_s)


def show(report: Report, bundle: Path | None, output: Path | None, *, in_json: bool) -> None:
    """To stdout, and as Markdown to ``output``; without anything that says whose machine it is."""
    private = private_here(places=() if bundle is None else (str(bundle.absolute()),))
    text = scrubbed(markdown(report), private)
    if output is not None:
        _write(output, text)
    if in_json:
        data: dict[str, Any] = {"problems": report.problems, **plain(report)}
        click.echo(json.dumps(scrubbed_data(data, private), indent=2, allow_nan=False))
    elif output is None:
        click.echo(text, nl=False)


def _write(path: Path, text: str) -> None:
    try:
        replace_text(path, text)
    except OSError as problem:
        raise ConfigError(f"{path} cannot be written: {why(problem)}") from None


def _shapes(bundle: Path | None, manifest: Manifest | None) -> tuple[tuple[tuple[int, int], ...], tuple[Check, ...]]:
    """What to multiply by: as the bundle's model does, where that can be read out of it."""
    if bundle is None or manifest is None:
        return DEFAULT_SHAPES, ()
    try:
        found = bundle_shapes(bundle, manifest, MOST_SHAPES, MOST_VALUES)
    except NoLayer as problem:
        text = f"{problem}: products are measured at the shapes of a Gemma 2 2B"
        return DEFAULT_SHAPES, (Check("shapes of the bundle", "ok", text),)
    return found or DEFAULT_SHAPES, ()


@contextmanager
def _progress() -> Iterator[Heard]:
    """One line that changes where a person watches; elsewhere a line for each probe."""
    console = plain_console(stderr=True)
    if not console.is_terminal:
        yield _by_lines()
        return
    from rich.text import Text

    with console.status(Text("")) as status:
        yield lambda probe, stage: status.update(Text(f"{TITLES[probe]}: {stage}"))


def _by_lines() -> Heard:
    last = ""

    def heard(probe: str, _: str) -> None:
        nonlocal last
        if probe != last:
            click.echo(f"trying {TITLES[probe]}", err=True)
        last = probe

    return heard
