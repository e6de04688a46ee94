"""Exports as their own process, watched while they run. Knows no test."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPORT = (sys.executable, "-m", "export", "export")
_INTERVAL_S = 0.005


@dataclass(frozen=True)
class ExportRun:
    output: Path
    stdout: str
    stderr: str
    returncode: int
    peak_anonymous: int
    """Bytes of RssAnon at its highest, as sampled."""


def start_export(source: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    command = [*EXPORT, "--source", str(source), "--output", str(output), *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def watched_export(source: Path, output: Path, *options: str) -> ExportRun:
    peak = 0
    with start_export(source, output, *options) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(_INTERVAL_S)
        stdout, stderr = process.communicate()
    return ExportRun(output, stdout, stderr, process.returncode, peak)


def anonymous_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
