"""The peers that there are, and the Python that each runs under. Knows no figure.

python -m edge_runtime.bench.environments DIRECTORY [KIND ...]      # makes the environments; `make peers`
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from ..errors import ConfigError, did_you_mean
from ..schema import structure

ENVIRONMENTS = Path("bench-envs")
_FILE = Path(__file__).parent / "data" / "peers.yaml"
_STAMP = "packages.txt"
_INSTALL_S = 3600.0
"""llama.cpp is compiled."""


@dataclass(frozen=True, slots=True)
class PeerKind:
    kind: str
    program: str
    """File in ``peers``, or a path."""
    module: str
    """Whether this can be found says whether the peer is installed."""
    modes: dict[str, str | None]
    """Mode -> the format that the checkpoint is made into for it; ``None``: none."""
    packages: tuple[str, ...]

    @property
    def pins(self) -> str:
        return "\n".join(self.packages) + "\n"

    @property
    def pins_sha256(self) -> str:
        return hashlib.sha256(self.pins.encode()).hexdigest()


def peer_kinds() -> tuple[PeerKind, ...]:
    data: list[Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(structure(PeerKind, item, ConfigError, _FILE.name) for item in data)


def chosen_kinds(names: Sequence[str]) -> tuple[PeerKind, ...]:
    """Those of ``names``, all for none. Raises ``ConfigError``."""
    known = {kind.kind: kind for kind in peer_kinds()}
    for name in names:
        if name not in known:
            raise ConfigError(f"peers: {name!r} is none of {', '.join(known)}{did_you_mean(name, known)}")
    return tuple(kind for name, kind in known.items() if not names or name in names)


def named_pythons(given: Sequence[str]) -> dict[str, Path]:
    """Of ``KIND=PATH`` each. Raises ``ConfigError``, also for a Python that is not there."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise ConfigError(f"peer-python: {text!r} is not KIND=PATH")
        (kind,) = chosen_kinds([name])
        if not Path(path).is_file():
            raise ConfigError(f"peer-python: there is no {path}")
        found[kind.kind] = Path(path)
    return found


def python_of(kind: PeerKind, named: Mapping[str, Path], environments: Path) -> Path | None:
    """The one that is named, that of its environment, or this one where the peer is installed here; ``None``: none."""
    own = python_in(environments / kind.kind)
    if kind.kind in named:
        return named[kind.kind]
    if own.exists():
        return own
    return Path(sys.executable) if importlib.util.find_spec(kind.module) else None


def python_in(environment: Path) -> Path:
    return environment / "bin" / "python"


def make_environment(kind: PeerKind, environments: Path, timeout_s: float = _INSTALL_S) -> str | None:
    """``None``: it is there, with these packages. Otherwise why not, in one line; nothing is left then."""
    place = environments / kind.kind
    stamp = place / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == kind.pins and python_in(place).exists():
        return None
    shutil.rmtree(place, ignore_errors=True)
    problem = _made(place) or _ran([str(python_in(place)), "-m", "pip", *_PIP, *kind.packages], timeout_s)
    if problem is not None:
        shutil.rmtree(place, ignore_errors=True)
        return problem
    stamp.write_text(kind.pins, encoding="utf-8")
    return None


_PIP = ("install", "--quiet", "--no-input", "--disable-pip-version-check")


def _made(place: Path) -> str | None:
    problem = _ran([sys.executable, "-m", "venv", str(place)], 600.0)
    if problem is None:
        return None
    # Debian packs ensurepip apart: the pip that is here fills the environment.
    return _ran([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)], 600.0) or _ran(
        [sys.executable, "-m", "pip", "--python", str(python_in(place)), *_PIP, "pip"], 600.0
    )


def _ran(command: Sequence[str], timeout_s: float) -> str | None:
    """``None`` where it worked; else the line of its errors that says most, the last one."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            timeout=timeout_s,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        return " ".join(str(problem).split())
    if done.returncode == 0:
        return None
    said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in said if "error" in line.lower()]
    return (errors or said or [f"ended without a word ({done.returncode})"])[-1]


def make_environments(kinds: Sequence[PeerKind], environments: Path) -> int:
    """One after the other, each told; a failure stops no other. How many there are then."""
    count = 0
    for kind in kinds:
        click.echo(f"{kind.kind}: {', '.join(kind.packages)}")
        problem = make_environment(kind, environments)
        count += problem is None
        click.echo(f"{kind.kind}: {'ready' if problem is None else f'failed, and is left out: {problem}'}")
    return count


def _main(arguments: Sequence[str]) -> None:
    if not arguments:
        sys.exit("error: name a directory for the environments")
    try:
        kinds = chosen_kinds(arguments[1:])
    except ConfigError as problem:
        sys.exit(f"error: {problem}")
    if not make_environments(kinds, Path(arguments[0])):
        sys.exit("error: no peer could be installed")


if __name__ == "__main__":
    _main(sys.argv[1:])
