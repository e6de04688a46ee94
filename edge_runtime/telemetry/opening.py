"""Which source a machine has. Knows them all, and when each is worth having; reads nothing but once, to find out.

``auto`` takes the kernel's files, and jtop for what these do not tell here: where nothing is missing, no process is
started. On a machine that is no Jetson there is no source, and nothing is measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .combined import CombinedSource
from .identity import Identity, identify
from .jtop import JtopSource, child_command
from .sample import Sample
from .source import TelemetrySource
from .sysfs import SysfsSource

SourceName = Literal["auto", "sysfs", "jtop", "none"]
JTOP_SOCKET = Path("/run/jtop.sock")
_SYSTEM_PYTHON = Path("/usr/bin/python3")
_HERE = Path("/")


@dataclass(frozen=True, slots=True)
class Opened:
    source: TelemetrySource | None
    reason: str
    """Why this one, in one line."""
    identity: Identity


@dataclass(frozen=True, slots=True)
class Jtop:
    """How its service is reached, if it is."""

    command: tuple[str, ...]
    is_there: bool
    """Whether its service runs, or is installed and may come."""


def find_jtop(socket: Path = JTOP_SOCKET) -> Jtop:
    """By the Python that has jetson-stats: this one, or the system's, where its installer puts it."""
    here = find_spec("jtop") is not None
    python = sys.executable if here or not _SYSTEM_PYTHON.exists() else str(_SYSTEM_PYTHON)
    return Jtop(tuple(child_command(python)), here or socket.exists())


def is_starting(source: TelemetrySource) -> bool:
    """Whether a first sample may still come: a process of ours has begun, and nothing has gone wrong yet."""
    parts = source.parts if isinstance(source, CombinedSource) else (source,)
    problems = [part.problem for part in parts if isinstance(part, JtopSource)]
    return any(problem is not None and problem.kind == "starting" for problem in problems)


def open_source(wanted: SourceName = "auto", root: Path = _HERE, jtop: Jtop | None = None) -> Opened:
    """``root``: where the file system begins. ``jtop``: as ``find_jtop`` finds it, unless told; a tree of files has no
    service, and this machine's says nothing of it."""
    identity = identify(root)
    if wanted == "none":
        return Opened(None, "telemetry is off", identity)
    if wanted == "sysfs":
        return Opened(SysfsSource(root), "sysfs, as configured", identity)
    jtop = jtop or (find_jtop() if root == _HERE or wanted == "jtop" else Jtop((), False))
    if wanted == "jtop":
        return Opened(JtopSource(jtop.command, identity.board), "jtop, as configured", identity)
    if not identity.tegra:
        what = "this machine is no Jetson" if root == _HERE else f"{root} holds no Jetson's files"
        return Opened(None, f"{what}: nothing is measured", identity)
    return _best(root, jtop, identity)


def _best(root: Path, jtop: Jtop, identity: Identity) -> Opened:
    near = SysfsSource(root)
    sample = near.latest()
    if sample is None:
        if not jtop.is_there:
            # It goes on looking: drivers come up late.
            return Opened(near, f"{identity.title}: {near.trouble}, and jtop is not there", identity)
        far = JtopSource(jtop.command, identity.board)
        return Opened(CombinedSource(near, far), f"jtop of {identity.title}: {near.trouble}", identity)
    missing = lacking(sample)
    if not missing:
        return Opened(near, f"sysfs of {identity.title}: it has all that jtop tells", identity)
    if not jtop.is_there:
        return Opened(near, f"sysfs of {identity.title}; no jtop for {', '.join(missing)}", identity)
    far = JtopSource(jtop.command, identity.board)
    return Opened(CombinedSource(near, far), f"sysfs of {identity.title}, jtop for {', '.join(missing)}", identity)


def lacking(sample: Sample) -> list[str]:
    """What jtop might tell besides."""
    present = {
        "power": sample.power_mw is not None,
        "temperatures": bool(sample.zones),
        "the GPU's clock": sample.gpu.clock_mhz is not None,
        "the power mode": sample.power_mode is not None,
    }
    return [name for name, is_there in present.items() if not is_there]
