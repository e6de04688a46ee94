"""The newest sample and the energy so far, for whoever asks. Knows a source and a clock; nothing of what is done with
either.

One thread polls, the others read one reference that it replaces: nobody waits for anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .energy import Energy
from .plausible import possible
from .sample import Sample
from .source import TelemetrySource

INTERVAL_S = 0.25
STALE_S = 3.0
_AHEAD_S = 1.0
"""A reading of a time to come, by more than that, is a lie: it would never grow old."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known at one moment; all of it belongs together."""

    sample: Sample | None
    energy: Energy
    trouble: str | None = None
    """Why there is no sample, or none that is new."""

    def age_s(self, now_s: float) -> float | None:
        return None if self.sample is None else now_s - self.sample.time_s


class Monitor:
    def __init__(
        self,
        source: TelemetrySource,
        interval_s: float = INTERVAL_S,
        stale_s: float = STALE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over the source, and closes it. ``stale_s``: what is older is no reading, and energy is not counted
        over longer gaps.

        It polls from ``start`` on.
        """
        self.source = source
        self._interval_s, self._stale_s = interval_s, stale_s
        self._clock = clock
        self._watched = Watched(None, Energy(stale_s))
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def watched(self) -> Watched:
        return self._watched

    @property
    def latest(self) -> Sample | None:
        return self._watched.sample

    @property
    def trouble(self) -> str | None:
        """Why nothing is read now, in one line that stays the same while it does; ``None`` while all is well."""
        watched = self._watched
        age_s = watched.age_s(self._clock())
        if watched.trouble is None and (age_s is None or age_s > self._stale_s):
            return f"{self.source.name}: nothing was read for more than {self._stale_s:g} s"
        return watched.trouble

    @property
    def is_fresh(self) -> bool:
        """Whether the latest sample still says what is."""
        age_s = self._watched.age_s(self._clock())
        return age_s is not None and age_s <= self._stale_s

    def energy(self) -> Energy:
        """Up to now, as far as it can be told: of two of these the difference counts."""
        return self._watched.energy.at(self._clock())

    def poll(self) -> Watched:
        """One step of the thread; for whoever has a clock of his own."""
        try:
            sample, trouble = self.source.latest(), self.source.trouble
        except Exception as problem:  # noqa: BLE001 -- a source's bug must not leave the governor with old values
            sample, trouble = None, f"{self.source.name}: {type(problem).__name__}: {problem}"
        if sample is not None:
            # Whatever source it is: what no board can be must reach neither governor nor status.
            sample = possible(sample)
            if not sample.time_s <= self._clock() + _AHEAD_S:
                sample, trouble = None, f"{self.source.name}: its readings are of a time to come"
        before = self._watched
        energy = before.energy
        if sample is not None:
            energy = energy.after(sample.time_s, sample.power_mw)
        self._watched = Watched(before.sample if sample is None else sample, energy, trouble)
        return self._watched

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self.source.close()

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self.poll()
            self._closing.wait(self._interval_s)
