"""Progress bars of the workstation's command line. Knows no work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

ProgressCall = Callable[[str, int, int], None]
"""(stage, done, total); what stands behind a colon in the stage is news about it."""


@contextmanager
def progress_bars() -> Iterator[ProgressCall]:
    """One bar per stage, on stderr; silent where stderr is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True, markup=False, emoji=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            stage = what.partition(":")[0]
            if stage not in tasks:
                tasks[stage] = bars.add_task(what, total=total)
            bars.update(tasks[stage], description=what, completed=done, total=total)

        yield report
