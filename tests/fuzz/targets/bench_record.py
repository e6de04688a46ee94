"""Files that a measurement left and is resumed from: three views of the bench, recordings of telemetry, features."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np

from edge_runtime.bench.compare import record as compare
from edge_runtime.bench.growth import record as growth
from edge_runtime.bench.protocol import record as protocol
from edge_runtime.errors import ConfigError
from edge_runtime.telemetry.recording import read_recording
from edge_runtime.telemetry.sample import Sample
from export.training.features import open_part, read_part

from ..examples import example, words
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = ConfigError
NAME = "part.json"
_KNOWN = [
    *words(compare.Report),
    *words(growth.Report),
    *words(protocol.Report),
    *words(Sample),
    "rows",
    "length",
    "width",
    "done",
]
_READ = (compare.read_report, growth.read_report, protocol.read_report, read_recording)


def prepare(place: Path) -> None:
    np.save(place / "tokens.npy", np.zeros((2, 4), np.int32))
    np.save(place / "hidden.npy", np.zeros((2, 4, 8), np.float16))


def seeds() -> list[bytes]:
    trees = [example(view.Report) for view in (compare, growth, protocol)]
    sample = example(Sample) | {"memory": None, "zones": [], "fan": 0.5}
    lines = [json.dumps(sample | {"time_s": float(second)}) for second in range(3)]
    part = {"target": "t", "rows": 2, "length": 4, "width": 8, "done": 1}
    return ["\n".join(lines).encode(), *(json.dumps(tree).encode() for tree in (*trees, sample, part))]


def mutate(data: bytes, rng: Random) -> bytes:
    """Of a recording, one of its lines."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = edit_json(lines[at], rng, _KNOWN)
    return b"\n".join(lines)


def read(judge: Judge, path: Path) -> None:
    judge.either([*((reader, path) for reader in _READ), (read_part, path.parent), (_resumed, path.parent)])


def _resumed(place: Path) -> None:
    part = open_part(place, 2, 4, 8, {"target": "t"}, held=False)
    assert 0 <= part.done <= part.size
