"""Which board this is and which system runs on it. Knows no reading that changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..boards import Board, Jetpack, board_of_part, jetpack_of
from .attributes import read_text

_TREES = ("sys/firmware/devicetree/base", "host/devicetree")
"""Where the device tree is. Container engines hide the first; the second is where docker/compose.yaml mounts it."""


@dataclass(frozen=True, slots=True)
class Identity:
    tegra: bool
    """Whether the chip is one of NVIDIA's."""
    model: str | None = None
    """In the words of the device tree."""
    part: str | None = None
    """Of the module: ``p3767-0005``."""
    board: Board | None = None
    """``None``: none of the table."""
    l4t: str | None = None
    jetpack: Jetpack | None = None

    @property
    def title(self) -> str:
        if self.board is not None:
            return self.board.title
        return self.model or ("an unknown Jetson" if self.tegra else "no Jetson")


def identify(root: Path = Path("/")) -> Identity:
    """``root``: where the file system begins."""
    tree = next((place for name in _TREES if (place := root / name).is_dir()), root / _TREES[0])
    compatible = read_text(f"{tree}/compatible") or ""
    names = compatible.split("\0")
    parts = [found[0] for name in names if (found := re.search(r"p(?:3767|3701)-\d{4}", name))]
    release = read_text(f"{root}/etc/nv_tegra_release") or ""
    found = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", release)
    l4t = f"{found[1]}.{found[2]}" if found else None
    return Identity(
        any(name.startswith("nvidia,tegra") for name in names),
        (read_text(f"{tree}/model") or "").strip() or None,
        parts[0] if parts else None,
        board_of_part(parts[0]) if parts else None,
        l4t,
        jetpack_of(l4t) if l4t else None,
    )
