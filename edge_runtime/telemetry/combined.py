"""One sample out of two sources. Knows no file and no service: the near one is asked first, the far one fills gaps."""

from __future__ import annotations

from dataclasses import replace

from .sample import GpuReading, Sample
from .source import TelemetrySource

_FRESH_S = 3.0
"""A value that is older is none."""


class CombinedSource:
    def __init__(self, near: TelemetrySource, far: TelemetrySource, fresh_s: float = _FRESH_S) -> None:
        """``near``: the one that reads when it is asked."""
        self.parts = (near, far)
        self.name = f"{near.name}+{far.name}"
        self._near, self._far, self._fresh_s = near, far, fresh_s

    @property
    def trouble(self) -> str | None:
        """That of the far one only where the near one has nothing."""
        return self._near.trouble and (self._far.trouble and f"{self._near.trouble}; {self._far.trouble}")

    def latest(self) -> Sample | None:
        near, far = self._near.latest(), self._far.latest()
        if near is None or far is None:
            return near or far
        return near if near.time_s - far.time_s > self._fresh_s else filled(near, far)

    def close(self) -> None:
        for source in self.parts:
            source.close()


def filled(near: Sample, far: Sample) -> Sample:
    """``near`` with what it lacks and ``far`` has. With a power, a temperature or a clock of the other one it is as old
    as the older of both; a power mode or a fan changes nothing about its age.
    """
    gpu = GpuReading(
        far.gpu.clock_mhz if near.gpu.clock_mhz is None else near.gpu.clock_mhz,
        far.gpu.max_clock_mhz if near.gpu.max_clock_mhz is None else near.gpu.max_clock_mhz,
        far.gpu.load if near.gpu.load is None else near.gpu.load,
    )
    whole = replace(
        near,
        zones=near.zones or far.zones,
        gpu=gpu,
        memory=near.memory or far.memory,
        power_mode=near.power_mode or far.power_mode,
        fan=far.fan if near.fan is None else near.fan,
    )
    if near.power_mw is None and far.power_mw is not None:
        solved = tuple(problem for problem in near.problems if not problem.startswith("power:"))
        whole = replace(whole, power_mw=far.power_mw, rails=far.rails, problems=solved)
    if whole == near:
        return near
    quick = (whole.power_mw, whole.zones, whole.gpu) == (near.power_mw, near.zones, near.gpu)
    time_s = near.time_s if quick else min(near.time_s, far.time_s)
    return replace(whole, source=f"{near.source}+{far.source}", time_s=time_s)
