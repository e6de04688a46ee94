"""What a board draws, out of its rails. Pure: knows no sensor and no file.

The rails of a Nano or NX are parts of VDD_IN, those of an AGX add up. A rail that vanishes must not make the total
fall: there is no total then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..boards import AGX_RAILS, SMALL_BOARD_RAILS, Board
from .sample import Rail

MOST_MW = 200_000
"""No board of this kind draws that: a sensor's bus has failed."""


@dataclass(frozen=True, slots=True)
class Total:
    power_mw: int | None
    problem: str | None = None


def total_power(rails: Sequence[Rail], board: Board | None) -> Total:
    """``board``: as far as it is known; otherwise the rails' names tell which kind it is."""
    read = {rail.name.upper(): rail.power_mw for rail in rails}
    parts = _parts(read.keys(), board)
    if parts is None:
        return Total(None, "power: no rail is known to be the whole board's" if read else "power: no sensor")
    if missing := [name for name in parts if name not in read]:
        return Total(None, f"power: {', '.join(missing)} cannot be read, so there is no total")
    total = sum(read[name] for name in parts)
    return Total(total) if 0 < total < MOST_MW else Total(None, f"power: {' + '.join(parts)} reads {total} mW")


def _parts(names: Collection[str], board: Board | None) -> tuple[str, ...] | None:
    if board is not None:
        return board.total_rails
    if not set(SMALL_BOARD_RAILS).isdisjoint(names):
        return SMALL_BOARD_RAILS[:1]
    return None if set(AGX_RAILS).isdisjoint(names) else AGX_RAILS
