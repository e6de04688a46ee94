"""systemd's own judgement of units."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def verify(place: Path, name: str = "edge-runtime") -> subprocess.CompletedProcess[str]:
    """Of the units of that name there, with the drop-ins beside them. Skips where systemd is not installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    units = [str(path) for path in sorted(place.glob(f"{name}.*")) if path.is_file()]
    return subprocess.run([program, "verify", "--man=no", *units], capture_output=True, text=True, check=False)
