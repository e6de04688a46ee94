"""What the demo and the images install, by version and hash: made by uv, read by the other tools and the tests.

    python tools/locks.py [--upgrade] [--days 7]

Writes ``requirements/*.txt`` of ``pyproject.toml``, and resolves each for every Python and machine that it is for. What
is pinned stays, unless ``--upgrade`` is given; a release that is younger than ``--days`` is not taken, for most that
are poisoned are found out within a week. Needs a package index.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
SELF = "edge-runtime"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Target:
    """A Python that a lock is for."""

    python: str
    """Two numbers: ``"3.10"``."""
    machine: str
    """As ``platform_machine`` has it."""
    glibc: int
    """Minor version of the oldest glibc 2 that it has."""

    @property
    def environment(self) -> dict[str, str]:
        """What markers are asked of."""
        return {
            "implementation_name": "cpython", "os_name": "posix", "platform_machine": self.machine,
            "platform_python_implementation": "CPython", "platform_system": "Linux", "python_version": self.python,
            "python_full_version": f"{self.python}.0", "sys_platform": "linux",
        }  # fmt: skip

    @property
    def uv_platform(self) -> str:
        return f"{self.machine}-manylinux_2_{self.glibc}"


@dataclass(frozen=True, slots=True)
class Lock:
    name: str
    what: str
    """Whose environment, in words."""
    targets: tuple[Target, ...]
    extras: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Requirements that pyproject.toml leaves open."""
    project: bool = True
    """Whether the runtime's own dependencies are in it."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"


def _both(*pythons: str, glibc: int = 31) -> tuple[Target, ...]:
    return tuple(Target(python, machine, glibc) for python in pythons for machine in ("x86_64", "aarch64"))


_PYTHONS = _both("3.10", "3.11", "3.12", "3.13", "3.14")
_JETPACK_6, _JETPACK_7 = Target("3.10", "aarch64", 35), Target("3.12", "aarch64", 39)
# glibc 2.31: llguidance has no wheel for an older glibc.
LOCKS: tuple[Lock, ...] = (
    Lock("build", "what makes a wheel of the sources", _PYTHONS, also=("setuptools>=77",), project=False),
    Lock("demo", "`make demo`", _PYTHONS, extras=("demo",)),
    Lock("export", "the image for exports", _both("3.12", glibc=36), extras=("export",)),
    # cuda-python follows the base image's CUDA; TensorRT is the base image's own.
    Lock("python3.10", "the image for JetPack 6.2", (_JETPACK_6,), also=("cuda-python==12.6.*",)),
    Lock("python3.12", "the image for JetPack 7.2", (_JETPACK_7,), also=("cuda-python==13.2.*",)),
    Lock("tools", "what makes and checks these lists, for whoever changes them", _PYTHONS,
         also=("cyclonedx-python-lib[json-validation]>=11", "pip-audit>=2.10", "uv>=0.9.17"), project=False),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    """Canonical."""
    version: str
    hashes: tuple[str, ...]
    """sha256 in hex, of each file of this release."""
    marker: str | None
    wanted_by: tuple[str, ...]
    """Canonical names; ``SELF`` is this project."""

    def is_for(self, target: Target) -> bool:
        return self.marker is None or Marker(self.marker).evaluate(target.environment)


def read(path: Path) -> tuple[Pin, ...]:
    """The pins of a lock. Raises ``ValueError`` where a line is none or lacks a hash."""
    found = []
    for entry in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if entry.startswith("#") or not entry.strip():
            continue
        head, *rest = entry.splitlines()
        requirement = Requirement(head.removesuffix("\\").strip())
        hashes = tuple(match[1] for line in rest if (match := _HASH.fullmatch(line.strip(" \\"))))
        comments = [re.sub(r"^# +(via\b *)?", "", line.strip()) for line in rest if line.strip().startswith("#")]
        others = [line for line in rest if not line.strip().startswith("#") and not _HASH.fullmatch(line.strip(" \\"))]
        (one,) = requirement.specifier
        if others or one.operator != "==" or "*" in one.version or requirement.url or requirement.extras:
            raise ValueError(f"{path.name}: {head}: not a version with hashes and nothing else")
        if not hashes:
            raise ValueError(f"{path.name}: {head}: no hash")
        wanted_by = tuple(canonicalize_name(name.split(" ")[0]) for name in comments if name and name[0] != "-")
        marker = None if requirement.marker is None else str(requirement.marker)
        found.append(Pin(canonicalize_name(requirement.name), one.version, hashes, marker, wanted_by))
    return tuple(found)


def pins_for(lock: Lock, target: Target) -> dict[str, Pin]:
    """By name, what is installed there. Raises ``ValueError`` where a name has two versions."""
    found: dict[str, Pin] = {}
    for pin in read(lock.path):
        if pin.is_for(target):
            if pin.name in found:
                raise ValueError(f"{lock.name}: {pin.name} twice for Python {target.python} on {target.machine}")
            found[pin.name] = pin
    return found


def all_pins(locks: Iterable[Lock] = LOCKS) -> dict[tuple[str, str], Pin]:
    """By name and version."""
    return {(pin.name, pin.version): pin for lock in locks for pin in read(lock.path)}


def _compile(lock: Lock, options: list[str]) -> None:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--generate-hashes", "--only-binary", ":all:"]
    command += ["--custom-compile-command", "make lock", "--output-file", str(lock.path.relative_to(ROOT)), *options]
    if len(lock.targets) == 1:
        (target,) = lock.targets
        command += ["--python-version", target.python, "--python-platform", target.uv_platform]
    else:
        # Of other systems nothing is installed, and humanfriendly wants this one on Windows.
        command += ["--universal", "--python-version", lock.targets[0].python, "--no-emit-package", "pyreadline3"]
    command += [word for extra in lock.extras for word in ("--extra", extra)]
    # Two locks may be installed beside each other: by one version of each package.
    command += ["--constraints", "requirements/demo.txt"] * (lock.name != "demo" and len(lock.targets) > 1)
    command += ["pyproject.toml"] * lock.project + ["-"] * bool(lock.also)
    done = subprocess.run(command, cwd=ROOT, input="\n".join(lock.also), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{lock.name}: {done.stderr.strip()}")
    print(f"{lock.path.relative_to(ROOT)}: {len(read(lock.path))} pins", flush=True)


def prove(lock: Lock, target: Target) -> str | None:
    """What is wrong with installing a lock there, as uv resolves it with hashes and wheels alone. Installs nothing."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--require-hashes", "--only-binary", ":all:"]
    command += ["--python-version", target.python, "--python-platform", target.uv_platform]
    command += ["--target", str(ROOT / "build" / "nowhere"), "--requirement", str(lock.path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    taken = set(re.findall(r"^ \+ (\S+==\S+)$", done.stderr, re.MULTILINE))
    wanted = {f"{pin.name}=={pin.version}" for pin in pins_for(lock, target).values()}
    return None if taken == wanted else f"takes {sorted(taken ^ wanted)}, or not"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pin what the demo and the images install.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    parser.add_argument("--days", type=int, default=7, help="age that a release must have (7)")
    given = parser.parse_args()
    options = ["--exclude-newer", f"{given.days} days"] + ["--upgrade"] * given.upgrade
    for lock in LOCKS:
        _compile(lock, options)
        for target in lock.targets:
            if (problem := prove(lock, target)) is not None:
                sys.exit(f"{lock.name} for Python {target.python} on {target.machine}: {problem}")
        pythons = dict.fromkeys(target.python for target in lock.targets)
        machines = dict.fromkeys(target.machine for target in lock.targets)
        print(f"  can be installed with Python {', '.join(pythons)} on {', '.join(machines)}", flush=True)


if __name__ == "__main__":
    main()
