"""One reading of a board. Pure; knows no source, no file and no process.

What a source cannot tell is ``None``, never a magic number: -256 C, a vanished rail and a clock of 0 are cleaned away
where they are read, and ``problems`` says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rail:
    name: str
    power_mw: int


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone that could be read."""

    name: str
    """In lower case, without ``-thermal``: ``gpu``, ``tj``."""
    temperature_c: float


@dataclass(frozen=True, slots=True)
class GpuReading:
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    """What the power mode allows now, which is not what the chip can do."""
    load: float | None = None
    """0 to 1."""


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One pool for processor and accelerator."""

    total_bytes: int
    available_bytes: int
    """MemAvailable, not MemFree: caches of files give way."""
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    free_blocks_4mb: int | None = None
    """Free blocks of 4 MB (jtop's ``lfb``): few of them, and large allocations fail."""


@dataclass(frozen=True, slots=True)
class CoolingDevice:
    name: str
    state: int
    """0: idle."""
    max_state: int


@dataclass(frozen=True, slots=True)
class Throttling:
    """What the hardware did by itself. Counters only grow; differences count."""

    over_current_events: tuple[tuple[str, int], ...] = ()
    """``oc1`` under-voltage, ``oc2`` average current, ``oc3`` instant current."""
    cooling: tuple[CoolingDevice, ...] = ()
    passive_trip_c: float | None = None
    """The lowest temperature from which the kernel clocks down; ``None``: no zone tells."""
    critical_trip_c: float | None = None
    """The lowest from which it shuts down."""


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    """Monotonic, of this machine: when the values were read, not when they arrived."""
    source: str
    power_mw: int | None = None
    """Of the whole board; ``None`` unless every rail that makes it was read."""
    rails: tuple[Rail, ...] = ()
    zones: tuple[Zone, ...] = ()
    gpu: GpuReading = GpuReading()
    memory: MemoryReading | None = None
    throttling: Throttling = Throttling()
    power_mode: str | None = None
    """By name; ids differ between boards."""
    fan: float | None = None
    """0 to 1 of its speed."""
    problems: tuple[str, ...] = ()
    """What is missing or was refused, in words."""

    @property
    def hottest(self) -> Zone | None:
        return max(self.zones, key=lambda zone: zone.temperature_c, default=None)
