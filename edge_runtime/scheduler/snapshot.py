"""A scheduler at one moment, for status and metrics. Knows nothing that moves."""

from __future__ import annotations

from dataclasses import dataclass

from ..status import RequestStatus, SlotStatus, SpeculationStatus, SpeedStatus
from .governing import BoardNow


@dataclass(frozen=True, slots=True)
class RunningAnswer:
    number: int
    """Of its ticket."""
    model: str
    slot: int
    client: int
    priority: int
    prompt_tokens: int
    cached_tokens: int
    fed_tokens: int
    """Of the prompt, in the cache by now."""
    generated_tokens: int
    running_s: float
    """Since it left the queue."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    model: str
    """That new requests go to."""
    refusal: str
    """Why none are accepted; empty while they are."""
    requests: RequestStatus
    running: tuple[RunningAnswer, ...]
    slots: tuple[SlotStatus, ...]
    """Of ``model``."""
    speculation: SpeculationStatus
    speed: SpeedStatus
    steps: int
    """Decoding steps since the start, those of prefill left out."""
    tried_by_position: tuple[int, ...]
    """Drafts that were judged since the start, by their place in the draft."""
    accepted_by_position: tuple[int, ...]
    beat_s: float
    """The last sign of life of the engine's thread, on the scheduler's clock."""
    idle: bool
    """Whether it waits for work; a beat is owed only while it does not."""
    board: BoardNow | None = None
