"""The board as the daemon meets it: where readings come from, and what the log says of it. Knows no governor's rule."""

from __future__ import annotations

import logging
from pathlib import Path

from ..budget import Budget
from ..config import BudgetConfig
from ..scheduler.governing import Governing
from ..telemetry.monitor import Monitor
from ..telemetry.opening import open_source
from ..telemetry.recording import ReplaySource, read_recording
from ..telemetry.source import TelemetrySource
from .logs import event

_LOG = logging.getLogger(__name__)
READINGS = ("telemetry", "interval_s", "recording")
"""Keys of the budget that say where readings come from: what only a restart changes."""


def governing_of(budget: BudgetConfig, root: Path = Path("/")) -> tuple[Governing, Monitor | None]:
    """The monitor runs, and is the caller's to close; ``None``: nothing can be read here, and limits that need
    readings hold the daemon to its blind setting. ``root``: where the file system begins. Raises ``ConfigError``."""
    source, reason = _source(budget, root)
    _LOG.info(event("telemetry", source=None if source is None else source.name, reason=reason))
    monitor = None if source is None else Monitor(source, budget.interval_s, budget.stale_s)
    if monitor is not None:
        monitor.start()
    return Governing(budget.limits, monitor, _turned), monitor


def _source(budget: BudgetConfig, root: Path) -> tuple[TelemetrySource | None, str]:
    if budget.telemetry == "replay":
        assert budget.recording is not None  # the configuration was checked
        recording = read_recording(Path(budget.recording))
        reason = f"readings of {budget.recording}" + (f"; {recording.note}" if recording.note else "")
        return ReplaySource(recording.samples), reason
    opened = open_source(budget.telemetry, root)
    return opened.source, opened.reason


def _turned(budget: Budget) -> None:
    log = _LOG.info if budget.state in ("normal", "unmonitored", "warm") else _LOG.warning
    log(event("board", state=budget.state, admit=budget.admit, reason=budget.reason))


class Trouble:
    """What the readings suffer from, told to the log when it changes."""

    def __init__(self, monitor: Monitor | None) -> None:
        self._monitor = monitor
        self._told: str | None = None

    def look(self) -> None:
        trouble = None if self._monitor is None else self._monitor.trouble
        if trouble == self._told:
            return
        self._told = trouble
        if trouble is None:
            _LOG.info(event("telemetry", trouble="over"))
        else:
            _LOG.warning(event("telemetry", trouble=trouble))
