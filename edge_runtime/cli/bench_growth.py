"""How cost grows, by ``edge-runtime bench --view growth``: asks for what is needed, measures part by part, shows and
writes. Knows no figure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from .. import __version__
from ..bench.growth.context import ContextPlan, measure_context
from ..bench.growth.html import page
from ..bench.growth.models import ModelPlan, Progress, facts_of, measure_model
from ..bench.growth.record import PARTS, SCHEMA, Contexts, Part, Report, Sessions, Settings, read_report
from ..bench.growth.sessions import SessionsPlan, measure_sessions, slot_bytes
from ..bench.growth.sheets import sheets
from ..bench.growth.stepping import drafter_named
from ..bench.machine import machine
from ..bench.records import begin_file, command, refuse_other_settings, started, write_record
from ..bundle import MANIFEST_NAME, TARGET, Manifest, file_sha256, read_manifest
from ..config import BudgetConfig, Config, EngineConfig
from ..console import ends_tidily
from ..errors import ConfigError, did_you_mean
from ..files import replace_text
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..resident import give_back
from ..server.preparing import machine_room, refuse_beyond
from .laws import names_in
from .progress import nested_progress
from .sheets import table_of

_CONTEXTS, _QUICK_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192), (128, 512)
_KS, _QUICK_KS = (1, 3, 7), (3,)
_SESSIONS, _QUICK_SESSIONS = (1, 2, 4, 8), (1, 2)
_ACCEPTANCES, _QUICK_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9), (0.5, 0.9)
_ROUNDS, _QUICK_ROUNDS = 12, 2
_SESSION_ROUNDS = 5
"""At most: each is a hundred steps and more."""
_SLOT = 512
"""Tokens of a slot that sessions share an engine with, and of the context that models are measured behind."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the options say, before anything is loaded."""

    places: tuple[Path, ...]
    """The bundle, then the models."""
    parts: tuple[Part, ...]
    settings: Settings
    quick: bool
    path: Path | None
    """That the record is written to."""
    before: Report | None

    def models(self, report: Report | None) -> list[Path]:
        """Whose steps are yet to be measured."""
        known = set() if report is None else {run.facts.sha256 for run in report.models}
        each = {file_sha256(place / MANIFEST_NAME): place for place in self.places[::-1]}
        left = [place for sha256, place in each.items() if sha256 not in known][::-1]
        return left if "models" in self.parts else []

    @property
    def context_plan(self) -> ContextPlan:
        return ContextPlan(self.settings.contexts, self.settings.ks, self.settings.rounds)

    @property
    def sessions_plan(self) -> SessionsPlan:
        rounds = min(_SESSION_ROUNDS, self.settings.rounds)
        return SessionsPlan(self.settings.sessions, rounds, tokens=8 if self.quick else 64)

    @property
    def model_plan(self) -> ModelPlan:
        settings = self.settings
        context = self.settings.contexts[0] if self.quick else _SLOT
        return ModelPlan(context, settings.ks, settings.acceptances, settings.rounds)


def measure_growth(given: dict[str, Any], console: Console) -> None:
    """Raises ``ConfigError``, ``InputError`` and ``BundleError`` before anything is measured."""
    asked = _asked(given)
    if asked.before is not None:
        refuse_other_settings(given["resume"], asked.before.settings, asked.settings)
    with ends_tidily(), nested_progress() as progress:
        report = asked.before or _begun(asked)
        if asked.path is not None:
            begin_file(asked.path, report)
        if "context" in asked.parts and report.context is None:
            plan = asked.context_plan
            with _loaded(asked, asked.places[0], plan.contexts[-1] + plan.room) as bundle:
                found = Contexts(*measure_context(bundle, asked.settings.drafter, plan, progress))
            report = _kept(asked, replace(report, context=found))
        if "sessions" in asked.parts and report.sessions is None:
            report = _kept(asked, replace(report, sessions=_shared(asked, progress)))
        for place in asked.models(report):
            report = _kept(asked, _with_model(report, asked, place, progress))
    report = replace(report, complete=all(_has(report, part) for part in PARTS))
    if asked.path is not None:
        write_record(asked.path, report)
    for sheet in sheets(report):
        console.print(table_of(sheet))
    if given["html_path"] is not None:
        replace_text(given["html_path"], page(report))


def _asked(given: dict[str, Any]) -> _Asked:
    quick, parts = given["quick"], names_in(given["parts"]) or PARTS
    for name in parts:
        if name not in PARTS:
            raise ConfigError(f"parts: {name!r} is none of {', '.join(PARTS)}{did_you_mean(name, PARTS)}")
    ks = _QUICK_KS if quick else _KS
    wanted = _wanted_contexts(given)
    places = (given["bundle"], *given["models"])
    for place in places:
        read_manifest(place)
    settings = Settings(
        machine=machine(),
        contexts=_fitting(given, wanted, ks),
        bundle=file_sha256(given["bundle"] / MANIFEST_NAME),
        ks=ks,
        sessions=_QUICK_SESSIONS if quick else _SESSIONS,
        acceptances=_QUICK_ACCEPTANCES if quick else _ACCEPTANCES,
        rounds=given["rounds"] or (_QUICK_ROUNDS if quick else _ROUNDS),
        head=given["head"],
        drafter=given["drafter"],
        threads=given["threads"],
    )
    asked = _Asked(
        places=places,
        parts=tuple(part for part in PARTS if part in parts),
        settings=settings,
        quick=quick,
        path=given["json_path"] or given["resume"],
        before=None if given["resume"] is None else read_report(given["resume"]),
    )
    for place in asked.models(asked.before):
        _refuse_large(asked, place)
    return asked


def _wanted_contexts(given: dict[str, Any]) -> tuple[int, ...]:
    """Rising. Raises ``ConfigError``."""
    names = names_in(given["contexts"])
    for name in names:
        if not (name.isdecimal() and name.isascii() and 0 < int(name) < 1 << 20):
            raise ConfigError(f"contexts: {name!r} is no number of tokens")
    return tuple(sorted({int(name) for name in names})) or (_QUICK_CONTEXTS if given["quick"] else _CONTEXTS)


def _fitting(given: dict[str, Any], wanted: tuple[int, ...], ks: tuple[int, ...]) -> tuple[int, ...]:
    """Those that are asked for must fit the bundle; of the others, those that do. Raises ``ConfigError``."""
    manifest = read_manifest(given["bundle"])
    longest, room = manifest.model(TARGET).max_context, ContextPlan(wanted, ks, 1).room
    fitting = tuple(context for context in wanted if context + room <= longest)
    if fitting != wanted:
        missing = ", ".join(str(context) for context in wanted if context not in fitting)
        told = _beyond(f"contexts: {missing}", room, manifest, wanted[-1])
        if given["contexts"] or not fitting:
            raise ConfigError(told)
        click.echo(f"{told}; left out", err=True)
    return fitting


def _beyond(what: str, room: int, manifest: Manifest, longest: int) -> str:
    """What is said of tokens, ``longest`` of them and the room of a round, that a bundle does not hold."""
    return (
        f"{what} and {room} tokens of steps do not fit the {manifest.model(TARGET).max_context} of bundle "
        f"{manifest.name!r}: export it with --max-context {longest + room}"
    )


def _refuse_large(asked: _Asked, place: Path) -> None:
    """Raises ``ConfigError`` for a context beyond the model's, ``OutOfBudget`` for a model beyond this machine."""
    manifest, plan, room = read_manifest(place), asked.model_plan, machine_room(BudgetConfig())
    if plan.context + plan.room > manifest.model(TARGET).max_context:
        raise ConfigError(_beyond(f"models: {plan.context}", plan.room, manifest, plan.context))
    engine = EngineConfig(
        plan.context + plan.room, 1, asked.settings.threads, head=asked.settings.head, suffix_tokens=0
    )
    if room is not None:
        refuse_beyond(manifest, Config(str(place), engine), room)


def _begun(asked: _Asked) -> Report:
    """With no figure in it yet."""
    with _loaded(asked, asked.places[0], asked.settings.contexts[0]) as bundle:
        facts = facts_of(bundle, drafter_named(bundle, asked.settings.drafter), asked.settings.head)
    return Report(
        schema=SCHEMA,
        edge_runtime=__version__,
        settings=asked.settings,
        started=started(),
        command=command(),
        facts=facts,
    )


@contextmanager
def _loaded(asked: _Asked, place: Path, context: int, slots: int = 1) -> Iterator[LoadedBundle]:
    settings = asked.settings
    bundle = load_bundle(
        place, LoadSettings(context=context, slots=slots, head=settings.head, threads=settings.threads)
    )
    try:
        yield bundle
    finally:
        bundle.close()
        give_back()


def _shared(asked: _Asked, progress: Progress) -> Sessions:
    plan = asked.sessions_plan
    longest = read_manifest(asked.places[0]).model(TARGET).max_context
    with _loaded(asked, asked.places[0], min(_SLOT, longest), plan.counts[-1]) as bundle:
        runs = measure_sessions(bundle, plan, progress)
        return Sessions(plan.prompt_tokens, bundle.target.info.capacity, slot_bytes(bundle), runs)


def _with_model(report: Report, asked: _Asked, place: Path, progress: Progress) -> Report:
    plan = asked.model_plan
    with _loaded(asked, place, plan.context + plan.room) as bundle:
        # Which drafter a model has is its own matter; one that was asked for is the bundle's.
        named = asked.settings.drafter if place == asked.places[0] else "auto"
        facts = facts_of(bundle, drafter_named(bundle, named), asked.settings.head)
        return replace(report, models=(*report.models, measure_model(bundle, facts, plan, progress=progress)))


def _kept(asked: _Asked, report: Report) -> Report:
    if asked.path is not None:
        write_record(asked.path, report)
    return report


def _has(report: Report, part: Part) -> bool:
    return bool(report.models) if part == "models" else getattr(report, part) is not None
