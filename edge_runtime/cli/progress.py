"""Bars of long work on stderr, where a person watches; elsewhere a line now and then. Knows no engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..console import SlowLines, plain_console

_WORTH_A_BAR = 512
"""Tokens: shorter prompts are read before a bar would be."""


@contextmanager
def prefill_progress(prompt_tokens: int) -> Iterator[Callable[[int, int], None] | None]:
    """A callback (tokens done, tokens in all), or ``None`` where no bar is wanted. The bar is gone afterwards."""
    console = plain_console(stderr=True)
    if prompt_tokens < _WORTH_A_BAR or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("prompt", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("prompt", total=prompt_tokens)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def long_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A callback (done so far). The bar is gone afterwards."""
    console = plain_console(stderr=True)
    if not console.is_terminal:
        yield _lines(what, total)
        return
    columns = (TextColumn(what, markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda done: bars.update(task, completed=done)


@contextmanager
def nested_progress(whole: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """A callback (what, done, total): a bar for ``whole``, one for all else that is done within it, one by one."""
    console = plain_console(stderr=True)
    if not console.is_terminal:
        yield _nested_lines(whole)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[bool, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if (what == whole) not in tasks:
                tasks[what == whole] = bars.add_task(what, total=total)
            bars.update(tasks[what == whole], description=what, completed=max(done, 0), total=total)

        yield report


def _nested_lines(whole: str) -> Callable[[str, int, int], None]:
    lines, told = SlowLines(), -1
    begun = False

    def report(what: str, done: int, total: int) -> None:
        nonlocal begun, told
        done = max(done, 0)
        # The first of all, and each one of the whole.
        news = what == whole and done != told
        lines.tell(f"{what}: {done} of {total}", now=news or not begun)
        begun, told = True, done if what == whole else told

    return report


def _lines(what: str, total: int) -> Callable[[int], None]:
    lines, began_s = SlowLines(), time.monotonic()

    def report(done: int) -> None:
        if 0 < done < total:
            left_s = (time.monotonic() - began_s) * (total - done) / done
            lines.tell(f"{what}: {done} of {total}, some {duration(left_s)} to go")

    return report


def duration(seconds: float) -> str:
    """In words, as long as it matters."""
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} minutes"
