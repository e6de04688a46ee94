"""Stop strings over text that comes in parts. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError


class StopStrings:
    """Never emits a stop string, nor text that may still become one. Raises ``InputError`` for an empty one.

    The stop string that is complete first ends the text; of several that end at one character, the one that began
    first. So the result does not depend on how the text was cut into parts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise InputError("stop: an empty string would stop at once")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """What is certain now. After a match nothing more comes."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [(place + len(stop), place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            _, place, self.matched = min(found)
            certain, self._held = self._held[:place], ""
            return certain
        keep = max(self._overlap(stop) for stop in self._stops)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def flush(self) -> str:
        """What was held back, when the text ends otherwise."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        """Characters at the end of the text that begin ``stop``."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
