"""Ctrl-C while something is loaded or an answer is made, and other ends where something has to be undone. Knows no
terminal and no engine.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


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


@contextmanager
def ends_tidily() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP end the process as Ctrl-C does, by an exception: what was begun is undone, folders and
    processes of our own with it. A second one ends it at once. Where they are ignored, as under nohup, they stay so.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    numbers = [number for number in _ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
