"""What a source of samples is. Knows none of them."""

from __future__ import annotations

from typing import Protocol

from .sample import Sample


class TelemetrySource(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def trouble(self) -> str | None:
        """Why there is no sample, or why the last one is old: one line that says what to do. ``None`` while all is
        well."""
        ...

    def latest(self) -> Sample | None:
        """The newest sample. Never waits for a board, a service or a process; raises nothing. How old it is, its
        ``time_s`` says."""
        ...

    def close(self) -> None:
        """Once or more often."""
        ...
