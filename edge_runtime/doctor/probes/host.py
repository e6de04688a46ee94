"""How fast the processor copies memory: with one thread, and with all cores."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..outcome import Copy, Request
from .telling import Teller, run_as_probe
from .timing import best_of

ONE_THREAD, ALL_CORES = "processor, 1 thread", "processor, all cores"


def probe(request: Request, teller: Teller) -> None:
    teller.stage("buffers")
    count = request.copy_bytes
    source, target = np.ones(count, np.uint8), np.zeros(count, np.uint8)
    teller.launched()
    teller.stage("copies with one thread")
    seconds = best_of(lambda: np.copyto(target, source), request.measure_s)
    teller.copy(Copy(ONE_THREAD, count, seconds))
    teller.stage("copies with all cores")
    cores = len(os.sched_getaffinity(0))
    edges = [count * part // cores for part in range(cores + 1)]
    parts = [slice(*pair) for pair in itertools.pairwise(edges)]
    with ThreadPoolExecutor(cores) as pool:
        # numpy lets go of the interpreter while it copies.
        run = lambda: list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))  # noqa: E731
        teller.copy(Copy(ALL_CORES, count, best_of(run, request.measure_s)))


if __name__ == "__main__":
    run_as_probe(probe)
