"""The packaged units, drop-ins and configurations, as one machine needs them. Knows no file but the package's own, and
runs nothing.

``systemd/`` and ``configs/`` at the top of the sources are where they are written; the package sees them by links.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from ..errors import ConfigError

USER = "edge-runtime"
CONFIG = "/etc/edge-runtime/config.yaml"
WANTED_GROUPS = ("video", "render", "jtop")
"""Of a Jetson's device nodes, and of jtop's socket."""
SERVICES = ("edge-runtime.socket", "edge-runtime.service")
SYSUSERS = "/etc/sysusers.d/edge-runtime.conf"
TMPFILES = "/etc/tmpfiles.d/edge-runtime.conf"

PACKAGED = Path(__file__).parent.parent / "configs"
UNITS = "/etc/systemd/system"
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What ProtectHome= and PrivateTmp= take out of the service's sight."""
_LONGEST_NAME = 31
_AFTER_DRAIN_S = 20.0
"""Of TimeoutStopSec, behind drain_s."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All that the files depend on."""

    program: str
    """Path of the command on the machine."""
    user: str
    groups: tuple[str, ...]
    """Those of ``WANTED_GROUPS`` that the machine has."""
    drain_s: float
    tcp: bool
    config: str | None
    """Text of the configuration; ``None`` leaves the one that is there."""


@dataclass(frozen=True, slots=True)
class File:
    path: str
    """Absolute, on the machine."""
    text: str


def files_of(setup: Setup) -> tuple[File, ...]:
    """What is to be there, the configuration first."""
    found = [] if setup.config is None else [File(CONFIG, setup.config)]
    found += [
        File(SYSUSERS, _replaced(_packaged("sysusers.conf"), r"^u \S+ ", f"u {setup.user} ")),
        File(TMPFILES, _replaced(_packaged("tmpfiles.conf"), r"0750 \S+ \S+", f"0750 {setup.user} {setup.user}", 2)),
        File(f"{UNITS}/edge-runtime.socket", _socket(setup)),
        File(f"{UNITS}/edge-runtime.service", _service(setup)),
        File(f"{UNITS}/jtop.service.d/edge-runtime.conf", _packaged("jtop.conf")),
    ]
    if setup.groups:
        groups = _assigned(_packaged("groups.conf"), "SupplementaryGroups", " ".join(setup.groups))
        found.append(File(f"{UNITS}/edge-runtime.service.d/groups.conf", groups))
    if setup.tcp:
        found.append(File(f"{UNITS}/edge-runtime.service.d/tcp.conf", _packaged("tcp.conf")))
    return tuple(found)


def board_config(board: str) -> Path:
    """The packaged configuration of a board of ``boards.BOARDS``, by its name."""
    return PACKAGED / f"{board}gb.yaml"


def board_config_text(board: str, user: str) -> str:
    """The same for a service of that user."""
    return _replaced(board_config(board).read_text(encoding="utf-8"), r"^  group: \S+", f"  group: {user}")


def check_user(name: str) -> str:
    """Raises ``ConfigError`` for what is no name of a user, and for root."""
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*", name) or len(name) > _LONGEST_NAME:
        wanted = f"small letters, digits, - and _, {_LONGEST_NAME} at most"
        raise ConfigError(f"--user: {name!r} is no name of a user: {wanted}")
    if name == "root":
        raise ConfigError("--user: the daemon does not run as root; leave it out, and a user is made")
    return name


def check_seen(path: str, what: str, fix: str) -> None:
    """Raises ``ConfigError`` where the service would not see ``path``."""
    plain = PurePosixPath(path)
    for hidden in _HIDDEN:
        if plain.is_relative_to(hidden):
            raise ConfigError(f"{what} {path} lies below {hidden}, which the service does not see: {fix}")


def check_program(path: str) -> None:
    """Raises ``ConfigError`` for what a unit would have to quote."""
    if not re.fullmatch(r"/[A-Za-z0-9_./+@-]+", path):
        raise ConfigError(f"program {path!r}: a unit takes an absolute path of letters, digits and _ . / + @ -")


def _service(setup: Setup) -> str:
    text = _assigned(_packaged("edge-runtime.service"), "ExecStart", f"{setup.program} serve --config {CONFIG}")
    text = _assigned(_assigned(text, "User", setup.user), "Group", setup.user)
    packaged = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert packaged is not None
    return _assigned(text, "TimeoutStopSec", str(max(int(packaged[1]), math.ceil(setup.drain_s + _AFTER_DRAIN_S))))


def _socket(setup: Setup) -> str:
    return _assigned(_assigned(_packaged("edge-runtime.socket"), "SocketUser", setup.user), "SocketGroup", setup.user)


def _assigned(text: str, key: str, value: str) -> str:
    return _replaced(text, rf"^{key}=.*$", f"{key}={value}")


def _replaced(text: str, pattern: str, by: str, times: int = 1) -> str:
    found, count = re.subn(pattern, lambda _: by, text, flags=re.MULTILINE)
    assert count == times, f"{pattern!r} stands {count} times"
    return found


@cache
def _packaged(name: str) -> str:
    return (PACKAGED.with_name("systemd") / name).read_text(encoding="utf-8")
