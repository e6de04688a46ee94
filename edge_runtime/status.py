"""What /v1/status says: the daemon at one moment. Server and client share it. ``None``: not known on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelStatus:
    name: str
    family: str
    bundle: str
    """Its directory."""
    bundle_bytes: int
    context: int
    """Tokens of a slot."""
    drafter: str
    load_s: float


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """Counts since the start of the daemon, but for the first two, which are now."""

    running: int
    waiting: int
    queue_limit: int
    received: int
    finished: int
    failed: int
    cancelled: int
    refused: int
    last_failure: str = ""
    """Why the last answer failed that an engine, or the daemon itself, ended; empty: none has since the start."""
    last_failure_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class SlotStatus:
    slot: int
    busy: bool
    tokens: int
    """In its cache."""
    idle_s: float | None
    """Since it was last used; ``None`` while it is busy."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What one source of drafts brought since the start."""

    source: str
    steps: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """Whether drafting runs, why not, and what it brings. Counts since the start."""

    running: bool
    """Whether any of the last steps drafted."""
    reason: str
    """Of the last step's K."""
    num_draft_tokens: float
    """Mean K of the last steps."""
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    acceptance_rate: float | None
    acceptance_length: float | None
    acceptance_by_position: tuple[float, ...]
    draft_mean_log_likelihood: float | None = None
    """Per draft that was judged, under the target."""
    draft_share: float | None = None
    """Of the time of decoding, as the next two; what prefill takes is left out."""
    verify_share: float | None = None
    host_share: float | None = None
    sources: tuple[SourceStatus, ...] = ()
    notes: tuple[str, ...] = ()
    """Where drafting misses a mark of health."""


@dataclass(frozen=True, slots=True)
class SpeedStatus:
    """Over the last answers."""

    tokens_per_s: float
    """Committed in the last seconds, all sessions together; 0 while idle."""
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None
    tpot_ms_p95: float | None
    generated_tokens: int
    """Since the start."""
    prompt_tokens: int
    cached_prompt_tokens: int
    """Of ``prompt_tokens``, not computed again."""


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    peak_bytes: int
    now_bytes: int
    anonymous_bytes: int
    budget_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """From telemetry."""

    power_mw: int | None = None
    temperature_c: float | None = None
    gpu_clock_mhz: int | None = None
    throttle_state: str | None = None
    joules_per_token: float | None = None
    """Of the last turns, waits and prompts included."""
    joules: float | None = None
    """Since the start, while power was read."""
    power_mode: str | None = None
    source: str | None = None
    """Of the readings."""
    trouble: str | None = None
    """Why nothing is read now, or what the readings lack; values that are old are not shown."""
    busy_s: float | None = None
    """That the engine's thread spent in turns since the start, waits left out."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """What the governor allows."""

    num_draft_tokens: int | None = None
    pace_s: float | None = None
    admit: bool | None = None
    reason: str | None = None
    power_mw: int | None = None
    """That steps are paced to."""


@dataclass(frozen=True, slots=True)
class Status:
    state: Literal["loading", "ready", "draining", "failed"]
    reason: str
    """Why it is not ready; when it is, what the last reload could not do, or nothing."""
    version: str
    uptime_s: float
    model: ModelStatus | None
    requests: RequestStatus
    slots: tuple[SlotStatus, ...]
    speculation: SpeculationStatus
    speed: SpeedStatus
    memory: MemoryStatus
    board: BoardStatus = BoardStatus()
    budget: BudgetStatus = BudgetStatus()
