"""What differs between the releases of JetPack whose trees can be built. Knows no board."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    jetpack: str
    l4t: str
    kernel: str
    """As ``uname -r`` has it."""
    has_3d_scaling_switch: bool
    """JetPack 7 leaves it to the governor of the clock."""
    first_power_hwmon: int
    """Numbers of hwmon devices follow the order in which drivers come up: nobody may count on them."""
    socthermal_hwmon: int
    fan_hwmon: int
    tachometer_hwmon: int


JETPACK_6_2 = Release("6.2", "36.4.7", "5.15.148-tegra", True, 1, 5, 0, 4)
JETPACK_7_2 = Release("7.2", "39.2.0", "6.8.12-1021-tegra", False, 3, 1, 2, 0)
