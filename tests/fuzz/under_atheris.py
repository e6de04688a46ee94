"""One reader in this process, driven by atheris (https://github.com/google/atheris). Started by ``tests.fuzz``."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["edge_runtime", "export"]):
    from .targets import target

    READER = target(sys.argv[1])

from .bench import Bench, limit_memory

_MOST_CPU_S, _MOST_WALL_S = 20, 3600
"""Of one input, after which the process ends: a machine that stands still hangs nobody. The judge is less patient."""
_TELLS_EVERY_S = 60
_KEPT = 64
"""Inputs that were read to their end, the latest."""


class Run:
    """Ends the process once enough inputs have been tried."""

    def __init__(self, name: str, place: Path, findings: Path, inputs: int, seconds: int) -> None:
        self.bench = Bench(READER, place)
        self._name, self._findings, self._inputs, self._seconds = name, findings, inputs, seconds
        self._begun = self._told = time.monotonic()
        self._whole = READER.seeds()
        self._seeds = len(self._whole)
        self._input = b""

    def mutated(self, data: bytes, most: int, seed: int) -> bytes:
        """Most of what reaches something new is refused at once, and so is what is made of it: every second input is
        made of one that was read to its end."""
        rng = Random(seed)
        if rng.randrange(16) == 0:
            return bytes(atheris.Mutate(data, most))
        return READER.mutate(rng.choice(self._whole) if rng.randrange(2) else data, rng)[:most]

    def one(self, data: bytes) -> None:
        self._input = data
        signal.setitimer(signal.ITIMER_PROF, _MOST_CPU_S)
        if self.bench.try_one(data):
            self._whole.insert(self._seeds, data)
            del self._whole[self._seeds + _KEPT :]
        judged = self.bench.judge.judged
        now = time.monotonic() if judged % 64 == 0 else self._told
        over = judged >= self._inputs or (self._seconds and now - self._begun >= self._seconds)
        if over or now - self._told >= _TELLS_EVERY_S:
            self._told = now
            self._tell()
        if over:
            sys.stderr.flush()
            os._exit(1 if self.bench.judge.findings else 0)

    def hung(self, *_: object) -> None:
        (self._findings / f"{self._name}-hung").write_bytes(self._input)
        print(f"{self._name}: FOUND no end within {_MOST_CPU_S} s: {self._findings / self._name}-hung", flush=True)
        os._exit(1)

    def _tell(self) -> None:
        judge, wall_s = self.bench.judge, time.monotonic() - self._begun
        used = time.process_time()
        rates = f"{judge.judged / wall_s:,.0f}/s, {judge.judged / used:,.0f} a CPU second"
        counts = f"{judge.counts['read']:,} read, {judge.counts['refused']:,} refused"
        worst = f"slowest {judge.slowest_s:.2f} s, memory {judge.heaviest:.0f} x input"
        print(f"{self._name}: {judge.judged:,} inputs in {wall_s:,.0f} s ({rates}): {counts}; {worst}", flush=True)
        for kind, (told, data) in judge.findings.items():
            self._findings.mkdir(parents=True, exist_ok=True)
            file = self._findings / f"{self._name}-{re.sub(r'[^A-Za-z0-9]+', '-', kind)[:120]}"
            file.write_bytes(data)
            print(f"{self._name}: FOUND {judge.counts[kind]:,} x {kind}: {told[:200]!r}: {file}", flush=True)


def main() -> None:
    warnings.simplefilter("error")
    name, place, corpus, findings, inputs, seconds, seed = sys.argv[1:]
    run = Run(name, Path(place), Path(findings), int(inputs), int(seconds))
    for index, data in enumerate(READER.seeds()):
        (Path(corpus) / f"seed-{index}").write_bytes(data)
    words = [sys.argv[0], corpus, f"-seed={seed}", f"-timeout={_MOST_WALL_S}", f"-artifact_prefix={findings}/{name}-"]
    words += ["-max_len=65536", "-len_control=0", "-rss_limit_mb=0", "-mutate_depth=1"]
    words.append(f"-report_slow_units={_MOST_WALL_S}")
    Path(findings).mkdir(parents=True, exist_ok=True)
    atheris.Setup(words, run.one, custom_mutator=run.mutated)
    signal.signal(signal.SIGPROF, run.hung)
    limit_memory()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
