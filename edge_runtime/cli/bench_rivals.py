"""Peers side by side by ``edge-runtime bench --view rivals``: who runs, on what, and when it is written. Knows no
figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console

from .. import __version__
from ..bench.corpus import SAMPLE_TOKENS, Prompt, prompts, sample_text
from ..bench.environments import ENVIRONMENTS, PeerKind, chosen_kinds, named_pythons, python_of
from ..bench.machine import machine
from ..bench.process import OURS, PROGRAMS
from ..bench.records import begin_file, command, started, write_record
from ..bench.rivals.figures import KINDS, verdicts
from ..bench.rivals.record import SCHEMA, Entrant, Report, Settings
from ..bench.rivals.run import Document, Plan, Question, Race
from ..bench.rivals.sheets import sheets
from ..bundle import MANIFEST_NAME, file_sha256, read_manifest
from ..console import ends_tidily
from ..errors import ConfigError
from ..text.tokenizer import Tokenizer
from .laws import names_in
from .progress import duration, nested_progress
from .sheets import table_of

_PREFIX_TOKENS = 500
_CONTEXT = 1024
_MODES = ("plain", "auto")
"""Of ours."""
_ENDINGS = ("\n\nIn short,", "\n\nThe author")


def hold_rivals(given: dict[str, Any], console: Console) -> None:
    """Raises ``ConfigError`` and ``BundleError`` before anything is started."""
    bundle, checkpoint = given["bundle"], given["gguf"]
    if checkpoint is None:
        raise ConfigError("--view rivals needs --gguf: the checkpoint of the bundle, which the peers load")
    if not checkpoint.exists():
        raise ConfigError(f"gguf: there is no {checkpoint}")
    if given["assistant"] is not None and not given["assistant"].exists():
        raise ConfigError(f"assistant: there is no {given['assistant']}")
    manifest = read_manifest(bundle)
    tokenizer = Tokenizer(bundle / manifest.tokenizer.file)
    source = file_sha256(checkpoint) if checkpoint.is_file() else checkpoint.name
    entrants = _entrants(given, source)
    plan = _plan(tokenizer, given)
    report = Report(
        schema=SCHEMA,
        edge_runtime=__version__,
        started=started(),
        command=command(),
        settings=Settings(
            machine=machine(),
            bundle=file_sha256(bundle / MANIFEST_NAME),
            checkpoint=source,
            rounds=len(plan.questions) - 1,
            tokens=plan.tokens,
            prefix_tokens=_PREFIX_TOKENS,
            nll_tokens=SAMPLE_TOKENS,
            threads=plan.threads,
            context=_CONTEXT,
        ),
        rivals=(),
    )
    report = _measured(entrants, plan, report, given["json_path"])
    for sheet in sheets(report):
        console.print(table_of(sheet))
    for verdict in verdicts(report):
        console.print(str(verdict))


def _measured(entrants: Sequence[Entrant], plan: Plan, report: Report, path: Path | None) -> Report:
    """The file is written whole after each round."""

    def so_far(complete: bool = False) -> Report:
        return replace(report, rivals=tuple(race.rivals.values()), complete=complete)

    if path is not None:
        begin_file(path, report)
    with ends_tidily(), Race(entrants, plan) as race, nested_progress() as progress:
        race.load(progress)
        began_s = monotonic()
        for number in race.rounds(progress):
            if number < 0:
                rounds = len(plan.questions) - 1
                click.echo(f"{rounds} rounds: about {duration(rounds * (monotonic() - began_s))}", err=True)
            elif path is not None:
                write_record(path, so_far())
        race.finish(progress)
        done = so_far(complete=True)
    if path is not None:
        write_record(path, done)
    return done


def _entrants(given: dict[str, Any], checkpoint: str) -> tuple[Entrant, ...]:
    """Ours, then every mode of every peer."""
    environments = given["peer_envs"] or ENVIRONMENTS
    named, shared = named_pythons(given["peer_python"]), environments / "models" / f"{checkpoint[:12]}-directory"
    found = [Entrant(OURS, mode, "edge_runtime.bench.peers.ours_whole", None, given["bundle"]) for mode in _MODES]
    for kind in chosen_kinds(names_in(given["peers"])):
        python = python_of(kind, named, environments)
        missing = None if python is not None else f"not installed: `make peers`, or --peer-python {kind.kind}=PATH"
        for mode, made in kind.modes.items():
            place = None if made is None else _place(environments, checkpoint, kind, made)
            assistant = given["assistant"] if mode == "assistant" else None
            program = str(PROGRAMS / kind.program)
            found.append(
                Entrant(kind.kind, mode, program, python, given["gguf"], made, place, shared, assistant, missing)
            )
    return tuple(found)


def _place(environments: Path, checkpoint: str, kind: PeerKind, made: str) -> Path:
    """Of what is made of a checkpoint by certain releases."""
    return environments / "models" / f"{checkpoint[:12]}-{kind.kind}-{made}-{kind.pins_sha256[:8]}"


def _plan(tokenizer: Tokenizer, given: dict[str, Any]) -> Plan:
    """Raises ``ConfigError`` where the context has no room for prompt and answer."""
    rounds, tokens = given["rounds"] or 6, given["tokens"] or 64
    kinds = [prompts(kind) for kind in KINDS]
    questions = tuple(
        tuple(_question(tokenizer, known[number % len(known)], number) for known in kinds)
        for number in range(rounds + 1)
    )
    longest = max(len(one.ids) for ones in questions for one in ones)
    if longest + tokens > _CONTEXT:
        raise ConfigError(f"tokens: at most {_CONTEXT - longest} beside the longest prompt")
    return Plan(
        questions=questions,
        documents=tuple(_document(tokenizer, number) for number in range(rounds + 1)),
        sample=tuple(tokenizer.encode(sample_text())[: SAMPLE_TOKENS + 1]),
        tokens=tokens,
        threads=given["threads"],
        context=_CONTEXT,
        patience_s=given["patience"],
    )


def _question(tokenizer: Tokenizer, prompt: Prompt, number: int) -> Question:
    """That no other round shares the beginning of: some programs keep prefixes and cannot be told to forget them."""
    return Question(f"{prompt.name} {number}", prompt.kind, tuple(tokenizer.encode(f"{number}. {prompt.text}")))


def _document(tokenizer: Tokenizer, number: int) -> Document:
    """That no other round shares the beginning of."""
    prefix = tokenizer.encode(f"Document {number}. {sample_text()[:8000]}")[:_PREFIX_TOKENS]
    first, second = ((*prefix, *tokenizer.encode(ending, bos=False)) for ending in _ENDINGS)
    return Document(len(prefix), first, second)
