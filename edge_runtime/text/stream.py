"""Tokens to certain text: whole characters, and nothing of a stop string. Knows no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .detokenizer import Detokenizer
from .stop import StopStrings


class TextStream:
    """What ``generation.Generation`` asks of a text."""

    def __init__(self, piece_bytes: Callable[[int], bytes], stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(piece_bytes)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stops.matched is not None

    def push(self, token: int) -> str:
        return self._stops.push(self._detokenizer.push(token))

    def flush(self) -> str:
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()
