"""What a run keeps of each program. Knows no figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCHEMA = 1
PromptKind = Literal["open", "copy"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole one, its prompt in it."""

    round: int
    kind: PromptKind
    prompt: str
    seconds: float
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds until it behind a long prompt: one that is new, and one that begins as the prompt before."""

    round: int
    cold_s: float
    warm_s: float


@dataclass(frozen=True, slots=True)
class Rival:
    """A program in one of its modes. ``None``: it did not come so far."""

    kind: str
    mode: str
    weights: str = ""
    """How they are stored, in its own words."""
    versions: dict[str, str] | None = None
    load_s: float | None = None
    answers: tuple[Answer, ...] = ()
    firsts: tuple[FirstToken, ...] = ()
    peak_bytes: int | None = None
    nll: float | None = None
    error: str | None = None
    """Why it is out, in one line: it has no figures then."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.mode}"

    @property
    def whole(self) -> bool:
        """Whether it came to the end."""
        return self.error is None and self.nll is not None and self.peak_bytes is not None


@dataclass(frozen=True, slots=True)
class Settings:
    machine: dict[str, str]
    bundle: str
    """sha256 of its manifest."""
    checkpoint: str
    """sha256 of the file that the peers load; the name of a directory."""
    rounds: int
    tokens: int
    prefix_tokens: int
    nll_tokens: int
    threads: int
    context: int


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    edge_runtime: str
    started: str
    command: str
    settings: Settings
    rivals: tuple[Rival, ...]
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Entrant:
    """Who is to run: how he is started, or why he cannot be."""

    kind: str
    mode: str
    program: str
    """A file; of ours, a module of this package."""
    python: Path | None
    """``None``: this one."""
    source: Path
    format: str | None = None
    """That the checkpoint is made into first, at ``place``."""
    place: Path | None = None
    directory: Path | None = None
    """That others share: the checkpoint as a Hugging Face directory."""
    assistant: Path | None = None
    missing: str | None = None
    """Why he cannot run."""
