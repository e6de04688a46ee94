"""One machine, or a tree of files that is to become one: what is there, and the steps done to it. Decides nothing."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import ConfigError, EdgeError, why
from ..files import read_text_at_most
from .steps import RECORD, Keep, Make, Note, Record, Remove, Run, Step, Unmake, Write

_MOST_BYTES = 1 << 20
_FILE_MODE, _DIRECTORY_MODE = 0o644, 0o755
_PATIENCE_S = 120.0
"""For a command of systemd."""

Runner = Callable[[Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class Machine:
    root: Path
    """Where its file system begins."""

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Raises ``ConfigError`` for what is no text of a sensible size."""
        place = self.place(path)
        return read_text_at_most(place, _MOST_BYTES, "") if os.path.lexists(place) else None

    def is_directory(self, path: str) -> bool:
        return self.place(path).is_dir()

    def groups(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Those of ``wanted`` that there are."""
        lines = (self.read("/etc/group") or "").splitlines()
        known = {line.split(":", 1)[0] for line in lines}
        return tuple(name for name in wanted if name in known)

    def record(self) -> Record | None:
        """Raises ``ConfigError`` where it is none of ours."""
        text = self.read(RECORD)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text.encode("utf-8"), type=Record)
        except (msgspec.DecodeError, RecursionError):
            fix = "move it away; what was installed is then to be removed by hand"
            raise ConfigError(f"{self.place(RECORD)}: not what install-service wrote: {fix}") from None

    def do(self, step: Step, run: Runner) -> None:
        """Raises ``EdgeError``."""
        try:
            if isinstance(step, Make):
                self.place(step.path).mkdir(mode=_DIRECTORY_MODE)
                self.place(step.path).chmod(_DIRECTORY_MODE)
            elif isinstance(step, Write):
                _replace(self.place(step.path), step.text)
            elif isinstance(step, Remove):
                self.place(step.path).unlink(missing_ok=True)
            elif isinstance(step, Unmake):
                # Something else may have come to lie there, or to be there.
                with suppress(OSError):
                    self.place(step.path).rmdir()
            elif isinstance(step, Run):
                run(step.argv)
            else:
                assert isinstance(step, Keep | Note)
        except OSError as problem:
            path = getattr(step, "path", "")
            raise EdgeError(f"{self.place(path)}: {why(problem)}") from None


def record_text(record: Record) -> str:
    return json.dumps({"files": record.files, "directories": record.directories}, indent=2) + "\n"


def run_command(argv: Sequence[str]) -> None:
    """Raises ``EdgeError`` with what it said."""
    command = " ".join(argv)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S
        )
    except OSError as problem:
        raise EdgeError(f"{command}: {why(problem)}") from None
    except subprocess.TimeoutExpired:
        raise EdgeError(f"{command}: no end after {_PATIENCE_S:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise EdgeError(f"{command}: {said}")


def _replace(place: Path, text: str) -> None:
    """In one step: whoever reads it meets the old one or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            os.fchmod(descriptor, _FILE_MODE)
        os.rename(name, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
