"""A board as physics: heat, power, clocks, sensors, under steps of decoding. Pure; knows no governor and no file.

Two thermal masses (die, heat sink), leakage that grows with temperature, a fan that lags, and what the hardware does
by itself: it steps clocks down at its passive trip, halves them for over-current, and goes off when it is too hot.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..telemetry.sample import CoolingDevice, GpuReading, Sample, Throttling, Zone

Number = TypeVar("Number", float, NDArray[np.float64])
"""One plant, or many settings of it at once."""

_LONGEST_S = 0.25
"""Of one sum of the thermal equations: a tenth of the fastest mass."""
_POLL_S = 1.0
"""Between two looks of the kernel at its passive trip."""
_CALM_C = 2.0
"""Below the passive trip, where clocks may rise again."""
_COOLING_STATES = 6
"""Of the device that lowers the GPU's clock."""
_UNREAD = 64
"""Samples that may wait to be read."""
_PULSED = 0.5
"""Of the clock, while an over-current alarm lasts: every other pulse is left out, at the same voltage."""


@dataclass(frozen=True, slots=True)
class Cooling:
    """Where heat goes."""

    ambient_c: float
    die_j_per_c: float
    sink_j_per_c: float
    die_c_per_w: float
    """From the die to the heat sink."""
    sink_c_per_w: float
    """From the heat sink to still air."""
    fan_gain: float = 0.0
    """More heat that leaves at full speed; 0: no fan."""
    fan_start_c: float = 50.0
    fan_full_c: float = 80.0
    fan_lag_s: float = 5.0

    def flows(self, die_c: Number, sink_c: Number, fan: Number) -> tuple[Number, Number]:
        """Watts from the die to the sink, and from the sink to the air."""
        return (
            (die_c - sink_c) / self.die_c_per_w,
            (sink_c - self.ambient_c) * (1.0 + self.fan_gain * fan) / self.sink_c_per_w,
        )

    def fan_wanted(self, die_c: Number) -> Number:
        """0 to 1."""
        share = (die_c - self.fan_start_c) / (self.fan_full_c - self.fan_start_c)
        return 0.5 * (abs(share) - abs(share - 1.0) + 1.0)


@dataclass(frozen=True, slots=True)
class Electrics:
    """What is drawn, of the whole board."""

    idle_w: float
    """Without leakage."""
    leak_w: float
    """At 50 C."""
    leak_doubles_c: float
    host_w: float
    """More while a step runs."""
    clock_w: float
    """More while a step runs, of the GPU's clock tree at its highest clock and voltage."""
    memory_w: float
    """More while weights are read."""
    compute_w: float
    """More while the GPU computes, at its highest clock and voltage."""
    low_voltage: float = 0.62
    """Of the highest voltage, at the lowest clock."""

    def leakage(self, die_c: Number) -> Number:
        """Watts."""
        watts: Number = self.leak_w * 2.0 ** ((die_c - 50.0) / self.leak_doubles_c)
        return watts


@dataclass(frozen=True, slots=True)
class Work:
    """What a step takes at the highest clock."""

    memory_s: float
    """Reading the target's weights, whatever the clock."""
    compute_s: float
    """Computing one row,"""
    row_share: float
    """and so much of that for each further one."""
    host_s: float
    draft_share: float
    """A drafted token, relative to one row of the target."""


@dataclass(frozen=True, slots=True)
class Hardware:
    clocks_mhz: tuple[float, ...]
    """Rising; the last is what the mode allows."""
    passive_c: float = 99.0
    shutdown_c: float = 104.5
    over_current_w: float = 1e9
    """Of a step."""
    over_current_s: float = 0.5
    """For so long the clock is pulsed."""


@dataclass(frozen=True, slots=True)
class Sensors:
    interval_s: float
    delay_s: float
    """Hidden: a sample bears the time when it arrives."""
    smoothing_s: float
    """Of the power sensor."""
    power_noise: float
    """Standard deviation, relative."""
    power_gain: float
    temperature_noise_c: float


@dataclass(frozen=True, slots=True)
class PlantParameters:
    name: str
    cooling: Cooling
    electrics: Electrics
    work: Work
    hardware: Hardware
    sensors: Sensors


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step at one clock."""

    draft_s: float
    body_s: float
    host_s: float
    joules: float
    """Above what the board draws without work."""

    @property
    def seconds(self) -> float:
        return self.draft_s + self.body_s + self.host_s


def step_cost(plant: PlantParameters, k: int, clock: float, voltage: float) -> StepCost:
    """Of K drafts, at clock and voltage relative to the highest."""
    work, power = plant.work, plant.electrics
    square = voltage * voltage

    def run(rows: int, share: float) -> tuple[float, float]:
        """Seconds and joules of the GPU: reading and computing overlap."""
        read_s, full_s = share * work.memory_s, share * work.compute_s * (1.0 + work.row_share * (rows - 1))
        seconds = (read_s**4 + (full_s / clock) ** 4) ** 0.25
        return seconds, power.memory_w * read_s + square * (power.compute_w * full_s + power.clock_w * clock * seconds)

    draft_s, draft_j = run(1, work.draft_share)
    body_s, body_j = run(k + 1, 1.0)
    host_s = work.host_s / max(clock, 0.5)
    seconds = k * draft_s + body_s + host_s
    return StepCost(k * draft_s, body_s, host_s, k * draft_j + body_j + power.host_w * seconds)


class Plant:
    """In motion. Time goes on only by ``step``, ``rest`` and ``work``."""

    def __init__(self, parameters: PlantParameters, seed: int = 0) -> None:
        self.parameters = parameters
        self.time_s = 0.0
        self.joules = 0.0
        self.fan = 0.0
        self.level = len(parameters.hardware.clocks_mhz) - 1
        self.events = 0
        """Over-current, since the start."""
        self.off = False
        self.die_c, self.sink_c, self.fan = resting(parameters)
        self._random = random.Random(seed)
        self._pulsed_until_s = 0.0
        self._poll_s = _POLL_S
        self._read_s = parameters.sensors.interval_s
        self._sensor_w = parameters.electrics.idle_w + parameters.electrics.leakage(self.die_c)
        self._duty = 0.0
        self._late: deque[tuple[float, Sample]] = deque(maxlen=_UNREAD)
        self._costs: dict[tuple[int, int, bool], StepCost] = {}

    @property
    def clock_mhz(self) -> float:
        return self.parameters.hardware.clocks_mhz[self.level] * (_PULSED if self._pulsed else 1.0)

    @property
    def _pulsed(self) -> bool:
        return self.time_s < self._pulsed_until_s

    def cost(self, k: int) -> StepCost:
        """At the clock of now."""
        key = k, self.level, self._pulsed
        if key not in self._costs:
            clocks, low = self.parameters.hardware.clocks_mhz, self.parameters.electrics.low_voltage
            clock = clocks[self.level] / clocks[-1]
            least = clocks[0] / clocks[-1]
            voltage = 1.0 if clock >= 1.0 else low + (1.0 - low) * (clock - least) / (1.0 - least)
            self._costs[key] = step_cost(self.parameters, k, clock * (_PULSED if key[2] else 1.0), voltage)
        return self._costs[key]

    def step(self, k: int) -> StepCost:
        """Run one; what it took."""
        cost = self.cost(k)
        idle_w = self.parameters.electrics.idle_w
        drawn_w = idle_w + cost.joules / cost.seconds
        hardware = self.parameters.hardware
        leak_w = self.parameters.electrics.leakage(self.die_c)
        if drawn_w + leak_w > hardware.over_current_w and not self._pulsed:
            self.events += 1
            self._pulsed_until_s = self.time_s + hardware.over_current_s
            cost = self.cost(k)
            drawn_w = idle_w + cost.joules / cost.seconds
        self._pass(cost.seconds, drawn_w, 1.0)
        return cost

    def rest(self, seconds: float) -> None:
        self._pass(seconds, self.parameters.electrics.idle_w, 0.0)

    def work(self, seconds: float, duty: float, k: int) -> None:
        """Steps of K drafts for so much of the time, without a look at each."""
        cost = self.cost(k)
        self._pass(seconds, self.parameters.electrics.idle_w + duty * cost.joules / cost.seconds, duty)

    def shown(self) -> Sample:
        """What sensors read at this moment."""
        sensors, hardware = self.parameters.sensors, self.parameters.hardware
        power_w = self._sensor_w * sensors.power_gain * (1.0 + sensors.power_noise * self._random.gauss(0.0, 1.0))
        noisy_c = self.die_c + sensors.temperature_noise_c * self._random.gauss(0.0, 1.0)
        top = len(hardware.clocks_mhz) - 1
        state = math.ceil(_COOLING_STATES * (top - self.level) / top)
        return Sample(
            time_s=self.time_s + sensors.delay_s,
            source="simulated",
            power_mw=round(1e3 * max(0.0, power_w)),
            zones=(Zone("tj", round(noisy_c * 32.0) / 32.0),),
            gpu=GpuReading(self.clock_mhz, hardware.clocks_mhz[-1], self._duty),
            throttling=Throttling(
                (("oc3", self.events),), (CoolingDevice("devfreq-17000000.gpu", state, _COOLING_STATES),)
            ),
            fan=min(1.0, max(0.0, self.fan)),
        )

    def sample(self) -> Sample | None:
        """The latest that has arrived, or ``None`` where there is no new one."""
        latest = None
        while self._late and self._late[0][0] <= self.time_s:
            latest = self._late.popleft()[1]
        return latest

    def _pass(self, seconds: float, watts: float, busy: float) -> None:
        cooling, electrics = self.parameters.cooling, self.parameters.electrics
        smoothing_s = self.parameters.sensors.smoothing_s
        while seconds > 1e-9:
            dt = min(seconds, _LONGEST_S, max(1e-6, self._read_s - self.time_s))
            seconds -= dt
            drawn_w = 0.0 if self.off else watts + electrics.leakage(self.die_c)
            inner_w, outer_w = cooling.flows(self.die_c, self.sink_c, self.fan)
            self.die_c += dt * (drawn_w - inner_w) / cooling.die_j_per_c
            self.sink_c += dt * (inner_w - outer_w) / cooling.sink_j_per_c
            self.fan += (cooling.fan_wanted(self.die_c) - self.fan) * dt / (cooling.fan_lag_s + dt)
            share = 1.0 - math.exp(-dt / smoothing_s)
            self._sensor_w += (drawn_w - self._sensor_w) * share
            self._duty += (busy - self._duty) * share
            self.joules += drawn_w * dt
            self.time_s += dt
            if self.time_s >= self._read_s - 1e-9:
                self._read_sensors()
            if self.time_s >= self._poll_s:
                self._poll_trips()

    def _poll_trips(self) -> None:
        hardware = self.parameters.hardware
        self._poll_s += _POLL_S
        if self.die_c >= hardware.shutdown_c:
            self.off = True
        if self.die_c >= hardware.passive_c:
            self.level = max(0, self.level - 1)
        elif self.die_c < hardware.passive_c - _CALM_C:
            self.level = min(len(hardware.clocks_mhz) - 1, self.level + 1)

    def _read_sensors(self) -> None:
        self._read_s += self.parameters.sensors.interval_s
        sample = self.shown()
        self._late.append((sample.time_s, sample))


def resting(parameters: PlantParameters) -> tuple[float, float, float]:
    """Where the board settles without work: (die, sink, fan). A board that runs away without any stops at 150 C."""
    cooling, electrics = parameters.cooling, parameters.electrics
    die_c = sink_c = cooling.ambient_c
    fan = 0.0
    for _ in range(200):
        watts = electrics.idle_w + electrics.leakage(die_c)
        sink_c = cooling.ambient_c + watts * cooling.sink_c_per_w / (1.0 + cooling.fan_gain * fan)
        settled_c = min(150.0, sink_c + watts * cooling.die_c_per_w)
        die_c += 0.3 * (settled_c - die_c)
        fan += 0.3 * (cooling.fan_wanted(die_c) - fan)
    return die_c, sink_c, fan


def at_ambient(parameters: PlantParameters, ambient_c: float) -> PlantParameters:
    return replace(parameters, cooling=replace(parameters.cooling, ambient_c=ambient_c))
