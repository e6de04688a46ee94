"""Joules of what runs between two calls, for programs without a governor. Knows no engine.

On a machine whose power nobody reads there are none, and the reason says so: a zero would be a claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .energy import Energy
from .monitor import Monitor
from .opening import Jtop, open_source


class Meter:
    def __init__(self, monitor: Monitor | None = None, reason: str = "nobody reads the power") -> None:
        """``monitor``: running, and somebody else's to close. ``reason``: where readings come from, or why none do."""
        self.reason = reason
        self._monitor = monitor
        self._mark: Energy | None = None

    def start(self) -> None:
        self._mark = None if self._monitor is None else self._monitor.energy()

    def taken_j(self) -> float | None:
        """Of the whole board since ``start``; ``None`` unless its power was read at both ends."""
        if self._monitor is None or self._mark is None:
            return None
        now = self._monitor.energy()
        if now.last_w is None or now.unmeasured_s > self._mark.unmeasured_s:
            return None
        return now.joules - self._mark.joules


@contextmanager
def board_meter(root: Path = Path("/"), jtop: Jtop | None = None) -> Iterator[Meter]:
    """Of this machine, by the best source that it has; on one that is no Jetson it costs nothing. ``root``: where the
    file system begins."""
    opened = open_source("auto", root, jtop)
    if opened.source is None:
        yield Meter(None, opened.reason)
        return
    with Monitor(opened.source) as monitor:
        monitor.poll()
        yield Meter(monitor, opened.reason)
