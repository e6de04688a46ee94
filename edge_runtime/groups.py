"""What the kernel tells of this process in small files; the control groups around it (version 2). Knows no limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MOST_DIGITS = 19


def group_folders(root: Path = Path("/")) -> Iterator[Path]:
    """The innermost first, the last one is the mount."""
    for line in kernel_text(root / "proc/self/cgroup").splitlines():
        if not line.startswith("0::/"):
            continue
        mount = root / "sys/fs/cgroup"
        group = mount / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            yield folder
            if folder == mount:
                break


def kernel_text(path: Path) -> str:
    """Of /proc or /sys; nothing where there is no such file."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def is_count(text: str) -> bool:
    """Of what is longer Python makes no number, or one that no machine has."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS
