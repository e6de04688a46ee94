"""What a run of the protocol found, text by text, and its JSON file. Knows no engine and no table.

Figures are made of these records alone. The file is written whole after each domain of each round, and a run that was
stopped goes on from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ConfigError
from ...resident import Resident
from ..bandwidth import Speed
from ..records import read_record
from .plan import Part, Which

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole request: the prompt is fed, and ``tokens`` follow it. Times are seconds."""

    part: Part
    domain: str
    prompt: str
    law: str
    round: int
    group: int
    """What has the same part, domain, law, round and group was decoded back to back."""
    bundle: Which
    method: str
    prompt_tokens: int
    tokens: int
    whole_s: float
    ttft_s: float
    """Time to the first token, the prompt in it."""
    tpot_s: float
    """A later token."""
    steps: int
    """Behind the first token, as all that follows."""
    draft_s: float
    verify_s: float
    overhead_s: float
    committed: int
    drafted: int
    accepted: int
    tried_by_position: tuple[int, ...]
    accepted_by_position: tuple[int, ...]
    repeat_rate: float
    """Share of 8-grams that stood in the text before."""
    nll: float
    """Nats a token under the bundle's own target, as decoded."""
    joules: float | None
    """Of the whole board; ``None``: nobody reads its power."""
    sources: dict[str, int]
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
    file_bytes: int
    read_bytes: int | None
    """Of weights that a step of one row reads; ``None``: the bundle does not say."""
    nll: float
    """Nats a token of ``nll_tokens`` of the GPL-3, as the target reads them."""
    nll_tokens: int
    load_s: float


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
    rounds: int
    length_rounds: int
    tokens: int
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
    for number, answer in enumerate(report.answers):
        if not min(answer.whole_s, answer.ttft_s, answer.tpot_s) > 0.0:
            raise ConfigError(f"{path}: answers[{number}] took no time")
    return report


def done(report: Report) -> set[tuple[int, str]]:
    """Rounds and domains that are in it."""
    return {(answer.round, answer.domain) for answer in report.answers}
