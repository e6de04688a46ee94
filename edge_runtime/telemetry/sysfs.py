"""A sample from the kernel's own files. Knows their units; nothing of jtop, and where the files are only by ``layout``.

This is the fast source: some hundred small files. It also has what jtop does not tell: over-current events, cooling
devices, trip points and MemAvailable. It needs no rights beyond reading ``/sys`` and ``/proc``.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from .attributes import number, read_int, read_text
from .identity import Identity, identify
from .layout import Layout, discover
from .plausible import COLDEST_C, HOTTEST_C, possible
from .power import total_power
from .sample import CoolingDevice, GpuReading, MemoryReading, Rail, Sample, Throttling, Zone

_LOOK_AGAIN_S = 5.0
"""Drivers come up late and files vanish: where something is missing, all are looked for again, this often at most."""
_BLOCK_BYTES = 4 << 20


class SysfsSource:
    name = "sysfs"

    def __init__(self, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        """``root``: where the file system begins."""
        self.root = root
        self.identity: Identity = identify(root)
        self.trouble: str | None = None
        self._clock = clock
        self._layout = discover(root)
        self._looked_s = clock()
        self._something_is_missing = self._layout.is_empty

    def latest(self) -> Sample | None:
        """Reads the files now: some milliseconds, most of them for the power sensors' bus."""
        now_s = self._clock()
        if self._something_is_missing and now_s - self._looked_s >= _LOOK_AGAIN_S:
            self.identity, self._layout, self._looked_s = identify(self.root), discover(self.root), now_s
        if self._layout.is_empty:
            self._something_is_missing = True
            self.trouble = f"no sensor of a Jetson below {self.root / 'sys'}"
            return None
        self.trouble = None
        sample = self._read(now_s)
        self._something_is_missing = bool(sample.problems)
        return sample

    def close(self) -> None:
        """There is nothing to close."""

    def _read(self, now_s: float) -> Sample:
        layout, problems = self._layout, list[str]()
        rails = _rails(layout, problems)
        total = total_power(rails, self.identity.board)
        if total.problem is not None:
            problems.append(total.problem)
        sample = Sample(
            now_s,
            self.name,
            total.power_mw,
            rails,
            _zones(layout, problems),
            _gpu(layout, problems),
            _memory(self.root, problems),
            _throttling(layout),
            _power_mode(self.root, layout),
            _fan(layout),
            tuple(problems),
        )
        return possible(sample)


def plausible_zone(name: str, temperature_c: float, problems: list[str]) -> Zone | None:
    """``None``, and a problem, where no chip is that cold or hot."""
    if COLDEST_C < temperature_c < HOTTEST_C:
        return Zone(name, temperature_c)
    problems.append(f"zone {name}: off, it reads {temperature_c:g} C")
    return None


def _rails(layout: Layout, problems: list[str]) -> tuple[Rail, ...]:
    rails = []
    for files in layout.rails:
        millivolts, milliamperes = read_int(files.millivolts), read_int(files.milliamperes)
        if millivolts is None or milliamperes is None:
            problems.append(f"rail {files.name}: cannot be read")
        else:
            # A rail that draws nothing may read a few milliamperes below zero.
            rails.append(Rail(files.name, max(0, millivolts * milliamperes // 1000)))
    return tuple(rails)


def _zones(layout: Layout, problems: list[str]) -> tuple[Zone, ...]:
    zones = []
    for name, path in layout.zones:
        millidegrees = read_int(path)
        if millidegrees is None:
            problems.append(f"zone {name}: cannot be read")
        elif zone := plausible_zone(name, millidegrees / 1000, problems):
            zones.append(zone)
    return tuple(zones)


def _gpu(layout: Layout, problems: list[str]) -> GpuReading:
    if layout.gpu is None:
        problems.append("gpu: its clock is not there")
        return GpuReading()
    clock, max_clock, load = (read_int(path) for path in (layout.gpu.clock, layout.gpu.max_clock, layout.gpu.load))
    if not clock:
        problems.append("gpu: its clock cannot be read" if clock is None else "gpu: its clock reads 0")
    return GpuReading(
        clock / 1e6 if clock else None,
        max_clock / 1e6 if max_clock else None,
        None if load is None else min(1.0, max(0.0, load / 1000)),
    )


def _memory(root: Path, problems: list[str]) -> MemoryReading | None:
    lines = re.findall(r"^(\w+):\s+(\d+) kB", read_text(f"{root}/proc/meminfo") or "", re.MULTILINE)
    sizes = {name: kilobytes << 10 for name, digits in lines if (kilobytes := number(digits)) is not None}
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        problems.append("memory: cannot be read")
        return None
    swap = sizes.get("SwapTotal", 0)
    return MemoryReading(
        sizes["MemTotal"], sizes["MemAvailable"], swap, swap - sizes.get("SwapFree", swap), free_blocks(root)
    )


def free_blocks(root: Path) -> int | None:
    """Of 4 MB, in all zones; ``None``: the kernel does not tell."""
    text = read_text(f"{root}/proc/buddyinfo")
    rows = re.findall(r"^Node\s+\d+,\s+zone\s+\S+\s+([\d ]+)$", text or "", re.MULTILINE)
    if not rows:
        return None
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(
        (number(count) or 0) * ((page << order) // _BLOCK_BYTES)
        for row in rows
        for order, count in enumerate(row.split())
    )


def _throttling(layout: Layout) -> Throttling:
    events = [(name, count) for name, path in layout.over_current if (count := read_int(path)) is not None]
    cooling = [CoolingDevice(files.name, state, files.max_state)
               for files in layout.cooling if (state := read_int(files.state)) is not None]  # fmt: skip
    return Throttling(tuple(events), tuple(cooling), layout.passive_trip_c, layout.critical_trip_c)


def _power_mode(root: Path, layout: Layout) -> str | None:
    """By what ``nvpmodel`` remembers of itself; ``None`` where it has never been told."""
    found = re.search(r"pmode:(\d+)", read_text(f"{root}/var/lib/nvpmodel/status") or "")
    mode = number(found[1]) if found else None
    return None if mode is None else layout.mode_names.get(mode)


def _fan(layout: Layout) -> float | None:
    pulse = None if layout.fan is None else read_int(layout.fan)
    return None if pulse is None else min(1.0, max(0.0, pulse / 255))
