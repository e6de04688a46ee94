"""Where a board's files are. Knows what devices are called; reads no value that changes.

Nothing is looked up by number: numbers of hwmon devices and thermal zones follow the order in which drivers came up.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .attributes import folders, number, read_int, read_text

_NOT_THE_CHIP = ("pmic", "iwlwifi", "nvme")
"""Zones that say nothing of it: one is a constant, the others are cards."""
_LAST_CHANNEL = 3
"""Of a sensor; what comes after it is a sum of shunt voltages."""


@dataclass(frozen=True, slots=True)
class RailFiles:
    name: str
    millivolts: str
    milliamperes: str


@dataclass(frozen=True, slots=True)
class GpuFiles:
    clock: str
    max_clock: str
    load: str


@dataclass(frozen=True, slots=True)
class CoolingFiles:
    name: str
    max_state: int
    state: str


@dataclass(frozen=True, slots=True)
class Layout:
    rails: tuple[RailFiles, ...]
    zones: tuple[tuple[str, str], ...]
    """Name and file."""
    gpu: GpuFiles | None
    over_current: tuple[tuple[str, str], ...]
    cooling: tuple[CoolingFiles, ...]
    fan: str | None
    passive_trip_c: float | None
    critical_trip_c: float | None
    mode_names: dict[int, str]

    @property
    def is_empty(self) -> bool:
        return not self.rails and not self.zones and self.gpu is None


def discover(root: Path) -> Layout:
    hwmon = list(folders(root / "sys/class/hwmon", "hwmon"))
    thermal = root / "sys/class/thermal"
    zones = [(name, folder) for folder in folders(thermal, "thermal_zone") if (name := _zone(folder))]
    fans = [f"{folder}/pwm1" for folder in _named(hwmon, "pwmfan")]
    events = [f"{folder}/{name}" for folder in _named(hwmon, "soctherm_oc") for name in _names(folder)]
    return Layout(
        tuple(rail for folder in _named(hwmon, "ina3221") for rail in _rails(folder)),
        tuple((name, f"{folder}/temp") for name, folder in zones),
        _gpu(root),
        tuple((found[1], path) for path in sorted(events) if (found := re.search(r"/(oc\d+)_event_cnt$", path))),
        tuple(device for folder in folders(thermal, "cooling_device") if (device := _cooling(folder))),
        fans[0] if fans else None,
        _trip([folder for _, folder in zones], "passive"),
        _trip([folder for _, folder in zones], "critical"),
        _modes(root),
    )


def zone_name(text: str) -> str:
    """``CPU-therm`` of one release and ``cpu-thermal`` of another are ``cpu``."""
    return re.sub(r"[-_](?:therm(?:al)?|tegra|die)$", "", text.strip().lower())


def is_of_the_chip(zone: str) -> bool:
    return not zone.startswith(_NOT_THE_CHIP)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _named(hwmon: list[str], name: str) -> list[str]:
    return [folder for folder in hwmon if read_text(f"{folder}/name") == name]


def _rails(folder: str) -> list[RailFiles]:
    rails = []
    for channel in range(1, _LAST_CHANNEL + 1):
        label = read_text(f"{folder}/in{channel}_label")
        if label and label != "NC":
            rails.append(RailFiles(label, f"{folder}/in{channel}_input", f"{folder}/curr{channel}_input"))
    return rails


def _zone(folder: str) -> str | None:
    name = zone_name(read_text(f"{folder}/type") or "")
    return name if name and is_of_the_chip(name) else None


def _cooling(folder: str) -> CoolingFiles | None:
    name, most = read_text(f"{folder}/type"), read_int(f"{folder}/max_state")
    return None if not name or most is None else CoolingFiles(name, most, f"{folder}/cur_state")


def _gpu(root: Path) -> GpuFiles | None:
    parent = root / "sys/class/devfreq"
    for name in sorted(_names(str(parent))):
        if re.search(r"\.(?:gpu|ga10b)$", name):
            folder = f"{parent}/{name}"
            return GpuFiles(f"{folder}/cur_freq", f"{folder}/max_freq", f"{folder}/device/load")
    return None


def _trip(zones: list[str], kind: str) -> float | None:
    found = []
    for folder in zones:
        index = 0
        while (text := read_text(f"{folder}/trip_point_{index}_type")) is not None:
            millidegrees = read_int(f"{folder}/trip_point_{index}_temp")
            if text == kind and millidegrees is not None and millidegrees > 0:
                found.append(millidegrees / 1000)
            index += 1
    return min(found, default=None)


def _modes(root: Path) -> dict[int, str]:
    text = read_text(f"{root}/etc/nvpmodel.conf") or ""
    found = re.findall(r"^\s*<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=([^\s>]+)\s*>", text, re.MULTILINE)
    return {mode: name for digits, name in found if (mode := number(digits)) is not None}
