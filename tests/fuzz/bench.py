"""One reader on its bench: inputs become a file in memory, a judge watches. Knows no fuzzer."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from random import Random

from .judge import Judge
from .targets import Target

_ROOM = 1 << 30
"""Of address space beyond what the process has: who allocates by a number of the file runs into it."""
_MOST_BYTES = 1 << 16
"""Of an input."""
_KEPT = 64
"""Inputs that were read to their end, the latest."""


class Bench:
    def __init__(self, target: Target, place: Path) -> None:
        """``place``: an empty directory; where it lies in memory, inputs are quick."""
        self.target = target
        self.judge = Judge(target.REFUSAL)
        self._path = place / target.NAME
        prepare = getattr(target, "prepare", None)
        if prepare is not None:
            prepare(place)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_one(self, data: bytes) -> bool:
        """Whether it was read to its end."""
        return self.judge.judge(self._read, data)

    def _read(self, judge: Judge, data: bytes) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, data, 0)
        self.target.read(judge, self._path)

    def loop(self, inputs: int, seed: int) -> Judge:
        """So many inputs without a fuzzer: each seed as it is, then mutants of seeds and of mutants that were read."""
        rng = Random(seed)
        pool = self.target.seeds()
        for data in pool:
            self.try_one(data)
        first = len(pool)
        for _ in range(inputs - first):
            data = self.target.mutate(rng.choice(pool), rng)[:_MOST_BYTES]
            if self.try_one(data):
                pool.insert(first, data)
                del pool[first + _KEPT :]
        return self.judge

    def close(self) -> None:
        os.close(self._file)


def limit_memory() -> None:
    """For the rest of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, hard))


def memory_directory() -> tempfile.TemporaryDirectory[str]:
    """In memory where this machine has such a place."""
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
