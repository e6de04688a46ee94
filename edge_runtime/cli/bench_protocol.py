"""The articles' protocol by ``edge-runtime bench``: asks for what is needed, measures in order, shows and writes. Knows
no figure.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from .. import __version__
from ..bench.bandwidth import Speed, device_speeds, measure_speeds
from ..bench.machine import machine
from ..bench.prompts import Domain, chosen_domains, prompts_sha256
from ..bench.protocol.html import page
from ..bench.protocol.plan import (
    ARTICLE_DOMAINS,
    Plan,
    Which,
    fixed_lengths,
    lengths_named,
    refuse_other_model,
    rows_for,
)
from ..bench.protocol.record import SCHEMA, Peak, Report, Settings, done, read_report
from ..bench.protocol.run import Bench
from ..bench.protocol.sheets import sheets
from ..bench.records import begin_file, command, refuse_other_settings, started, write_record
from ..bench.residence import measure
from ..bundle import MANIFEST_NAME, TARGET, file_sha256, read_manifest
from ..config import Config, EngineConfig
from ..console import counted, ends_tidily
from ..engines.opening import chosen_backend
from ..errors import InputError
from ..files import replace_text
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..telemetry.meter import board_meter
from .laws import laws_of, names_in
from .progress import duration, long_progress, nested_progress
from .sheets import table_of

_QUICK_LENGTHS = (4, 20)
_Drafter = Literal["none", "auto"]
_DRAFTERS: tuple[_Drafter, ...] = ("none", "auto")
"""Of the daemons whose memory is looked at."""
_WORTH_A_FILE_S = 300.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options say, before anything is loaded."""

    places: dict[Which, Path]
    domains: tuple[Domain, ...]
    lengths: tuple[int, ...]
    settings: LoadSettings
    path: Path | None
    """That the record is written to."""
    before: Report | None


def measure_protocol(given: dict[str, Any], console: Console) -> None:
    """Raises ``ConfigError``, ``InputError`` and ``BundleError`` before anything is measured."""
    asked = _asked(given)
    with ends_tidily(), ExitStack() as opened, board_meter() as meter:
        bundles: dict[Which, LoadedBundle] = {}
        for which, place in asked.places.items():
            bundles[which] = load_bundle(place, asked.settings)
            opened.callback(bundles[which].close)
        plan = _plan(bundles["main"], asked, given)
        bench = Bench(bundles, plan, meter)
        bench.check_fits()
        settings = _settings(asked, plan, given)
        if asked.before is not None:
            refuse_other_settings(given["resume"], asked.before.settings, settings)
            report = replace(asked.before, complete=False)
        else:
            report = _begun(settings, bench, meter.reason, given)
        if asked.path is not None:
            begin_file(asked.path, report)
        report = _measure(bench, plan, report, asked)
    report = _remembered(report, asked, given)
    if asked.path is not None:
        write_record(asked.path, report)
    for sheet in sheets(report):
        console.print(table_of(sheet))
    if given["html_path"] is not None:
        replace_text(given["html_path"], page(report))


def _asked(given: dict[str, Any]) -> _Asked:
    quick = given["quick"]
    names = names_in(given["domains"]) or (ARTICLE_DOMAINS[:1] if quick else ARTICLE_DOMAINS)
    laws_of(given)
    lengths = () if "lengths" in given["skip"] else lengths_named(given["lengths"])
    if quick:
        lengths = tuple(length for length in lengths if length in _QUICK_LENGTHS)
    places: dict[Which, Path] = {"main": given["bundle"]}
    if given["beside"] is not None:
        places["beside"] = given["beside"]
        refuse_other_model(read_manifest(places["main"]), read_manifest(places["beside"]))
    return _Asked(
        places=places,
        domains=chosen_domains(names),
        lengths=lengths,
        settings=LoadSettings(head=given["head"], threads=given["threads"], rows=rows_for(lengths)),
        path=given["json_path"] or given["resume"],
        before=None if given["resume"] is None else read_report(given["resume"]),
    )


def _plan(main: LoadedBundle, asked: _Asked, given: dict[str, Any]) -> Plan:
    quick = given["quick"]
    rounds = given["rounds"] or (2 if quick else 10)
    return Plan(
        laws=laws_of(given),
        domains=asked.domains,
        rounds=rounds,
        tokens=given["tokens"] or (32 if quick else 200),
        lengths=fixed_lengths(main, given["drafter"], asked.lengths),
        length_rounds=min(given["length_rounds"], rounds),
        two="beside" in asked.places,
    )


def _settings(asked: _Asked, plan: Plan, given: dict[str, Any]) -> Settings:
    return Settings(
        machine=machine(),
        bundles={which: file_sha256(place / MANIFEST_NAME) for which, place in asked.places.items()},
        prompts_sha256=prompts_sha256(),
        domains=tuple(domain.domain for domain in plan.domains),
        laws={law.name: str(law) for law in plan.laws},
        compared=tuple(f"{cell.bundle} {cell.method.label}" for cell in plan.compared),
        lengths=tuple(method.label for method in plan.lengths),
        rounds=plan.rounds,
        length_rounds=plan.length_rounds,
        tokens=plan.tokens,
        head=given["head"],
        threads=given["threads"],
    )


def _begun(settings: Settings, bench: Bench, power: str, given: dict[str, Any]) -> Report:
    """With no text in it yet."""
    return Report(
        schema=SCHEMA,
        edge_runtime=__version__,
        settings=settings,
        started=started(),
        command=command(),
        power=power,
        bundles=bench.facts(given["head"]),
    )


def _measure(bench: Bench, plan: Plan, report: Report, asked: _Asked) -> Report:
    """Episode by episode, and the file written after each; the speed of memory before and after them."""
    known = done(report)
    left = [(number, domain) for number, domain in plan.episodes() if (number, domain.domain) not in known]
    if not left:
        return report
    report = replace(report, speeds=(*report.speeds, *_speeds(asked)))
    with nested_progress() as progress:
        warmed = bench.warm_up(progress)
    texts = {cell: plan.count(cell, left) for cell in plan.cells}
    seconds = sum(texts[cell] * warmed[cell] for cell in plan.cells)
    _announce(sum(texts.values()), plan.tokens, seconds, len(known), asked.path)
    with long_progress("domains of rounds", len(left)) as told:
        for count, (number, domain) in enumerate(left):
            told(count)
            found = bench.episode(number, domain)
            report = replace(
                report, answers=(*report.answers, *found.answers), samples=(*report.samples, *found.samples)
            )
            if asked.path is not None:
                write_record(asked.path, report)
    return replace(report, speeds=(*report.speeds, *_speeds(asked)))


def _speeds(asked: _Asked) -> tuple[Speed, ...]:
    """Of the memory that the target's weights lie in."""
    backend = chosen_backend(read_manifest(asked.places["main"]), TARGET, asked.settings.backend)
    return device_speeds() if backend == "tensorrt" else measure_speeds(asked.settings.threads)


def _announce(texts: int, tokens: int, seconds: float, known: int, path: Path | None) -> None:
    """How long, by a warm-up text of each kind."""
    told = f", {counted(known, 'domain')} of rounds known from the file" if known else ""
    click.echo(f"{texts} texts of {tokens} tokens: about {duration(seconds)}{told}", err=True)
    if path is None and seconds > _WORTH_A_FILE_S:
        click.echo("with --json FILE, what is done would be kept where this is stopped", err=True)


def _remembered(report: Report, asked: _Asked, given: dict[str, Any]) -> Report:
    """Peak memory of each bundle, plain and drafted, when none of them is loaded here any more."""
    wanted = [] if "memory" in given["skip"] else [(which, drafter) for which in asked.places for drafter in _DRAFTERS]
    peaks = report.peaks
    try:
        peaks = peaks or tuple(_peak(asked, given, which, drafter) for which, drafter in wanted)
    except InputError as problem:
        # No reason to lose the rest.
        click.echo(f"peak memory is not measured: {problem}", err=True)
    return replace(report, peaks=peaks, complete=True)


def _peak(asked: _Asked, given: dict[str, Any], which: Which, drafter: _Drafter) -> Peak:
    engine = EngineConfig(
        sessions=1, threads=given["threads"], head=given["head"], drafter=drafter, suffix_tokens=0, verify_hashes=False
    )
    return Peak(which, drafter, measure(Config(str(asked.places[which]), engine)))
