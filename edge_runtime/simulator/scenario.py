"""What a plant is put through: limits, texts, time. Random ones for studies, one for each board by name. Pure.

The figures of boards are guesses at the size of published ones, never measurements: what a simulation shows is how a
governor behaves, not how fast a board is.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from ..boards import Board, board_named
from ..budget import Limits
from .plant import Cooling, Electrics, Hardware, PlantParameters, Sensors, Work, resting, step_cost

MOST_DRAFTS = 8
_LEAD_IN_S = (5.0, 20.0)
_CLOCKS = 14
_LOWEST_CLOCK_MHZ = 306.0


@dataclass(frozen=True, slots=True)
class Texts:
    """How far drafts are accepted, by stretches of time."""

    ends_s: tuple[float, ...]
    first: tuple[float, ...]
    """Chance of the first draft,"""
    decay: tuple[float, ...]
    """and of each later one relative to the one before it."""

    def at(self, time_s: float) -> tuple[float, float]:
        for end_s, first, decay in zip(self.ends_s, self.first, self.decay, strict=True):
            if time_s < end_s:
                return first, decay
        return self.first[-1], self.decay[-1]


@dataclass(frozen=True, slots=True)
class Scenario:
    plant: PlantParameters
    temperature_c: float | None
    caps: tuple[tuple[float, int | None], ...]
    """(from when, mW), the first from 0."""
    texts: Texts
    lead_in_s: float
    """Without work: the daemon has started and waits."""
    seconds: float
    seed: int

    def cap_mw(self, time_s: float) -> int | None:
        return next(cap for since_s, cap in reversed(self.caps) if time_s >= since_s)

    def limits(self, time_s: float) -> Limits:
        return Limits(power_mw=self.cap_mw(time_s), temperature_c=self.temperature_c)


def full_w(plant: PlantParameters, k: int, die_c: float = 60.0) -> float:
    """Drawn by steps of K without waits, at the highest clock."""
    cost = step_cost(plant, k, 1.0, 1.0)
    return plant.electrics.idle_w + plant.electrics.leakage(die_c) + cost.joules / cost.seconds


def random_plant(seed: int) -> PlantParameters:
    """Anything between a Nano in a closed box and an AGX in the wind. The same seed, the same plant."""
    draw = random.Random(seed)
    while True:
        plant = _drawn(draw, seed)
        if resting(plant)[0] < plant.hardware.passive_c - 2.0:
            return plant


def _drawn(draw: random.Random, seed: int) -> PlantParameters:
    size = _log_uniform(draw, 1.0, 4.0)
    memory_s = _log_uniform(draw, 0.016, 0.09)
    electrics = Electrics(
        idle_w=draw.uniform(2.5, 4.5) * size,
        leak_w=draw.uniform(0.2, 0.8) * size,
        leak_doubles_c=draw.uniform(20.0, 40.0),
        host_w=draw.uniform(1.0, 2.5) * size,
        clock_w=draw.uniform(1.0, 3.0) * size,
        memory_w=draw.uniform(1.5, 4.0) * size,
        compute_w=draw.uniform(3.0, 10.0) * size,
        low_voltage=draw.uniform(0.6, 0.8),
    )
    cooling = Cooling(
        ambient_c=draw.uniform(-5.0, 55.0),
        die_j_per_c=draw.uniform(8.0, 40.0) * size,
        sink_j_per_c=draw.uniform(60.0, 400.0) * size,
        die_c_per_w=draw.uniform(0.25, 1.0) / size,
        sink_c_per_w=draw.uniform(1.8, 5.0) / size,
        fan_gain=0.0 if draw.random() < 0.3 else draw.uniform(0.5, 2.5),
        fan_start_c=draw.uniform(35.0, 60.0),
        fan_full_c=draw.uniform(70.0, 95.0),
        fan_lag_s=draw.uniform(2.0, 15.0),
    )
    work = Work(
        memory_s=memory_s,
        compute_s=memory_s * draw.uniform(0.3, 1.0),
        row_share=_log_uniform(draw, 0.03, 0.35),
        host_s=draw.uniform(0.0015, 0.006),
        draft_share=_log_uniform(draw, 0.03, 0.3),
    )
    sensors = Sensors(
        interval_s=draw.uniform(0.1, 1.0),
        delay_s=draw.uniform(0.1, 1.0),
        smoothing_s=draw.uniform(0.1, 0.5),
        power_noise=draw.uniform(0.005, 0.03),
        power_gain=draw.uniform(0.99, 1.01),
        temperature_noise_c=draw.uniform(0.05, 0.4),
    )
    plant = PlantParameters(
        f"random {seed}", cooling, electrics, work, Hardware(_clocks(_log_uniform(draw, 600.0, 1300.0))), sensors
    )
    if draw.random() < 0.4:
        watts = full_w(plant, 4, 80.0) * draw.uniform(0.97, 1.25)
        plant = replace(plant, hardware=replace(plant.hardware, over_current_w=watts))
    return plant


def random_scenario(seed: int, seconds: float) -> Scenario:
    draw = random.Random(f"scenario {seed}")
    plant = random_plant(seed)
    temperature_c = draw.uniform(72.0, 97.0) if draw.random() < 0.85 else None
    idle_w, most_w = plant.electrics.idle_w + plant.electrics.leakage(60.0), full_w(plant, 4)
    caps: list[tuple[float, int | None]] = [(0.0, None)]
    if temperature_c is None or draw.random() < 0.6:
        starts = [0.0, *sorted(draw.uniform(0.1, 0.9) * seconds for _ in range(draw.randrange(4)))]
        caps = [(start, round(1e3 * (idle_w + (most_w - idle_w) * draw.uniform(0.25, 1.2)))) for start in starts]
        if draw.random() < 0.08:
            caps.append((0.7 * seconds, round(1e3 * plant.electrics.idle_w * draw.uniform(0.7, 0.95))))
            caps.sort(key=lambda one: one[0])
            caps = [one for one in caps if one[0] <= 0.7 * seconds]
    return Scenario(
        plant, temperature_c, tuple(caps), random_texts(draw, seconds), draw.uniform(*_LEAD_IN_S), seconds, seed
    )


def random_texts(draw: random.Random, seconds: float) -> Texts:
    """Around a level of its own, for texts of one user are alike."""
    level, decay = draw.uniform(0.4, 0.9), draw.uniform(0.85, 1.0)
    ends, first, later = [0.0], [], []
    while ends[-1] < seconds:
        ends.append(ends[-1] + draw.uniform(20.0, 120.0))
        first.append(min(0.97, max(0.1, level + draw.gauss(0.0, 0.1))))
        later.append(min(1.0, max(0.7, decay + draw.gauss(0.0, 0.04))))
    return Texts(tuple(ends[1:]), tuple(first), tuple(later))


_BOARD_SIZE = {"orin-nano-4": 0.8, "orin-nano-8": 1.0, "orin-nx-8": 1.4, "orin-nx-16": 1.5}
_BOARD_SIZE |= {"agx-orin-32": 2.6, "agx-orin-64": 3.2}
_LARGEST_SIZE = 3.2


def board_plant(board: Board, ambient_c: float) -> PlantParameters:
    """A plant of the size of a board in its default mode, with the model that fits it. Guesses."""
    size = _BOARD_SIZE.get(board.name, _LARGEST_SIZE)
    chosen = board.default
    clock = chosen.gpu_mhz / board.fastest.gpu_mhz
    # A mode with a lower clock runs at a lower voltage.
    square = (0.62 + 0.38 * clock) ** 2
    return PlantParameters(
        board.name,
        Cooling(
            ambient_c, die_j_per_c=15.0 * size, sink_j_per_c=160.0 * size, die_c_per_w=0.55 / size,
            sink_c_per_w=3.4 / size, fan_gain=1.2, fan_start_c=45.0, fan_full_c=85.0, fan_lag_s=5.0,
        ),
        Electrics(
            idle_w=3.8 * size, leak_w=0.4 * size, leak_doubles_c=28.0, host_w=1.5 * size, clock_w=2.5 * size * square,
            memory_w=2.8 * size, compute_w=9.0 * size * square,
        ),
        Work(memory_s=0.022, compute_s=0.014 / clock, row_share=0.12, host_s=0.003, draft_share=0.12),
        Hardware(_clocks(chosen.gpu_mhz), over_current_w=22.0 * size),
        Sensors(0.2, 0.3, 0.1, 0.01, 1.0, 0.15),
    )  # fmt: skip


def board_scenario(
    name: str, ambient_c: float, seconds: float, temperature_c: float | None, power_mw: int | None, seed: int
) -> Scenario:
    """Raises ``ConfigError``."""
    plant = board_plant(board_named(name), ambient_c)
    texts = random_texts(random.Random(f"board {seed}"), seconds)
    return Scenario(plant, temperature_c, ((0.0, power_mw),), texts, 10.0, seconds, seed)


def _clocks(most_mhz: float) -> tuple[float, ...]:
    lowest = min(_LOWEST_CLOCK_MHZ, most_mhz / 2.0)
    return tuple(lowest + (most_mhz - lowest) * place / (_CLOCKS - 1) for place in range(_CLOCKS))


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))
