"""Samples in a file, one JSON object a line, and a source that plays them again. Knows no board.

Written by ``edge-runtime telemetry --json``, or by ``record`` out of any source.
"""

from __future__ import annotations

import os
import stat
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import ConfigError, why
from ..schema import structure
from .plausible import impossible
from .sample import Sample
from .source import TelemetrySource

_MOST_LINE_BYTES = 1 << 18
_MOST_BYTES = 1 << 28
"""Some days of a line a second. All of it is held in memory."""
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Recording:
    samples: tuple[Sample, ...]
    """At least one, by time."""
    note: str = ""
    """What of the file was left out, in words."""


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


def read_recording(path: Path) -> Recording:
    """Raises ``ConfigError``."""
    where = f"recording {path}"
    try:
        with _opened(path) as file:
            return _read(file, where)
    except OSError as problem:
        raise ConfigError(f"{where}: {why(problem)}") from None


def _opened(path: Path) -> BinaryIO:
    # Without waiting for somebody to write into a pipe.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    kind = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(kind):
        return file
    file.close()
    what = "Is a directory" if stat.S_ISDIR(kind) else "it is no regular file; write what it says into one"
    raise ConfigError(f"recording {path}: {what}")


def _read(file: BinaryIO, where: str) -> Recording:
    samples: list[Sample] = []
    note, number, size = "", 0, 0
    while line := file.readline(_MOST_LINE_BYTES + 1):
        number, size = number + 1, size + len(line)
        at = f"{where}, line {number}"
        if len(line) > _MOST_LINE_BYTES:
            raise ConfigError(f"{at}: longer than {_MOST_LINE_BYTES >> 10} KiB, which no sample is")
        if size > _MOST_BYTES:
            raise ConfigError(f"{where}: more than {_MOST_BYTES >> 20} MiB; split it, at the end of a line")
        if not line.strip(_BLANK):
            continue
        try:
            data = msgspec.json.decode(line)
        # Some releases of msgspec say by an error of Python's that a text is no UTF-8.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if line.endswith(b"\n"):
                words = "is no JSON; take it out, or record anew with edge-runtime telemetry --json"
                raise ConfigError(f"{at}: it {words}") from None
            # Whoever wrote it was stopped, or still writes.
            note = f"line {number} was cut off while it was written, and is left out"
            break
        samples.append(_sample(data, at))
        if len(samples) > 1 and samples[-1].time_s < samples[-2].time_s:
            words = "its times run backwards; recordings of two boots do not go together"
            raise ConfigError(f"{at}: {words}")
    if not samples:
        raise ConfigError(f"{where}: there is no sample in it{f'; {note}' if note else ''}")
    return Recording(tuple(samples), note)


def _sample(data: object, where: str) -> Sample:
    sample = structure(Sample, data, ConfigError, where)
    if problem := impossible(sample):
        raise ConfigError(f"{where}: {problem}")
    return sample


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
