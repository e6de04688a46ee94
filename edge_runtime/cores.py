"""How many cores this process may compute on: a container or a service may be held to some of the machine's."""

from __future__ import annotations

import os
from pathlib import Path

from .groups import group_folders, is_count, kernel_text

_QUOTA = 2
"""Words of cpu.max: time, and the period that it is had in, both in us."""


def usable_cores(root: Path = Path("/")) -> int:
    """By affinity (taskset, cpusets, ``CPUAffinity=``) and by quotas of control groups (``--cpus``, ``CPUQuota=``), at
    least 1. Two threads of one core count as one (sched_getaffinity(2); cgroup-v2.rst, cpu.max)."""
    # Only Linux has affinities.
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = len({_core_of(root, number) for number in allowed})
    return max(1, min([cores, *_quotas(root)]))


def chosen_threads(threads: int, root: Path = Path("/")) -> int:
    """``threads``, or where that is 0 what to tell onnxruntime: 0 again where it may use all of the machine, since it
    then binds its threads to the cores; else a number, since it counts the machine's cores and not this process's."""
    if threads:
        return threads
    usable = usable_cores(root)
    machine = len({_core_of(root, number) for number in range(os.cpu_count() or 1)})
    return 0 if usable >= machine else usable


def _core_of(root: Path, number: int) -> str:
    place = root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"
    return kernel_text(place).strip() or str(number)


def _quotas(root: Path) -> list[int]:
    """Whole cores of each quota, rounded up."""
    found: list[int] = []
    for folder in group_folders(root):
        words = kernel_text(folder / "cpu.max").split()
        if len(words) == _QUOTA and all(map(is_count, words)):
            quota, period = map(int, words)
            if period:
                found.append(-(-quota // period))
    return found
