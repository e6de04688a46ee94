"""Whether the files that a model computes from are still those that were checked. Knows no engine and no request.

Weights are mapped, not read: what somebody writes into their files is what the next step computes with, and what is cut
off them ends the process (SIGBUS). An export never writes into a bundle, it renames; ``cp`` over one does. So their
files stay open, and are looked at between two steps: what was written to since, or is being opened for that, is told.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .bundle import FileEntry
from .errors import BundleError, why
from .files import descriptor_sha256


@dataclass(slots=True)
class _Held:
    entry: FileEntry
    descriptor: int
    written: tuple[int, int]
    """(bytes, mtime in ns) when it was found right."""
    is_leased: bool = False


class Intact:
    """Any thread may ask."""

    def __init__(self, directory: Path, entries: Iterable[FileEntry], *, hashes: bool = True) -> None:
        """To be made before the files are checked. ``hashes``: whether one that was only touched is told from one that
        was altered. Raises ``BundleError``."""
        self._hashes = hashes
        self._files: list[_Held] = []
        self._problem = ""
        self._lock = threading.Lock()
        """A number of a file that was closed is soon another file's."""
        for entry in entries:
            try:
                # A pipe into which nobody writes is not waited for; that it is no file is told by who checks them.
                descriptor = os.open(directory / entry.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as problem:
                self.close()
                raise BundleError(f"{directory / entry.name}: {why(problem)}") from None
            self._files.append(_Held(entry, descriptor, _written(descriptor)))

    def guard(self) -> None:
        """From now on whoever opens one of the files for writing waits until this process has let go of it, or for
        /proc/sys/fs/lease-break-time. Only where this process has a handler for the SIGIO that it is then sent, and the
        system lets it: for files of this user (or with CAP_LEASE), on a local file system (fcntl(2), F_SETLEASE)."""
        if signal.getsignal(signal.SIGIO) == signal.SIG_DFL:
            return
        for one in self._files:
            with suppress(OSError):
                fcntl.fcntl(one.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                one.is_leased = True

    def problem(self) -> str:
        """Which file is not what was checked, in one line; empty while all are. Some microseconds, but for a file that
        was touched: that one is hashed."""
        with self._lock:
            if not self._problem:
                self._problem = next((found for one in self._files if (found := self._look(one))), "")
            return self._problem

    def close(self) -> None:
        """Once or more often."""
        with self._lock:
            files, self._files = self._files, []
            for one in files:
                os.close(one.descriptor)

    def _look(self, one: _Held) -> str:
        written = _written(one.descriptor)
        if written != one.written:
            whole = self._hashes and written[0] == one.entry.bytes
            try:
                same = whole and descriptor_sha256(one.descriptor) == one.entry.sha256
            except OSError as problem:
                return f"{one.entry.name} cannot be read any more: {why(problem)}"
            if not same:
                return f"{one.entry.name} was written to while it was served: never write into a bundle, rename"
            one.written = written
        # The system tells what a lease is to become: none, once somebody wants to write.
        if one.is_leased and fcntl.fcntl(one.descriptor, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
            return f"{one.entry.name} is opened for writing while it is served: never write into a bundle, rename"
        return ""


NEVER_ALTERED = Intact(Path(), ())
"""Of a model that has no files."""


def _written(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns
