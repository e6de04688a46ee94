"""Takes out of a text what says whose machine it was made on: it goes into public issues.

Names of the host and the user, paths below a home directory, addresses, and numbers that only one board has.
"""

from __future__ import annotations

import getpass
import math
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..telemetry.attributes import read_text

_NOBODY = frozenset({"root", "nvidia", "jetson", "ubuntu", "user", "admin", "localhost", "localhost.localdomain"})
_NOBODY |= {"tegra-ubuntu", "orin", "nobody", "test", "build", "docker", "none"}
"""Names that thousands have, and that stand in sentences and packages too."""
_HOMES = re.compile(r"(?:/home|/Users|/var/home)/[^/\s:'\",;)\]]+|/ro[o]t(?=/|\b)")
_ADDRESSES = re.compile(
    r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"  # of a network card
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?=[:/])"  # of a machine, where a port or a path follows: versions look alike
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",  # of a disk, a GPU, a boot
    re.IGNORECASE,
)
_TAKEN_OUT = "(taken out)"
_SERIALS: tuple[str, ...] = ("proc/device-tree/serial-number", "sys/firmware/devicetree/base/serial-number")
_SERIALS += ("etc/machine-id", "sys/class/dmi/id/product_serial", "sys/class/dmi/id/board_serial")
_SERIALS += ("sys/class/dmi/id/product_uuid",)
_SHORT = 3
"""Characters: fewer are no serial number, and as a name they may be a word as well."""


@dataclass(frozen=True, slots=True)
class Private:
    names: tuple[str, ...]
    """Of host and user."""
    places: tuple[str, ...]
    """Home directory and bundle: longest first."""
    serials: tuple[str, ...] = ()


def private_here(root: Path = Path("/"), places: tuple[str, ...] = ()) -> Private:
    """``places``: further directories that a person has chosen the names of."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    host = platform.node()
    homes = {os.path.expanduser("~"), os.environ.get("HOME", "")}
    kept = [place.rstrip("/") for place in (*homes, *places) if place.rstrip("/")]
    serials = [(read_text(f"{root}/{name}") or "").strip("\0 \n") for name in _SERIALS]
    names = (host, host.split(".")[0], user, os.environ.get("SUDO_USER", ""))
    return Private(
        tuple(dict.fromkeys(name for name in names if name and name.lower() not in _NOBODY)),
        tuple(sorted(dict.fromkeys(kept), key=len, reverse=True)),
        tuple(one for one in serials if len(one) > _SHORT),
    )


def scrubbed(text: str, private: Private) -> str:
    for place in private.places:
        text = re.sub(re.escape(place) + r"(?=[/\s:'\",;)\]]|$)", "~", text)
    for serial in private.serials:
        text = text.replace(serial, _TAKEN_OUT)
    text = _ADDRESSES.sub(_TAKEN_OUT, _HOMES.sub("~", text))
    for name in private.names:
        # A name of one or two letters is a word as well: it must stand where names do.
        alone = r"(?<=[/@'\"]){}(?=[/@:'\"]|$)" if len(name) < _SHORT else r"(?<![\w.-]){}(?![\w-])"
        text = re.sub(alone.replace("{}", re.escape(name)), _TAKEN_OUT, text, flags=re.IGNORECASE)
    return text


def scrubbed_data(value: Any, private: Private) -> Any:
    """The same of all strings in plain data, keys among them."""
    if isinstance(value, str):
        return scrubbed(value, private)
    if isinstance(value, dict):
        return {scrubbed_data(key, private): scrubbed_data(one, private) for key, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no name for it
    if isinstance(value, list | tuple):
        return [scrubbed_data(one, private) for one in value]
    return value
