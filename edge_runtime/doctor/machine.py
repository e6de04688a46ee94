"""What a machine is like, as far as it matters here: files below a root, this process's rights, the jtop service.

Judges nothing.
"""

from __future__ import annotations

import grp
import os
import shutil
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ..telemetry.attributes import read_text
from ..telemetry.identity import Identity, identify
from ..telemetry.jtop import JtopSource, child_command
from ..telemetry.sample import Sample
from ..telemetry.sysfs import SysfsSource

Access = Literal["missing", "refused", "open"]
_JTOP_PATIENCE_S = 15.0
_LOOK_S = 0.05
_ENGINES = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, slots=True)
class User:
    """In whose name this process runs."""

    name: str
    root: bool
    groups: frozenset[int]
    """Those in effect: a group that was joined since the login is not among them."""

    @staticmethod
    def of_this_process() -> User:
        import getpass

        try:
            name = getpass.getuser()
        except (KeyError, OSError):
            name = str(os.getuid())
        return User(name, os.geteuid() == 0, frozenset({os.getegid(), *os.getgroups()}))


@dataclass(frozen=True, slots=True)
class Jtop:
    """How the service answers a client of ours."""

    kind: str
    """``answers``, or as ``telemetry.jtop.Trouble`` has it."""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    identity: Identity
    sample: Sample | None
    """``None``: no sensor of a Jetson."""
    user: User
    groups: dict[str, int]
    """Of the system, by name."""
    nvmap: Access
    """The device through which the accelerator's memory is had."""
    swaps: tuple[str, ...]
    """Devices and files, by path."""
    locked_clocks: bool | None
    """Whether the accelerator is held at one clock; ``None``: not told."""
    jtop: Jtop | None
    """``None``: not asked."""
    engines: dict[str, str]
    """Versions of the packages that bring onnxruntime."""
    python: str
    disk_free_bytes: int | None
    """Where the bundle is."""


def read_machine(
    root: Path = Path("/"),
    *,
    user: User | None = None,
    jtop: Jtop | None = None,
    place: Path | None = None,
) -> Machine:
    """``root``: where the file system begins. ``place``: of a bundle. ``jtop``: what ``ask_jtop`` said."""
    return Machine(
        identity=identify(root),
        sample=SysfsSource(root).latest(),
        user=user or User.of_this_process(),
        groups=_groups(root),
        nvmap=_access(root / "dev/nvmap"),
        swaps=_swaps(root),
        locked_clocks=_locked_clocks(root),
        jtop=jtop,
        engines=_engines(),
        python=".".join(map(str, sys.version_info[:3])),
        disk_free_bytes=_free(place or root),
    )


def ask_jtop(patience_s: float = _JTOP_PATIENCE_S) -> Jtop:
    """One connection, by a process of its own. Waits until it says something."""
    source = JtopSource(child_command())
    try:
        end_s = time.monotonic() + patience_s
        while time.monotonic() < end_s:
            if source.latest() is not None:
                return Jtop("answers")
            problem = source.problem
            if problem is not None and problem.kind != "starting":
                return Jtop(problem.kind, problem.text)
            time.sleep(_LOOK_S)
        return Jtop("hung", f"the jtop service has said nothing for {patience_s:g} s")
    finally:
        source.close()


def _groups(root: Path) -> dict[str, int]:
    # Of this machine all that there are, wherever they are kept.
    found = {entry.gr_name: entry.gr_gid for entry in grp.getgrall()} if root == Path("/") else {}
    for line in (read_text(f"{root}/etc/group") or "").splitlines():
        parts = line.split(":")
        if len(parts) > 2 and parts[2].isdecimal():
            found[parts[0]] = int(parts[2])
    return found


def _access(path: Path) -> Access:
    if not path.exists():
        return "missing"
    return "open" if os.access(path, os.R_OK | os.W_OK) else "refused"


def _swaps(root: Path) -> tuple[str, ...]:
    lines = (read_text(f"{root}/proc/swaps") or "").splitlines()[1:]
    return tuple(line.split()[0] for line in lines if line.strip())


def _locked_clocks(root: Path) -> bool | None:
    for folder in sorted((root / "sys/class/devfreq").glob("*")):
        if folder.name.endswith((".gpu", ".ga10b")):
            low, high = read_text(f"{folder}/min_freq"), read_text(f"{folder}/max_freq")
            return None if low is None or high is None else low.strip() == high.strip()
    return None


def _engines() -> dict[str, str]:
    found = {}
    for name in _ENGINES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _free(place: Path) -> int | None:
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None
