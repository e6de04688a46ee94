"""A bar for long prompts, on stderr and only where a person watches. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import plain_console

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
