"""What a comparison found, text by text, and its JSON file. Knows no engine and no table.

Figures and verdicts are made of these records alone (``figures``, ``floors``): a run that was stopped goes on from its
file, and whoever doubts a median finds the texts behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...cost import CostLine
from ...errors import ConfigError
from ..prompts import DomainKind
from ..records import Count, Share, Some, Took, read_record, refuse_more_kept, refuse_unknown

SCHEMA = 1

Part = Literal["named", "search", "final", "again", "priced"]
"""Named: each drafter with each policy. Search: fixed K, one text each. Final: the default beside the best of the
search. Again: prompts on which the default seemed slow. Priced: a projection, on a virtual clock."""


@dataclass(frozen=True, slots=True)
class Run:
    """One text, beside a plain one that was decoded next to it."""

    part: Part
    prompt: str
    law: str
    method: str
    round: Count
    seconds_per_token: Took
    """Behind the first token."""
    plain_seconds_per_token: Took
    tokens: Some
    steps: Count
    """Behind the prefill, as all that follows."""
    committed: Count
    drafted: Count
    accepted: Count
    tried_by_position: tuple[Count, ...]
    accepted_by_position: tuple[Count, ...]
    draft_share: Share
    """Of the time of its steps."""
    verify_share: Share
    repeat_rate: Share
    """Share of 8-grams that stood in the text before."""
    copied_share: Share
    """Share of tokens inside a 4-gram that stands in the prompt."""
    drafts_scored: Count
    """Drafts that the target gave a likelihood."""
    drafts_log_likelihood: float
    """Sum over them."""
    nll: float
    """Nats a token under the target at temperature 1 (at the law's, where that is another), as decoded."""
    reason: str
    """Why the last step drafted what it did."""
    sources: dict[str, Count]
    """Steps by who drafted; an empty name for nobody."""
    curve: str | None = None
    """Of a priced run."""
    plain_repeat_rate: Share | None = None
    plain_nll: float | None = None


Sameness = Literal["identical", "near-tie", "differs"]


@dataclass(frozen=True, slots=True)
class Quality:
    """One text against the target itself, which reads it in one go (teacher forcing)."""

    prompt: str
    law: str
    method: str
    nll: float
    plain_nll: float
    """Of the plain text of the same round."""
    regret: float
    """Nats a token that the target's best token is above the text's; 0 for exact greedy text."""
    recorded_nll_off: float
    """The NLL that was noted while decoding, less this one: a cache that went wrong would show."""
    same_as_plain: Sameness | None
    """Of greedy texts."""
    differs_at: Count | None
    gap: float | None
    """Logits between the two tokens where greedy texts part."""


@dataclass(frozen=True, slots=True)
class Sample:
    prompt: str
    law: str
    method: str
    text: str


@dataclass(frozen=True, slots=True)
class DomainRecord:
    domain: str
    kind: DomainKind
    runs: tuple[Run, ...]
    quality: tuple[Quality, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What steps cost against K where each draft is kept with this chance; drafting itself is free here."""

    acceptance: Share
    lines: tuple[CostLine, ...]


@dataclass(frozen=True, slots=True)
class Floor:
    claim: str
    found: str
    state: Literal["met", "MISSED", "not measured"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What figures must share to be figures of one comparison."""

    machine: dict[str, str]
    bundle: str
    bundle_sha256: str
    """Of the manifest."""
    prompts_sha256: str
    laws: dict[str, str]
    methods: tuple[str, ...]
    searched: tuple[str, ...]
    curves: tuple[str, ...]
    rounds: Some
    named_rounds: Count
    finalists: Count
    prompts_per_domain: Some
    tokens: Some
    head: str
    threads: int


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    edge_runtime: str
    settings: Settings
    plain: dict[str, Took]
    """Milliseconds a token of each plain mode that was tried; the least of them is what figures are over."""
    domains: tuple[DomainRecord, ...] = ()
    costs: tuple[StepCosts, ...] = ()
    floors: tuple[Floor, ...] = ()
    complete: bool = False


def read_report(path: Path) -> Report:
    """Raises ``ConfigError``."""
    report = read_record(path, Report, SCHEMA, "a comparison")
    runs = [run for domain in report.domains for run in domain.runs]
    settings, quality = report.settings, [one for domain in report.domains for one in domain.quality]
    refuse_unknown(path, "law", [*(run.law for run in runs), *(one.law for one in quality)], settings.laws)
    refuse_unknown(path, "curve", (run.curve for run in runs if run.curve is not None), settings.curves)
    refuse_more_kept(path, [run.tried_by_position for run in runs], [run.accepted_by_position for run in runs])
    names = [domain.domain for domain in report.domains]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: a domain stands in it twice")
    if len({len(one.lines) for one in report.costs}) > 1:
        raise ConfigError(f"{path}: costs of one acceptance are of more K than those of another")
    return report
