"""What a run of the growth view found, step by step, and its JSON file. Knows no engine and no table.

Figures are made of these records alone. A part is in the file once it is done: a stop loses the part that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from ...resident import Resident
from ..records import Count, Drafts, Share, Some, Spent, Took, read_record, refuse_rounds

SCHEMA = 1

Part = Literal["context", "sessions", "models"]
PARTS: tuple[Part, ...] = ("context", "sessions", "models")
Way = Literal["plain", "drafted"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of decoding. Seconds."""

    context: Count
    """Tokens in the cache when its round began; the steps of a round before it have added some."""
    k: Drafts
    acceptance: Share | None
    """What its drafts were kept by, in place of the target's verdict; ``None``: that verdict."""
    round: Count
    drafted: Drafts
    accepted: Drafts
    rows: Some
    draft_s: Spent
    """Feeding the drafter what it lacked included."""
    body_s: Took
    head_s: Spent
    loop_s: Spent
    """Of our loop, outside of any engine."""
    ran_s: Spent | None
    """Inside the library that runs the graphs, the drafter's too; ``None``: the engine does not say."""

    @property
    def verify_s(self) -> float:
        """What the step takes where drafts are free."""
        return self.body_s + self.head_s + self.loop_s

    @property
    def total_s(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def host_s(self) -> float | None:
        """Of our own code: the loop, drafting between its forwards, and what is done around a run of a graph."""
        return None if self.ran_s is None else max(0.0, self.total_s - self.ran_s)


@dataclass(frozen=True, slots=True)
class Prefill:
    context: Some
    round: Count
    seconds: Took
    """From an empty cache, the target's alone."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory with a cache of that length, the first time that it was so long."""

    context: Some
    cache_bytes: Count
    """Of entries, by the manifest: target, drafter, and hidden rows where these are kept."""
    resident: Resident


@dataclass(frozen=True, slots=True)
class Facts:
    name: str
    sha256: str
    """Of the manifest."""
    precision: str
    layers: Some
    file_bytes: Count
    read_bytes: Count | None
    """Of weights that a step of one row reads; ``None``: the bundle does not say."""
    drafter: str
    """``none``: its drafts cost nothing."""


@dataclass(frozen=True, slots=True)
class Contexts:
    prefills: tuple[Prefill, ...]
    steps: tuple[Step, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """Sessions that take turns: all but one run already, then a newcomer comes, and is watched to its end."""

    sessions: Some
    way: Way
    round: Count
    ttft_s: Spent
    """The newcomer's, its prompt fed among the others' turns."""
    window_s: Took
    """From the newcomer's first token to its last."""
    window_tokens: Some
    """Of all sessions within it."""
    tpot_s: Spent
    """The newcomer's."""
    loop_s: Spent
    """Of our loop, a step of the newcomer's."""
    resident: Resident


@dataclass(frozen=True, slots=True)
class Sessions:
    prompt_tokens: Count
    """Of the newcomer."""
    context: Some
    """Of a slot."""
    slot_bytes: Count
    """Of a slot's caches, full, by the manifest."""
    runs: Annotated[tuple[Shared, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class ModelRun:
    facts: Facts
    context: Some
    prefill_s: Took
    load_s: Spent
    resident: Resident
    """Once it has made a step of each kind."""
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """What figures must share to be figures of one run."""

    machine: dict[str, str]
    bundle: str
    """Its manifest's sha256."""
    contexts: tuple[Some, ...]
    ks: tuple[Drafts, ...]
    sessions: tuple[Some, ...]
    acceptances: tuple[Share, ...]
    rounds: Some
    head: Literal["screened", "full"]
    drafter: str
    threads: int


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    edge_runtime: str
    settings: Settings
    started: str
    """Date and time in UTC."""
    command: str
    facts: Facts
    """Of the bundle; each model has its own."""
    context: Contexts | None = None
    sessions: Sessions | None = None
    models: tuple[ModelRun, ...] = ()
    complete: bool = False


def read_report(path: Path) -> Report:
    """Raises ``ConfigError``."""
    report = read_record(path, Report, SCHEMA, "a run of the bench's growth view")
    parts: list[Contexts | ModelRun] = [*([report.context] if report.context else []), *report.models]
    refuse_rounds(path, (step.round for part in parts for step in part.steps), report.settings.rounds)
    shared = report.sessions.runs if report.sessions else ()
    refuse_rounds(path, (run.round for run in shared), report.settings.rounds)
    return report
