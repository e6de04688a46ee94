"""How many cores a process may use, by trees of files as containers and services see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bundle as tiny

from edge_runtime.cores import chosen_threads, usable_cores


def machine(root: Path, siblings: int = 1, **quotas: str) -> Path:
    """Eight processors, cores of ``siblings`` of them; cpu.max of a group and of the one around it."""
    for number in range(8):
        place = root / f"sys/devices/system/cpu/cpu{number}/topology"
        place.mkdir(parents=True)
        first = number - number % siblings
        (place / "thread_siblings_list").write_text(f"{first}-{first + siblings - 1}\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/outer/inner\n")
    inner = root / "sys/fs/cgroup/outer/inner"
    inner.mkdir(parents=True)
    for name, folder in (("inner", inner), ("outer", inner.parent)):
        if name in quotas:
            (folder / "cpu.max").write_text(quotas[name])
    return root


@pytest.mark.parametrize(
    ("siblings", "allowed", "quotas", "cores", "threads"),
    [
        (1, range(8), {}, 8, 0),
        (2, range(8), {}, 4, 0),  # two threads of one core are one
        (1, [3], {}, 1, 1),
        (1, [2, 5, 6], {}, 3, 3),
        (2, [0, 1], {}, 1, 1),
        (2, [0, 2], {}, 2, 2),
        (1, range(8), {"inner": "max 100000\n", "outer": "max 100000\n"}, 8, 0),
        (1, range(8), {"inner": "250000 100000\n"}, 3, 3),
        (1, range(8), {"inner": "max 100000\n", "outer": "100000 100000\n"}, 1, 1),
        (1, range(8), {"inner": "20000 100000\n"}, 1, 1),  # a fifth of one: none is not to be had
        (1, range(8), {"inner": "1600000 100000\n"}, 8, 0),
        (1, [1, 2], {"inner": "400000 100000\n"}, 2, 2),
    ],
)
def test_cores_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    siblings: int, allowed: list[int], quotas: dict[str, str], cores: int, threads: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(allowed))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    root = machine(tmp_path, siblings, **quotas)
    assert usable_cores(root) == cores
    assert chosen_threads(0, root) == threads  # 0: all there are, bound to their cores by onnxruntime
    assert chosen_threads(5, root) == 5


@pytest.mark.parametrize("text", ["", "max", "-1 -1", "x y", "100000 0", f"{'9' * 5000} 1", "1 2 3", "\0"])
def test_a_quota_that_is_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert usable_cores(machine(tmp_path, inner=text)) == 8


def test_a_machine_that_shows_nothing_has_what_the_scheduler_says(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


_THREADS = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from edge_runtime.loading import LoadSettings, load_bundle

before = len(os.listdir("/proc/self/task"))
loaded = load_bundle(Path(sys.argv[1]), LoadSettings(context=64))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_one_core_of_a_machine_has_no_pool_of_threads() -> None:
    """Two that take turns on one core are half as fast, and much worse once another program has it too."""
    if (os.cpu_count() or 1) == 1:
        pytest.skip("this machine has one core")
    command = [sys.executable, "-c", _THREADS, str(tiny.bundle())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "0"
