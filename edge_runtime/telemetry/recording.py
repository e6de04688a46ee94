"""Samples in a file, one JSON object a line, and a source that plays them again. Knows no board.

Written by ``edge-runtime telemetry --json``, or by ``record`` out of any source.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from ..errors import ConfigError, why
from ..schema import structure
from .sample import Sample
from .source import TelemetrySource


def line_of(sample: Sample) -> str:
    return msgspec.json.encode(sample).decode()


def record(samples: Iterable[Sample], write: Callable[[str], object]) -> None:
    """A line each, as it comes."""
    for sample in samples:
        write(f"{line_of(sample)}\n")


def new_samples(
    source: TelemetrySource, interval_s: float, wait: Callable[[float], object] = time.sleep
) -> Iterator[Sample]:
    """Without end: each once, however often it is asked for. Starts with a sample; until there is one, it waits."""
    last_s: float | None = None
    while True:
        sample = source.latest()
        if sample is not None and sample.time_s != last_s:
            last_s = sample.time_s
            yield sample
        wait(interval_s)


def read_recording(path: Path) -> tuple[Sample, ...]:
    """In the order of the file. Raises ``ConfigError``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"recording {path}: {why(problem)}") from None
    samples = [_sample(line, f"recording {path}, line {number}") for number, line in enumerate(lines, 1) if line]
    if not samples:
        raise ConfigError(f"recording {path}: there is no sample in it")
    if any(later.time_s < earlier.time_s for earlier, later in pairwise(samples)):
        raise ConfigError(f"recording {path}: its times run backwards")
    return tuple(samples)


def _sample(line: str, where: str) -> Sample:
    try:
        data = msgspec.json.decode(line)
    except msgspec.DecodeError:
        raise ConfigError(f"{where}: it is no JSON") from None
    return structure(Sample, data, ConfigError, where)


class ReplaySource:
    """What was recorded, in its own time from now on. After the last sample nothing is new."""

    name = "replay"

    def __init__(
        self, samples: Sequence[Sample], speed: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``samples``: at least one, by time."""
        self._samples = samples
        self._offsets_s = [(sample.time_s - samples[0].time_s) / speed for sample in samples]
        self._clock = clock
        self._start_s = clock()
        self.trouble: str | None = None

    def latest(self) -> Sample | None:
        elapsed_s = self._clock() - self._start_s
        index = max(0, bisect_right(self._offsets_s, elapsed_s) - 1)
        if elapsed_s > self._offsets_s[-1]:
            self.trouble = "replay: the recording is over"
        return replace(self._samples[index], time_s=self._start_s + self._offsets_s[index])

    def close(self) -> None:
        """There is nothing to close."""
