"""Memory of the machine as /proc and the control groups tell it."""

from __future__ import annotations

from pathlib import Path

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
