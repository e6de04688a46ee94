"""Memory of the machine as /proc and the control groups tell it."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

import edge_runtime.resident as resident_module
from edge_runtime.cli import main
from edge_runtime.resident import MachineMemory, machine_memory, resident

MEMINFO = "MemTotal:        8000 kB\nMemFree:          100 kB\nMemAvailable:    6000 kB\nHugePages_Total:    0\n"
KB = 1024


def tree(root: Path, group: str = "0::/") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text(f"{group}\n")
    return root


def limit(root: Path, group: str, most: str, used: int, files: int) -> None:
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\nfile {files}\n")


def test_without_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert machine_memory(tree(tmp_path)) == MachineMemory(8000 * KB, 6000 * KB)
    limit(tmp_path, "", "max", 100, 0)
    assert machine_memory(tmp_path) == MachineMemory(8000 * KB, 6000 * KB)


def test_the_tightest_group_around_it_counts(tmp_path: Path) -> None:
    tree(tmp_path, "0::/system.slice/edge.service")
    limit(tmp_path, "system.slice/edge.service", str(4000 * KB), 1500 * KB, 500 * KB)
    assert machine_memory(tmp_path) == MachineMemory(4000 * KB, 3000 * KB)
    limit(tmp_path, "system.slice", str(5000 * KB), 4900 * KB, 0)
    assert machine_memory(tmp_path) == MachineMemory(4000 * KB, 100 * KB)


def test_what_does_not_tell_is_none(tmp_path: Path) -> None:
    assert machine_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: many kB\n")
    assert machine_memory(tmp_path) is None


def test_this_process() -> None:
    seen = resident()
    assert 0 < seen.anonymous < seen.now <= seen.peak
    found = machine_memory()
    assert found is not None and 0 < found.available <= found.total


@pytest.mark.parametrize(("shared", "arenas"), [(True, 1), (False, 5)])
def test_threads_share_what_is_allocated_from(shared: bool, arenas: int) -> None:
    """In a process of its own, of which glibc itself tells how many arenas it has."""
    script = f"""if True:
        import ctypes, threading
        from edge_runtime.resident import share_arena
        libc = ctypes.CDLL(None)
        libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        if {shared}:
            share_arena()
        together = threading.Barrier(4)
        def takes():
            together.wait()
            assert libc.malloc(5000)
            together.wait()
        threads = [threading.Thread(target=takes) for _ in range(4)]
        [one.start() for one in threads], [one.join() for one in threads]
        libc.malloc_stats()
    """
    if not hasattr(ctypes.CDLL(None), "malloc_stats"):
        pytest.skip("not glibc")
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    found = len(re.findall(r"^Arena \d+:", told, re.MULTILINE))
    assert found == 1 if shared else 1 < found <= arenas


def test_the_daemon_has_threads_share_it_before_there_are_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    threads: list[int] = []
    monkeypatch.setattr(resident_module, "share_arena", lambda: threads.append(threading.active_count()))
    CliRunner().invoke(main, ["serve", "--config", str(tmp_path / "none.yaml")])
    assert len(threads) == 1
