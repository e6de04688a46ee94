"""Tokens to certain text: whole characters, and nothing of a stop string. Knows no model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from .detokenizer import Detokenizer
from .stop import StopStrings


class TextStream:
    """What ``generation.Generation`` asks of a text."""

    def __init__(self, piece_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(piece_bytes)
        self._stops = StopStrings(stops)
        self._decoded = self._emitted = 0
        self._starts: list[int] = []
        """Per token, the characters that were whole before it."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stops.matched is not None

    @property
    def shown_tokens(self) -> int:
        """How many of the tokens have a share in the text that came out so far.

        After a stop: the others made nothing but the stop string and what stood behind it, and ids and
        log-probabilities that go out with the text end here. Of a character, all of its tokens count.
        """
        return bisect_left(self._starts, self._emitted)

    def push(self, token: int) -> str:
        self._starts.append(self._decoded)
        return self._emit(self._detokenizer.push(token))

    def flush(self) -> str:
        text = self._emit(self._detokenizer.flush())
        held = self._stops.flush()
        self._emitted += len(held)
        return text + held

    def _emit(self, text: str) -> str:
        self._decoded += len(text)
        certain = self._stops.push(text)
        self._emitted += len(certain)
        return certain
