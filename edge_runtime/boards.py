"""The boards this runtime is made for, as tables of facts. Knows no file of a board and nothing of what is read there.

Where the figures are from: clocks, cores and modes out of NVIDIA's own ``nvpmodel_p3767_*_super.conf`` and
``nvpmodel_p3701_*.conf``; parts, bandwidth and cores of the GPU out of its data sheets; what Linux sees of the memory
as owners of boards report it, or, where the table says so, a guess from the size of the module. None of it was
measured here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ConfigError, did_you_mean

SOFTWARE_THROTTLE_C = 99.0
"""Published passive trip of Orin. A board's own trip points are what counts."""
SHUTDOWN_C = 104.5
"""Published critical trip of Orin."""

SMALL_BOARD_RAILS = ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC")
"""Of Nano and NX: the first is what the board draws, the others are parts of it."""
AGX_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO")
"""Of AGX: together they are what the board draws."""

_GIB = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PowerMode:
    """What ``nvpmodel`` allows. To be looked up by name: ids differ between boards."""

    id: int
    name: str
    cpus: int
    cpu_mhz: float
    gpu_mhz: float
    memory_mhz: float

    @property
    def budget_w(self) -> float | None:
        """What the name promises; ``None`` where it promises nothing (MAXN)."""
        found = re.match(r"(\d+)W", plain_mode_name(self.name))
        return float(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Board:
    name: str
    title: str
    parts: tuple[str, ...]
    """Part numbers of the module, as the device tree has them."""
    module_bytes: int
    ram_bytes: int
    """What Linux sees (MemTotal)."""
    bandwidth_gb_s: float
    gpu_cores: int
    modes: tuple[PowerMode, ...]
    default_mode: str
    rails: tuple[str, ...]

    @property
    def total_rails(self) -> tuple[str, ...]:
        """The rails whose sum the board draws."""
        return self.rails[:1] if self.rails[0] == "VDD_IN" else self.rails

    @property
    def fastest(self) -> PowerMode:
        return max(self.modes, key=lambda mode: (mode.gpu_mhz, mode.cpu_mhz))

    @property
    def default(self) -> PowerMode:
        mode = self.mode(self.default_mode)
        assert mode is not None
        return mode

    def mode(self, name: str) -> PowerMode | None:
        """By name, with or without the ``MODE_`` that some releases put before it."""
        wanted = plain_mode_name(name)
        return next((mode for mode in self.modes if plain_mode_name(mode.name) == wanted), None)


def plain_mode_name(name: str) -> str:
    """``MODE_30W`` of one release is ``30W`` of another."""
    return name.strip().upper().removeprefix("MODE_")


def _modes(*rows: tuple[str, int, float, float, float]) -> tuple[PowerMode, ...]:
    """(name, cores, CPU MHz, GPU MHz, memory MHz) by id."""
    return tuple(PowerMode(index, *row) for index, row in enumerate(rows))


BOARDS: tuple[Board, ...] = (
    Board(
        "orin-nano-4", "Jetson Orin Nano 4GB", ("p3767-0004",),
        4 * _GIB, 3420 * _MIB, 51.0, 512,  # usable memory: a guess
        _modes(
            ("10W", 6, 1497.6, 612.0, 2133.0),
            ("25W", 6, 1728.0, 1020.0, 3199.0),
            ("MAXN_SUPER", 6, 1728.0, 1020.0, 3199.0),
        ),
        "25W", SMALL_BOARD_RAILS,
    ),
    Board(
        "orin-nano-8", "Jetson Orin Nano 8GB", ("p3767-0003", "p3767-0005"),
        8 * _GIB, 7607 * _MIB, 102.0, 1024,
        _modes(
            ("15W", 6, 1497.6, 612.0, 2133.0),
            ("25W", 6, 1344.0, 918.0, 3199.0),
            ("MAXN_SUPER", 6, 1728.0, 1020.0, 3199.0),
            ("7W", 4, 960.0, 408.0, 2133.0),
        ),
        "25W", SMALL_BOARD_RAILS,
    ),
    Board(
        "orin-nx-8", "Jetson Orin NX 8GB", ("p3767-0001",),
        8 * _GIB, 7600 * _MIB, 102.4, 1024,  # usable memory: a guess
        _modes(
            ("MAXN_SUPER", 6, 1984.0, 1173.0, 3199.0),
            ("10W", 4, 1190.4, 612.0, 2133.0),
            ("15W", 4, 1420.8, 612.0, 3199.0),
            ("20W", 6, 1497.6, 408.0, 3199.0),
            ("40W", 6, 1984.0, 1173.0, 3199.0),
        ),
        "40W", SMALL_BOARD_RAILS,
    ),
    Board(
        "orin-nx-16", "Jetson Orin NX 16GB", ("p3767-0000", "p3767-0002"),
        16 * _GIB, 15656 * _MIB, 102.4, 1024,  # usable memory: a guess
        _modes(
            ("MAXN_SUPER", 8, 1984.0, 1173.0, 3199.0),
            ("10W", 4, 1190.4, 612.0, 2133.0),
            ("15W", 4, 1420.8, 612.0, 3199.0),
            ("25W", 8, 1497.6, 408.0, 3199.0),
            ("40W", 8, 1497.6, 1173.0, 3199.0),
        ),
        "40W", SMALL_BOARD_RAILS,
    ),
    Board(
        # The first developer kit (p3701-0000) has the memory of this one and the GPU of the next.
        "agx-orin-32", "Jetson AGX Orin 32GB", ("p3701-0004", "p3701-0000"),
        32 * _GIB, 30697 * _MIB, 204.8, 1792,  # usable memory: a guess
        _modes(
            ("MAXN", 8, 2188.8, 930.75, 3199.0),
            ("MODE_15W", 4, 1113.6, 408.0, 2133.0),
            ("MODE_30W", 8, 1728.0, 612.0, 3199.0),
            ("MODE_40W", 8, 1497.6, 816.0, 3199.0),
        ),
        "MODE_30W", AGX_RAILS,
    ),
    Board(
        "agx-orin-64", "Jetson AGX Orin 64GB", ("p3701-0005",),
        64 * _GIB, 62841 * _MIB, 204.8, 2048,
        _modes(
            ("MAXN", 12, 2201.6, 1300.5, 3199.0),
            ("MODE_15W", 4, 1113.6, 408.0, 2133.0),
            ("MODE_30W", 8, 1728.0, 612.0, 3199.0),
            ("MODE_50W", 12, 1497.6, 816.0, 3199.0),
        ),
        "MODE_30W", AGX_RAILS,
    ),
)  # fmt: skip


def board_named(name: str) -> Board:
    """Raises ``ConfigError``."""
    for board in BOARDS:
        if board.name == name:
            return board
    names = [board.name for board in BOARDS]
    raise ConfigError(f"no board {name!r}{did_you_mean(name, names)}: there are {', '.join(names)}")


def board_of_part(part: str) -> Board | None:
    return next((board for board in BOARDS if part.lower() in board.parts), None)


@dataclass(frozen=True, slots=True)
class Jetpack:
    """A release of NVIDIA's system for these boards."""

    version: str
    l4t: tuple[int, int, int]
    """The first release of L4T in it."""
    kernel: str
    python: str
    """Of the system."""


JETPACKS: tuple[Jetpack, ...] = (
    Jetpack("6.0", (36, 3, 0), "5.15", "3.10"),
    Jetpack("6.1", (36, 4, 0), "5.15", "3.10"),
    Jetpack("6.2", (36, 4, 3), "5.15", "3.10"),
    Jetpack("7.0", (38, 2, 0), "6.8", "3.12"),
    Jetpack("7.2", (39, 2, 0), "6.8", "3.12"),
)


def jetpack_of(l4t: str) -> Jetpack | None:
    """By a version like ``36.4.7``: the newest release of that major version that is not newer than it."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", l4t)
    if found is None:
        return None
    version = (int(found[1]), int(found[2]), int(found[3] or 0))
    known = [jetpack for jetpack in JETPACKS if jetpack.l4t[0] == version[0] and jetpack.l4t <= version]
    return known[-1] if known else None
