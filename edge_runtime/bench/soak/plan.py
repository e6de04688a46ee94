"""How long a soak runs, how hard, and what its laps hold. Knows no daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .mix import Sizes

What = Literal["limits", "warm", "engine", "memory", "swap", "no swap", "hot", "crowd", "back"]
LAP: tuple[What, ...] = ("limits", "warm", "engine", "memory", "swap", "no swap", "hot", "crowd", "back")
"""What happens in each lap, in this order. At its end the daemon serves what it served first."""
DRAFTERS = ("lookup", "none", "suffix")
"""That a reload turns to, lap by lap; the answers stay what they are."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    minutes: float
    laps: int
    """That are run at least, however long they take."""
    lap_s: float
    """Of load; the rest behind it comes on top."""
    clients: int
    sessions: int
    threads: int
    context: int
    think_s: float
    """Longest pause of a client between two requests."""
    hold_s: float
    """How long heat and want of memory last."""
    probes: int
    """Answers that are timed in each rest."""
    crowd: int
    """Clients that come at once,"""
    queue: int
    """and how many of them may wait."""
    limit_c: float
    air_c: float
    warm_c: float
    """Air that makes the governor pace steps,"""
    hot_c: float
    """and that makes the idle board too hot already."""
    patience_s: float
    """For one answer, and for the daemon to be itself again."""
    seed: int
    sizes: Sizes


def soak_plan(minutes: float, lap_minutes: float, clients: int, threads: int, limit_c: float, seed: int) -> SoakPlan:
    """Of the size of a real model."""
    return SoakPlan(
        minutes=minutes, laps=1, lap_s=60.0 * lap_minutes, clients=clients, sessions=3, threads=threads,
        context=2048, think_s=4.0, hold_s=15.0, probes=6, crowd=24, queue=12, limit_c=limit_c,
        air_c=limit_c - 35.0, warm_c=limit_c - 20.0, hot_c=limit_c + 30.0, patience_s=1200.0, seed=seed, sizes=Sizes(),
    )  # fmt: skip
