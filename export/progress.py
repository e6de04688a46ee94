"""Progress bars of the workstation's command line. Knows no work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from edge_runtime.console import SlowLines, plain_console

ProgressCall = Callable[[str, int, int], None]
"""(stage, done, total); what stands behind a colon in the stage is news about it."""


@contextmanager
def progress_bars() -> Iterator[ProgressCall]:
    """One bar per stage, on stderr; a line now and then where that is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = plain_console(stderr=True)
    if not console.is_terminal:
        lines = SlowLines()
        yield lambda what, done, total: lines.tell(f"{what}: {100 * done // max(total, 1)}%")
        return
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            stage = what.partition(":")[0]
            if stage not in tasks:
                tasks[stage] = bars.add_task(what, total=total)
            bars.update(tasks[stage], description=what, completed=done, total=total)

        yield report
