"""A service as /v1/status tells it. Knows no HTTP."""

from __future__ import annotations

from .. import __version__
from ..config import BudgetConfig
from ..resident import resident
from ..scheduler.snapshot import Snapshot
from ..status import MemoryStatus, ModelStatus, RequestStatus, SpeculationStatus, SpeedStatus, Status
from .preparing import machine_room
from .service import Model, Service

_NO_REQUESTS = RequestStatus(0, 0, 0, 0, 0, 0, 0, 0)
_NO_SPECULATION = SpeculationStatus(False, "no model is loaded", 0.0, 0, 0, 0, None, None, ())
_NO_SPEED = SpeedStatus(0.0, None, None, None, None, 0, 0, 0)


def status_of(service: Service, snapshot: Snapshot | None) -> Status:
    """``snapshot`` of its scheduler, ``None`` while there is none."""
    standing, memory = service.standing, resident()
    return Status(
        state=standing.state,
        reason=standing.reason,
        version=__version__,
        uptime_s=max(0.0, service.clock() - service.started_s),
        model=None if standing.model is None else _model(standing.model),
        requests=_NO_REQUESTS if snapshot is None else snapshot.requests,
        slots=() if snapshot is None else snapshot.slots,
        speculation=_NO_SPECULATION if snapshot is None else snapshot.speculation,
        speed=_NO_SPEED if snapshot is None else snapshot.speed,
        memory=MemoryStatus(memory.peak, memory.now, memory.anonymous, _budget(service.config.budget)),
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
