"""Files that a person names: read up to a bound, found writable before an hour of work is done for them, and written
whole or not at all. Knows no command and no format.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import ConfigError, why

_CHUNK, _HASH_CHUNK = 1 << 16, 1 << 20
Progress = Callable[[int], None] | None


def read_at_most(path: Path, most_bytes: int, what: str) -> bytes:
    """Some files have no end (/dev/zero). ``what`` it is, ahead of its name. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            data = b"".join(_chunks(file, most_bytes + 1))
    except OSError as problem:
        raise ConfigError(f"{what}{path}: {why(problem)}") from None
    if len(data) > most_bytes:
        most = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes >> 10} KiB"
        raise ConfigError(f"{what}{path}: more than {most}")
    return data


def _chunks(file: BinaryIO, most_bytes: int) -> Iterator[bytes]:
    """Python sets aside all that a read may bring before it reads: a bound of 256 MiB would cost that for any file."""
    while most_bytes > 0 and (chunk := file.read(min(_CHUNK, most_bytes))):
        most_bytes -= len(chunk)
        yield chunk


def read_text_at_most(path: Path, most_bytes: int, what: str) -> str:
    """The same as UTF-8, its line ends as those of any text. Raises ``ConfigError``."""
    try:
        text = read_at_most(path, most_bytes, what).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{what}{path}: {why(problem)}") from None
    return io.StringIO(text, newline=None).read()


def check_ordinary(path: Path, what: str) -> None:
    """Of a file in a directory that others made: a pipe in its place would be waited for. Raises ``ConfigError``."""
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        raise ConfigError(f"{what}{path}: {why(problem)}") from None
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{what}{path}: {'Is a directory' if stat.S_ISDIR(mode) else 'it is no ordinary file'}")


def descriptor_sha256(descriptor: int, progress: Progress = None) -> str:
    """Hex digest, by reading: a look into a mapping that was cut off, or is on a disk that fails, ends the process."""
    digest, place = hashlib.sha256(), 0
    while chunk := os.pread(descriptor, _HASH_CHUNK, place):
        digest.update(chunk)
        place += len(chunk)
        if progress is not None:
            progress(len(chunk))
    return digest.hexdigest()


def check_writable(path: Path) -> None:
    """Whether a file can be written there; makes and changes nothing. Raises ``ConfigError``."""
    try:
        if not path.exists():
            # A link may lead to what is not there yet.
            target = Path(os.path.realpath(path))
            if target.is_symlink():
                target.stat()  # round in a circle, and raises
            _check_room(target if path.is_symlink() else path)
            return
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
            raise ConfigError(f"{path} cannot be written: it is a {'directory' if stat.S_ISDIR(mode) else 'socket'}")
        if stat.S_ISREG(mode):
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        elif not os.access(path, os.W_OK):
            raise ConfigError(f"{path} cannot be written: Permission denied")
    except OSError as problem:
        raise ConfigError(f"{path} cannot be written: {why(problem)}") from None


def check_replaceable(path: Path) -> None:
    """Whether another file may take its name, again and again: an ordinary one, and not the one that this process
    prints to, whose text would be lost with it. Raises ``ConfigError``.
    """
    try:
        found = path.stat()
    except OSError:
        return  # none is there yet
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} cannot be written: it is no ordinary file, and what is written there is read again")
    for stream in (1, 2):
        try:
            printed = os.path.samestat(found, os.fstat(stream))
        except OSError:
            continue  # closed
        if printed:
            raise ConfigError(f"{path} cannot be written: it is where this command prints to")


def replace_text(path: Path, text: str) -> None:
    """See ``replacing``."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the place of what a person named, whole or not at all: a stop while writing
    leaves what was there. A link stays one, and what is no ordinary file (/dev/stdout) is written to and stays what it
    is. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        yield path
        return
    with whole(Path(os.path.realpath(path))) as partial:
        yield partial


def check_directory_writable(path: Path) -> None:
    """The same of a directory, whether it is there or is to be made."""
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} cannot be written: it is no directory")
        _check_room(path / "new")
    except OSError as problem:
        raise ConfigError(f"{path} cannot be written: {why(problem)}") from None


def _check_room(path: Path) -> None:
    """The nearest directory above that is there takes a file: tried, for rights alone do not tell a file system that is
    read only, nor what root may do."""
    longest = os.pathconf("/", "PC_NAME_MAX")
    # Its own name, while it is written: see ``whole``.
    if any(len(os.fsencode(part)) > longest for part in (*path.parts, f"{path.name}.part")):
        raise ConfigError(f"{path} cannot be written: File name too long")
    parent = path.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    with tempfile.TemporaryFile(dir=parent):
        pass


def name_too_long(path: str | os.PathLike[str]) -> bool:
    """For the kernel; ``Path.is_dir`` and its like raise for such a name instead of saying no."""
    name, (most, each) = os.fsencode(path), (os.pathconf("/", f"PC_{kind}_MAX") for kind in ("PATH", "NAME"))
    return len(name) >= most or any(len(part) > each for part in name.split(b"/"))


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file beside it to write to, which then takes its place. Where writing fails, as on a full disk, what was there
    stays and nothing is left beside it; an ``OSError`` names the file."""
    partial = path.with_name(f"{path.stem}.part{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException as problem:
        partial.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename in (None, os.fspath(partial)):
            problem.filename = os.fspath(path)
        raise
