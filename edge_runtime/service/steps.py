"""What installing and removing the service takes, step by step. Pure: knows which files are there by a function that it
is given, writes nothing and runs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from .units import CONFIG, SERVICES, SYSUSERS, TMPFILES, UNITS, File

RECORD = "/etc/edge-runtime/installed.json"
"""What was made here, so that it can be undone to the file."""


@dataclass(frozen=True, slots=True)
class Make:
    """A directory."""

    path: str


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Keep:
    """A file that stays as it is."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A file."""

    path: str


@dataclass(frozen=True, slots=True)
class Unmake:
    """A directory, where nothing is left in it."""

    path: str


@dataclass(frozen=True, slots=True)
class Run:
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    text: str


Step = Make | Write | Keep | Remove | Unmake | Run | Note
Reader = Callable[[str], str | None]
"""The text of a file of the machine; ``None`` where there is none."""


@dataclass(frozen=True, slots=True)
class Record:
    files: dict[str, str] = field(default_factory=dict)
    """sha256 by path, of each file that was written, as it was written."""
    directories: list[str] = field(default_factory=list)
    """Those that were made, a parent before what lies in it."""


def install(
    files: Sequence[File], read: Reader, is_there: Callable[[str], bool], record: Record
) -> tuple[tuple[Step, ...], Record]:
    """The steps up to the files, and the record that goes with them. ``is_there``: a directory."""
    steps: list[Step] = []
    made = list(record.directories)
    hashes = dict(record.files)
    wanted = {file.path for file in files}
    for path in [*(file.path for file in files), RECORD]:
        for parent in reversed([str(parent) for parent in PurePosixPath(path).parents]):
            if not is_there(parent) and Make(parent) not in steps:
                steps.append(Make(parent))
                made += [] if parent in made else [parent]
    for file in files:
        step = _written(file, read(file.path), hashes.get(file.path))
        steps.append(step)
        if isinstance(step, Write):
            hashes[file.path] = digest(file.text)
    for path in [path for path in hashes if path not in wanted and path != CONFIG]:
        gone = _removed(path, read(path), hashes.pop(path))
        steps += [gone] if gone is not None else []
    return tuple(steps), Record(hashes, made)


def commands(changed: Set[str], bundle: str | None) -> Iterator[Step]:
    """What makes systemd know of them. ``changed``: the files that were written or removed. ``bundle``: its place,
    where there is none yet."""
    if SYSUSERS in changed:
        yield Run(("systemd-sysusers", SYSUSERS))
    if TMPFILES in changed:
        yield Run(("systemd-tmpfiles", "--create", TMPFILES))
    if changed:
        yield Run(("systemctl", "daemon-reload"))
    yield Run(("systemctl", "enable", *SERVICES))
    if bundle is not None:
        yield Note(f"not started: there is no bundle in {bundle} yet; then: sudo systemctl start {' '.join(SERVICES)}")
        return
    # Not waiting: what is loaded may take minutes, and systemctl status tells.
    yield Run(("systemctl", "restart" if changed else "start", "--no-block", *SERVICES))


def uninstall(read: Reader, record: Record) -> tuple[Step, ...]:
    """What was made goes, what was edited since stays."""
    there = [name for name in SERVICES if read(f"{UNITS}/{name}") is not None]
    steps: list[Step] = [Run(("systemctl", "disable", "--now", *there))] if there else []
    for path, written in record.files.items():
        step = _removed(path, read(path), written)
        steps += [step] if step is not None else []
    steps.append(Remove(RECORD))
    kept = {step.path for step in steps if isinstance(step, Keep)}
    for directory in reversed(record.directories):
        if not any(PurePosixPath(path).is_relative_to(directory) for path in kept):
            steps.append(Unmake(directory))
    steps.append(Run(("systemctl", "daemon-reload")))
    steps += [Note(f"what was edited stays: sudo rm {' '.join(sorted(kept))}")] if kept else []
    return tuple(steps)


def is_edited(path: str, there: str, record: Record) -> bool:
    """Whether a file is another than the one that was written, or was never written from here."""
    return record.files.get(path) != digest(there)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _written(file: File, there: str | None, recorded: str | None) -> Step:
    if there is None:
        return Write(file.path, file.text)
    if there == file.text:
        return Keep(file.path, "as it is to be")
    if recorded is None:
        return Keep(file.path, "not from here; move it away to have ours")
    if digest(there) != recorded:
        return Keep(file.path, "edited since; move it away to have ours")
    return Write(file.path, file.text)


def _removed(path: str, there: str | None, recorded: str) -> Step | None:
    if there is None:
        return None
    if digest(there) != recorded:
        return Keep(path, "edited since; remove it by hand")
    return Remove(path)
