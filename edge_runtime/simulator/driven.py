"""A plant in real time behind a fake tree: who reads the tree sees a board that warms up under a load. Knows no load
but the share of the time that somebody says is busy, and no clock but the one it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..telemetry.sample import Sample, Zone
from .devices import ZONES
from .plant import Plant
from .tree import BoardTree

_TICK_S = 0.1
_LONGEST_S = 5.0
"""That a tick may be late by: after a longer one the board stood still with whoever drives it, for that process was
stopped, or the machine slept."""
_COOLER_C = 1.5
"""Other zones than the hottest of all, which stands for the whole die."""


def duty_in(path: Path) -> Callable[[], float]:
    """The busy share that a file says, from 0 to 1; 0 while it says nothing of the kind."""

    def read() -> float:
        try:
            return min(1.0, max(0.0, float(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError):
            return 0.0

    return read


def drive(
    tree: BoardTree,
    plant: Plant,
    duty: Callable[[], float],
    k: int,
    until: Callable[[], bool],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    speed: float = 1.0,
) -> None:
    """Until ``until``: the tree shows the plant, under steps of K drafts for ``duty`` of the time.

    ``speed``: seconds of the plant by one of the clock, so that a heat sink need not take its time.
    """
    last_s = clock()
    while not until():
        now_s = clock()
        passed_s = now_s - last_s if 0.0 <= now_s - last_s <= _LONGEST_S else 0.0
        plant.work(passed_s * speed, duty(), k)
        tree.show(_everywhere(plant.shown()))
        tree.advance(passed_s)
        last_s = now_s
        sleep(_TICK_S)


def _everywhere(sample: Sample) -> Sample:
    hottest = sample.hottest
    assert hottest is not None  # a plant has a temperature
    cooler = hottest.temperature_c - _COOLER_C
    return replace(sample, zones=tuple(hottest if name == hottest.name else Zone(name, cooler) for name in ZONES))
