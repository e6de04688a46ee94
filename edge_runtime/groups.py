"""The control groups around this process (version 2), as /sys shows them. Knows no limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def group_folders(root: Path = Path("/")) -> Iterator[Path]:
    """The innermost first, the last one is the mount."""
    for line in group_text(root / "proc/self/cgroup").splitlines():
        if not line.startswith("0::/"):
            continue
        mount = root / "sys/fs/cgroup"
        group = mount / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            yield folder
            if folder == mount:
                break


def group_text(path: Path) -> str:
    """Nothing where there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
