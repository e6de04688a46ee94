"""What a run of the protocol found, text by text, and its JSON file. Knows no engine and no table.

Figures are made of these records alone. The file is written whole after each domain of each round, and a run that was
stopped goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ...errors import ConfigError
from ...resident import Resident
from ..bandwidth import Speed
from ..records import (
    Count,
    Share,
    Some,
    Spent,
    Took,
    read_record,
    refuse_more_kept,
    refuse_rounds,
    refuse_unknown,
)
from .plan import Part, Which

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole request: the prompt is fed, and ``tokens`` follow it. Times are seconds."""

    part: Part
    domain: str
    prompt: str
    law: str
    round: Count
    group: Count
    """What has the same part, domain, law, round and group was decoded back to back."""
    bundle: Which
    method: str
    prompt_tokens: Count
    tokens: Annotated[int, Meta(ge=2)]
    whole_s: Took
    ttft_s: Took
    """Time to the first token, the prompt in it."""
    tpot_s: Took
    """A later token."""
    steps: Count
    """Behind the first token, as all that follows."""
    draft_s: Spent
    verify_s: Spent
    overhead_s: Spent
    committed: Count
    drafted: Count
    accepted: Count
    tried_by_position: tuple[Count, ...]
    accepted_by_position: tuple[Count, ...]
    repeat_rate: Share
    """Share of 8-grams that stood in the text before."""
    nll: float
    """Nats a token under the bundle's own target, as decoded."""
    joules: Spent | None
    """Of the whole board; ``None``: nobody reads its power."""
    sources: dict[str, Count]
    """Steps by who drafted; an empty name for nobody."""
    reason: str
    """Why the last step drafted what it did."""


@dataclass(frozen=True, slots=True)
class Sample:
    domain: str
    law: str
    bundle: Which
    method: str
    text: str


@dataclass(frozen=True, slots=True)
class BundleFacts:
    name: str
    sha256: str
    """Of the manifest."""
    precision: str
    file_bytes: Count
    read_bytes: Count | None
    """Of weights that a step of one row reads; ``None``: the bundle does not say."""
    nll: float
    """Nats a token of ``nll_tokens`` of the GPL-3, as the target reads them."""
    nll_tokens: Count
    load_s: Spent


@dataclass(frozen=True, slots=True)
class Peak:
    """Of a daemon in a process of its own that loads the bundle, warms up and makes one text."""

    bundle: Which
    drafter: str
    resident: Resident


@dataclass(frozen=True, slots=True)
class Settings:
    """What figures must share to be figures of one run."""

    machine: dict[str, str]
    bundles: dict[Which, str]
    """Manifest's sha256 by which bundle."""
    prompts_sha256: str
    domains: tuple[str, ...]
    laws: dict[str, str]
    compared: tuple[str, ...]
    lengths: tuple[str, ...]
    rounds: Some
    length_rounds: Count
    tokens: Some
    head: str
    threads: int


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    edge_runtime: str
    settings: Settings
    started: str
    """Date and time in UTC."""
    command: str
    power: str
    """Where joules come from, or why there are none."""
    bundles: dict[Which, BundleFacts]
    """By which: main, and perhaps beside."""
    speeds: tuple[Speed, ...] = ()
    peaks: tuple[Peak, ...] = ()
    answers: tuple[Answer, ...] = ()
    samples: tuple[Sample, ...] = ()
    complete: bool = False


def read_report(path: Path) -> Report:
    """Raises ``ConfigError``."""
    report = read_record(path, Report, SCHEMA, "a run of the bench's protocol")
    settings, answers = report.settings, report.answers
    refuse_rounds(path, (one.round for one in answers), settings.rounds)
    texts: tuple[Answer | Sample, ...] = (*answers, *report.samples)
    refuse_unknown(path, "domain", (one.domain for one in texts), settings.domains)
    refuse_unknown(path, "law", (one.law for one in texts), settings.laws)
    refuse_unknown(path, "bundle", (one.bundle for one in texts), report.bundles)
    refuse_unknown(path, "bundle", (peak.bundle for peak in report.peaks), report.bundles)
    refuse_more_kept(path, [one.tried_by_position for one in answers], [one.accepted_by_position for one in answers])
    for speed in report.speeds:
        if not speed.gb_s > 0.0:
            raise ConfigError(f"{path}: {speed.what} at {speed.gb_s:g} GB/s was not measured")
    if "main" not in report.bundles:
        raise ConfigError(f"{path}: it says nothing of its main bundle")
    return report


def done(report: Report) -> set[tuple[int, str]]:
    """Rounds and domains that are in it."""
    return {(answer.round, answer.domain) for answer in report.answers}
