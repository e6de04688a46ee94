"""What ``bench --view batch`` found, as it goes into a file. Knows no engine."""

from __future__ import annotations

from dataclasses import dataclass

from ..stats import Ratio

SCHEMA = 1
TURNS, BATCH = "turns", "batch"


@dataclass(frozen=True, slots=True)
class StepCell:
    """One step of ``sessions`` sessions, K drafts each: body, head and readout of K + 1 rows."""

    sessions: int
    drafts: int
    turns_s: float
    """Median over rounds of all sessions' steps, one after the other."""
    batch_s: float
    speedup: Ratio
    """Of the batch, over pairs."""
    apart: float
    """Largest difference of a candidate's logit between the two."""
    other_argmax: int
    """Rows whose best token differed, in all rounds."""


@dataclass(frozen=True, slots=True)
class Way:
    """Answers of equal length, sessions of different acceptance, run to the end."""

    sessions: int
    way: str
    """turns, batch, or padded: a batch whose lanes all have the rows of its longest draft."""
    lengths: str
    """none: no drafts; uniform: the best K for all; own: the best of each session, this way; alone: the best of each,
    taking turns."""
    drafts: tuple[int, ...]
    """K of each session."""
    tokens_per_s: float
    """Committed, of all sessions; median over rounds."""
    over_turns: Ratio
    """Seconds of turns with own lengths over those of this way, over pairs."""
    rejected: float
    """Share of the rows that were verified in vain."""
    padded: float
    """Share of the rows that stood for nothing, behind a draft shorter than the longest."""
    idle: float
    """Share of the lanes that were done and waited for the slowest answer, of lanes times steps. Of turns: 0."""
    first_done: float
    """When the first answer was done, as a share of the whole."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a process with one slot of 256 tokens, after a step of 8 rows. Bytes."""

    loaded: str
    """plain, lanes, or both bodies."""
    resident: int
    anonymous: int


@dataclass(frozen=True, slots=True)
class BatchReport:
    schema: int
    edge_runtime: str
    started: str
    command: str
    machine: dict[str, str]
    bundle: str
    precision: str
    lanes: int
    threads: int
    rounds: int
    tokens: int
    """Of an answer."""
    context: int
    """Tokens that a session holds when its answer begins."""
    rates: tuple[float, ...]
    steps: tuple[StepCell, ...]
    ways: tuple[Way, ...]
    memory: tuple[Memory, ...]
