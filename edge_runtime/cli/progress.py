"""Bars of long work on stderr, where a person watches; elsewhere a line now and then. Knows no engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..console import plain_console

_WORTH_A_BAR = 512
"""Tokens: shorter prompts are read before a bar would be."""
_EVERY_S = 20.0
"""Between two lines of a log."""


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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[bool, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if (what == whole) not in tasks:
                tasks[what == whole] = bars.add_task(what, total=total)
            bars.update(tasks[what == whole], description=what, completed=max(done, 0), total=total)

        yield report


def _lines(what: str, total: int) -> Callable[[int], None]:
    began_s = told_s = time.monotonic()

    def report(done: int) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if not 0 < done < total or now_s - told_s < _EVERY_S:
            return
        told_s = now_s
        left_s = (now_s - began_s) * (total - done) / done
        click.echo(f"{what}: {done} of {total}, some {_duration(left_s)} to go", err=True)

    return report


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} minutes"
