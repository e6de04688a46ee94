"""How much energy a board has taken: the integral of its power over time. Pure; knows no clock and no source."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Energy:
    """Since whoever counts began. What it was between two readings is half of each; where there is no reading for
    longer than ``longest_gap_s``, or one without a power, nobody knows: that time is not counted, and is told.
    """

    longest_gap_s: float
    joules: float = 0.0
    measured_s: float = 0.0
    unmeasured_s: float = 0.0
    last_s: float | None = None
    last_w: float | None = None

    @property
    def mean_w(self) -> float | None:
        """Over the time that was measured."""
        return self.joules / self.measured_s if self.measured_s > 0.0 else None

    def after(self, time_s: float, power_mw: float | None) -> Energy:
        """With one more reading; one that is not newer than the last changes nothing."""
        power_w = None if power_mw is None else power_mw / 1e3
        if self.last_s is None:
            return replace(self, last_s=time_s, last_w=power_w)
        gap_s = time_s - self.last_s
        if gap_s <= 0.0:
            return self
        if self.last_w is None or power_w is None or gap_s > self.longest_gap_s:
            return replace(self, unmeasured_s=self.unmeasured_s + gap_s, last_s=time_s, last_w=power_w)
        return replace(
            self,
            joules=self.joules + 0.5 * (self.last_w + power_w) * gap_s,
            measured_s=self.measured_s + gap_s,
            last_s=time_s,
            last_w=power_w,
        )

    def at(self, now_s: float) -> Energy:
        """As if the last power had held until now. For the difference between two moments, which lie between readings:
        each later reading corrects it.
        """
        return self.after(now_s, None if self.last_w is None else 1e3 * self.last_w)
