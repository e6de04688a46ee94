"""What a run's figures were measured on, in words. Knows no bundle."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ..doctor.facts import processor
from ..resident import machine_memory
from ..telemetry.identity import identify

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "tensorrt", "torch", "numpy")


def machine() -> dict[str, str]:
    """Always the same on one machine and its installation."""
    memory, identity = machine_memory(), identify()
    found = {"board": identity.title} if identity.tegra else {}
    found["processor"] = processor()
    if memory is not None:
        found["memory"] = f"{memory.total / 1e9:.1f} GB"
    found["system"] = platform.platform()
    found["python"] = platform.python_version()
    return found | dict(_versions())


def _versions() -> list[tuple[str, str]]:
    known = []
    for name in _PACKAGES:
        try:
            known.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return known
