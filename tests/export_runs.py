"""Exports as their own process, watched while they run. Knows no test."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPORT = (sys.executable, "-m", "export", "export")
EXACT = ("--precision", "exact", "--layers", "18")
"""Of the real model: as it is, and a draft out of the same bytes that is the target itself, all of its layers and its
vocabulary. One export for whoever needs either."""
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


@contextmanager
def shared_exports(source: Path, folder: Path) -> Iterator[Callable[..., ExportRun]]:
    """``export(*options)``: what is in ``folder`` already is taken from there, whichever process exported it; another
    one waits for it. The last process to leave removes the folder: it holds gigabytes."""

    def export(*options: str) -> ExportRun:
        output = folder / ("gemma" + "".join(options))
        record = output.with_name(f"{output.name}.json")
        with output.with_name(f"{output.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not record.exists():
                run = watched_export(source, output, *options)
                assert run.returncode == 0, run.stderr
                record.write_text(json.dumps([run.stdout, run.stderr, run.peak_anonymous]), encoding="utf-8")
        stdout, stderr, peak = json.loads(record.read_text(encoding="utf-8"))
        return ExportRun(output, stdout, stderr, 0, peak)

    with (folder.parent / f"{folder.name}.used").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        folder.mkdir(exist_ok=True)
        yield export
        try:
            fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another one still reads them
        shutil.rmtree(folder, ignore_errors=True)


def anonymous_bytes(pid: int) -> int:
    """0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)
