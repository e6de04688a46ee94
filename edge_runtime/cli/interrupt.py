"""Ctrl-C while something is loaded or an answer is made. Knows no terminal and no engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Inside, Ctrl-C ends the process as it ends one that never heard of signals: there is nothing to tidy up.

    As an exception it would surface inside C libraries that are being imported, and come out as some other error.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Interrupt:
    """Inside ``with``, a first Ctrl-C sets ``asked``: it is obeyed between two steps, when session, caches and text
    agree. A second one is Python's own ``KeyboardInterrupt``, in case a step hangs.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raises ``KeyboardInterrupt`` if it was asked for."""
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.check()
        self.asked = True
