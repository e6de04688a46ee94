"""When to ask again. Knows no connection and no clock."""

from __future__ import annotations

_FIRST_S = 0.05
_LONGEST_S = 1.0


class Patience:
    """Waits that double, until so many seconds are over."""

    def __init__(self, patience_s: float, now_s: float, *, longest_s: float = _LONGEST_S) -> None:
        self._until_s, self._wait_s, self._longest_s = now_s + patience_s, _FIRST_S, longest_s

    def wait_s(self, now_s: float, retry_after_s: float | None = None) -> float | None:
        """How long to wait now, at least what the daemon asked for; ``None``: give up, for it would be too long."""
        wait_s = max(self._wait_s, retry_after_s or 0.0)
        if now_s + wait_s > self._until_s:
            return None
        self._wait_s = min(2.0 * self._wait_s, self._longest_s)
        return wait_s
