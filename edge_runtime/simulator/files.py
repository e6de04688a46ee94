"""Files that change as a kernel's attributes do: in place, at once. Knows no board."""

from __future__ import annotations

import os
from pathlib import Path

Value = str | int


class AttributeFiles:
    """Below one root; names are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, value: Value) -> None:
        """One write, and never a shorter file: a reader finds the old value or the new one, and no piece of either."""
        path = self.root / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            text = f"{value}"
            spare = os.fstat(descriptor).st_size - 1 - len(text)
            os.pwrite(descriptor, f"{text}{' ' * spare}\n".encode(), 0)
        finally:
            os.close(descriptor)

    def write_all(self, folder: str, values: dict[str, Value]) -> None:
        for name, value in values.items():
            self.write(f"{folder}/{name}", value)

    def write_text(self, name: str, text: str) -> None:
        """As it is: no line end is added."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8").strip()

    def link(self, name: str, target: str) -> None:
        """``target``: relative to the root as well, so that the link holds wherever the root is seen from."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self.root / target, path.parent))

    def hide(self, name: str) -> None:
        """As if the driver had taken it away; nothing where it is gone already."""
        path = self.root / name
        if path.exists():
            path.rename(_hidden(path))

    def show(self, name: str) -> None:
        path = self.root / name
        if _hidden(path).exists():
            _hidden(path).rename(path)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.hidden")
