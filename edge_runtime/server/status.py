"""A service as /v1/status tells it. Knows no HTTP."""

from __future__ import annotations

from .. import __version__
from ..config import BudgetConfig
from ..resident import resident
from ..scheduler.governing import BoardNow
from ..scheduler.snapshot import Snapshot
from ..status import (
    BoardStatus,
    BudgetStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SpeculationStatus,
    SpeedStatus,
    Status,
)
from .preparing import machine_room
from .service import Model, Service

_NO_REQUESTS = RequestStatus(0, 0, 0, 0, 0, 0, 0, 0)
_NO_SPECULATION = SpeculationStatus(False, "no model is loaded", 0.0, 0, 0, 0, None, None, ())
_NO_SPEED = SpeedStatus(0.0, None, None, None, None, 0, 0, 0)


def status_of(service: Service, snapshot: Snapshot | None) -> Status:
    """``snapshot`` of its scheduler, ``None`` while there is none."""
    standing, memory = service.standing, resident()
    state, reason = standing.state, standing.reason
    if state == "ready" and snapshot is not None and snapshot.refusal:
        # The engine's thread has ended, and the daemon is about to.
        state, reason = "failed", snapshot.refusal
    return Status(
        state=state,
        reason=reason,
        version=__version__,
        uptime_s=max(0.0, service.clock() - service.started_s),
        model=None if standing.model is None else _model(standing.model),
        requests=_NO_REQUESTS if snapshot is None else snapshot.requests,
        slots=() if snapshot is None else snapshot.slots,
        speculation=_NO_SPECULATION if snapshot is None else snapshot.speculation,
        speed=_NO_SPEED if snapshot is None else snapshot.speed,
        memory=MemoryStatus(memory.peak, memory.now, memory.anonymous, _budget(service.config.budget)),
        board=BoardStatus() if snapshot is None or snapshot.board is None else _board(snapshot.board),
        budget=BudgetStatus() if snapshot is None or snapshot.board is None else _allowed(snapshot.board),
    )


def _board(board: BoardNow) -> BoardStatus:
    sample = board.sample if board.is_fresh else None
    joules = None if board.energy is None or not board.energy.measured_s else board.energy.joules
    if sample is None:
        state = board.budget.state
        return BoardStatus(throttle_state=state, joules=joules, busy_s=board.busy_s, trouble=board.trouble)
    hottest, clock_mhz = sample.hottest, sample.gpu.clock_mhz
    return BoardStatus(
        power_mw=sample.power_mw,
        temperature_c=None if hottest is None else hottest.temperature_c,
        gpu_clock_mhz=None if clock_mhz is None else round(clock_mhz),
        throttle_state=board.budget.state,
        joules_per_token=board.joules_per_token,
        joules=joules,
        power_mode=sample.power_mode,
        source=sample.source,
        trouble=board.trouble or "; ".join(sample.problems) or None,
        busy_s=board.busy_s,
    )


def _allowed(board: BoardNow) -> BudgetStatus:
    budget, power = board.budget, board.budget.power
    return BudgetStatus(
        num_draft_tokens=budget.max_draft_tokens,
        pace_s=board.pace_s,
        admit=budget.admit,
        reason=budget.reason,
        power_mw=None if power is None else round(1e3 * power.allowed_w),
    )


def _budget(budget: BudgetConfig) -> int | None:
    """As configured, or all but the reserve."""
    room = machine_room(budget)
    return budget.memory_bytes if room is None else room.budgeted


def _model(model: Model) -> ModelStatus:
    return ModelStatus(
        name=model.name,
        family=model.family,
        bundle=str(model.directory),
        bundle_bytes=model.bundle_bytes,
        context=model.context,
        drafter=model.drafter,
        load_s=model.load_s,
    )
