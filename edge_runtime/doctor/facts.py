"""What a reader of a report wants to know of the machine first: versions, board, power mode, memory.

Nothing here says whose machine it is: no name of a host or a user, no serial number.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..memory import shown
from ..resident import machine_memory
from ..telemetry.attributes import read_text
from .device import Trial
from .machine import Machine
from .outcome import Outcome


def facts_of(machine: Machine, trial: Trial, bundle: str | None, root: Path = Path("/")) -> dict[str, str]:
    """``bundle``: its name."""
    identity, sample = machine.identity, trial.before.sample
    facts = {
        "edge-runtime": __version__,
        "board": _board(machine),
        "system": f"Linux {platform.release()}, {' '.join(platform.libc_ver())}, Python {machine.python}",
        "processor": processor(root),
        "memory": _memory(trial),
    }
    if identity.tegra:
        pack = "none that is known" if identity.jetpack is None else identity.jetpack.version
        facts["JetPack"] = f"{pack} (L4T {identity.l4t or 'not told'})"
        facts["power mode"] = "not told" if sample is None or sample.power_mode is None else sample.power_mode
        if sample is not None and sample.hottest is not None and trial.after.sample is not None:
            last = trial.after.sample.hottest
            ends = "" if last is None else f" before, {last.name} {last.temperature_c:.0f} C after"
            facts["temperature"] = f"{sample.hottest.name} {sample.hottest.temperature_c:.0f} C{ends}"
    accelerators = [one.told.accelerator for one in trial.outcomes if one.told.accelerator is not None]
    if accelerators:
        first = accelerators[0]
        total = "" if first.total_bytes is None else f" of {shown(first.total_bytes)}"
        facts["accelerator"] = f"{first.name}, SM {first.compute}, {shown(first.free_bytes)}{total} free"
    facts["packages"] = ", ".join(_packages(trial.outcomes, machine)) or "none"
    absent = [one.said for one in trial.outcomes if one.ended == "absent"]
    if absent:
        facts["absent"] = ", ".join(dict.fromkeys(absent))
    facts["bundle"] = bundle or "none (a made-up layer, products at the shapes of a Gemma 2 2B)"
    return facts


def _board(machine: Machine) -> str:
    identity = machine.identity
    if not identity.tegra:
        return f"no Jetson ({platform.machine()})"
    return f"{identity.title}{f' ({identity.part})' if identity.part else ''}"


def processor(root: Path = Path("/")) -> str:
    found = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", read_text(f"{root}/proc/cpuinfo") or "", re.MULTILINE)
    name = found[1].strip() if found else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"


def _memory(trial: Trial) -> str:
    memory = machine_memory()
    told = "not told" if memory is None else f"{shown(memory.total)}, {shown(memory.available)} available"
    blocks = trial.before.free_blocks_4mb
    return told if blocks is None else f"{told}, {blocks} free blocks of 4 MB"


def _packages(outcomes: Sequence[Outcome], machine: Machine) -> list[str]:
    versions: dict[str, str] = dict(machine.engines)
    for outcome in outcomes:
        # onnxruntime says its version without saying which of its two packages it is.
        versions |= {name: one for name, one in outcome.told.versions.items() if name != "onnxruntime" or not versions}
    return [f"{name.replace('_', ' ')} {version}" for name, version in versions.items()]
