"""How fast the processor copies memory: with one thread, and with all cores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...cores import usable_cores
from ..outcome import Copy, Request
from .telling import Teller, run_as_probe
from .timing import best_of

ONE_THREAD, ALL_CORES = "processor, 1 thread", "processor, all cores"


class Buffers:
    """Two of ``size_bytes``, far larger than any cache. numpy lets go of the interpreter while it copies or reads."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._source, self._target = np.ones(size_bytes, np.uint8), np.zeros(size_bytes, np.uint8)

    def copy_s(self, threads: int, measure_s: float) -> float:
        """Seconds of a copy, the quickest of those that fit into about ``measure_s``."""
        return self._best(lambda part: np.copyto(self._target[part], self._source[part]), threads, measure_s)

    def read_s(self, threads: int, measure_s: float) -> float:
        """The same of reading one of them."""
        words = self._source[: self.size_bytes // 8 * 8].view(np.uint64)

        def read(part: slice) -> object:
            return np.bitwise_or.reduce(words[part.start // 8 : part.stop // 8])

        return self._best(read, threads, measure_s)

    def _best(self, run: Callable[[slice], object], threads: int, measure_s: float) -> float:
        edges = [self.size_bytes * part // threads for part in range(threads + 1)]
        parts = [slice(*pair) for pair in itertools.pairwise(edges)]
        if threads == 1:
            return best_of(lambda: run(parts[0]), measure_s)
        with ThreadPoolExecutor(threads) as pool:
            return best_of(lambda: list(pool.map(run, parts)), measure_s)


def probe(request: Request, teller: Teller) -> None:
    teller.stage("buffers")
    buffers = Buffers(request.copy_bytes)
    teller.launched()
    teller.stage("copies with one thread")
    teller.copy(Copy(ONE_THREAD, buffers.size_bytes, buffers.copy_s(1, request.measure_s)))
    teller.stage("copies with all cores")
    cores = usable_cores()
    teller.copy(Copy(ALL_CORES, buffers.size_bytes, buffers.copy_s(cores, request.measure_s)))


if __name__ == "__main__":
    run_as_probe(probe)
