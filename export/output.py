"""The place of a bundle: complete, or as it was before. Knows nothing of what is in it.

An export writes into a hidden directory beside the place and renames it. What a kill or a power cut leaves of that is
found by its name; that nobody works on it any more is told by its lock, which ends with the process that held it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_runtime.bundle import MANIFEST_NAME
from edge_runtime.errors import BundleError, ConfigError


def free_place(given: Path, *, overwrite: bool) -> Path:
    """Where to write, behind a link; what interrupted exports left there is put in order first.

    Raises ``ConfigError`` where something else is in the way, or a bundle that may not be replaced.
    """
    try:
        place = given.resolve()
        if place.parent.is_dir():
            with _lock(place.parent):
                _put_in_order(place)
        if not place.exists():
            return place
        if not overwrite:
            raise ConfigError(f"{given} exists; choose another output or ask for an overwrite (--overwrite)")
        if not place.is_dir() or (not (place / MANIFEST_NAME).is_file() and any(place.iterdir())):
            raise ConfigError(f"{given} exists and is not a bundle; it is not overwritten")
    except OSError as problem:
        raise BundleError(f"{given} cannot be written: {problem.strerror or problem}") from problem
    return place


@contextmanager
def new_directory(place: Path) -> Iterator[Path]:
    """A directory beside ``place`` that takes its place when the block ends well, and is gone when it does not."""
    directory: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.parent):
            directory = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent))
            working = os.open(directory, os.O_RDONLY)
            _try_lock(working)
        try:
            yield directory
            directory.chmod(0o755)
            for path in directory.iterdir():
                _sync(path)
            _sync(directory)
            _swap(directory, place)
        finally:
            os.close(working)
    except OSError as problem:
        raise BundleError(f"{place} cannot be written: {problem.strerror or problem}") from problem
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _swap(directory: Path, place: Path) -> None:
    old = directory.with_suffix(".old")
    with _lock(place.parent):
        if place.exists():
            place.rename(old)
        directory.rename(place)
    _sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def _put_in_order(place: Path) -> None:
    """Under the lock of the parent: nobody is between two renames, and nobody's directory is still without its lock."""
    name = re.compile(rf"\.{re.escape(place.name)}\.\w+\.(tmp|old)")
    for path in place.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        if match[1] == "old" and not place.exists():
            path.rename(place)
        elif _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    handle = os.open(directory, os.O_RDONLY)
    try:
        return _try_lock(handle)
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """``False``: held by another, or a file system without locks, where nothing is ever swept away."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One at a time; without effect on a file system without locks."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    """To the disk: after the rename a power cut must find the files whole."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
