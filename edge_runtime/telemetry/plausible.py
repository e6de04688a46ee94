"""What a board can say: bounds within which its values lie, wherever they are from. Pure; knows no source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .power import MOST_MW
from .sample import GpuReading, Sample

COLDEST_C, HOTTEST_C = -50.0, 150.0
"""Outside of these a sensor is off or broken: -256 is how some say so."""
_LATEST_S = 1e10
_MOST_RAIL_MW = 10_000_000
"""A broken sensor's reading is shown as it is; only a total must not be made of it."""
_MOST_MHZ = 100_000.0
_MOST_BYTES = 1 << 50
_MOST_EVENTS = 1 << 63
_ABSOLUTE_ZERO_C, _MOST_TRIP_C = -273.15, 1000.0

_Bounded = tuple[str, float | None, float, float]


def impossible(sample: Sample) -> str:
    """What no source of ours says, in words that name the field; empty where all may be."""
    for name, value, low, high in _bounds(sample):
        # Not the other way round: NaN is in no range.
        if value is not None and not low <= value <= high:
            return f"{name} must be from {low:.12g} to {high:.12g}, not {_told(value)}"
    return ""


def _bounds(sample: Sample) -> Iterator[_Bounded]:
    """(field, value, least, most) each."""
    yield "time_s", sample.time_s, -_LATEST_S, _LATEST_S
    yield "power_mw", sample.power_mw, 0, MOST_MW - 1
    for rail in sample.rails:
        yield f"rail {rail.name}: power_mw", rail.power_mw, 0, _MOST_RAIL_MW
    for zone in sample.zones:
        yield f"zone {zone.name}: temperature_c", zone.temperature_c, COLDEST_C, HOTTEST_C
    yield "gpu.clock_mhz", sample.gpu.clock_mhz, 0.0, _MOST_MHZ
    yield "gpu.max_clock_mhz", sample.gpu.max_clock_mhz, 0.0, _MOST_MHZ
    yield "gpu.load", sample.gpu.load, 0.0, 1.0
    yield "fan", sample.fan, 0.0, 1.0
    if sample.memory is not None:
        for name in ("total_bytes", "available_bytes", "swap_total_bytes", "swap_used_bytes", "free_blocks_4mb"):
            yield f"memory.{name}", getattr(sample.memory, name), 0, _MOST_BYTES
    yield from _of_throttling(sample)


def _of_throttling(sample: Sample) -> Iterator[_Bounded]:
    throttling = sample.throttling
    for name, count in throttling.over_current_events:
        yield f"over-current events {name}", count, 0, _MOST_EVENTS
    for device in throttling.cooling:
        yield f"cooling {device.name}: state", device.state, 0, _MOST_EVENTS
        yield f"cooling {device.name}: max_state", device.max_state, 0, _MOST_EVENTS
    yield "passive_trip_c", throttling.passive_trip_c, _ABSOLUTE_ZERO_C, _MOST_TRIP_C
    yield "critical_trip_c", throttling.critical_trip_c, _ABSOLUTE_ZERO_C, _MOST_TRIP_C


def possible(sample: Sample) -> Sample:
    """Without what no board can be, each told in ``problems``: a sensor that lies costs its own value alone. The time
    is not looked at.
    """
    told = sample.problems
    wrong = {name: value for name, value, low, high in _bounds(sample)
             if name != "time_s" and value is not None and not low <= value <= high}  # fmt: skip
    if not wrong:
        return sample
    gpu, memory, throttling = sample.gpu, sample.memory, sample.throttling
    if memory is not None and any(name.startswith("memory.") for name in wrong):
        memory = None
    return replace(
        sample,
        power_mw=None if "power_mw" in wrong else sample.power_mw,
        rails=tuple(one for one in sample.rails if f"rail {one.name}: power_mw" not in wrong),
        zones=tuple(one for one in sample.zones if f"zone {one.name}: temperature_c" not in wrong),
        gpu=GpuReading(
            None if "gpu.clock_mhz" in wrong else gpu.clock_mhz,
            None if "gpu.max_clock_mhz" in wrong else gpu.max_clock_mhz,
            None if "gpu.load" in wrong else gpu.load,
        ),
        memory=memory,
        throttling=replace(
            throttling,
            over_current_events=tuple(
                one for one in throttling.over_current_events if f"over-current events {one[0]}" not in wrong
            ),
            cooling=tuple(
                one
                for one in throttling.cooling
                if f"cooling {one.name}: state" not in wrong and f"cooling {one.name}: max_state" not in wrong
            ),
            passive_trip_c=None if "passive_trip_c" in wrong else throttling.passive_trip_c,
            critical_trip_c=None if "critical_trip_c" in wrong else throttling.critical_trip_c,
        ),
        fan=None if "fan" in wrong else sample.fan,
        problems=(*told, *(f"{name}: reads {_told(value)}, which cannot be" for name, value in wrong.items())),
    )


def _told(value: float) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
