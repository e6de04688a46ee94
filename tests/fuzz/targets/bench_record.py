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
from export.training.features import open_part, read_part

from ..examples import example, words
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = ConfigError
NAME = "part.json"
_KNOWN = [*words(compare.Report), *words(growth.Report), *words(protocol.Report), "rows", "length", "width", "done"]
_READ = (compare.read_report, growth.read_report, protocol.read_report, read_recording)


def prepare(place: Path) -> None:
    np.save(place / "tokens.npy", np.zeros((2, 4), np.int32))
    np.save(place / "hidden.npy", np.zeros((2, 4, 8), np.float16))


def seeds() -> list[bytes]:
    trees = [example(view.Report) for view in (compare, growth, protocol)]
    sample = {"format": "edge-runtime telemetry 1", "at_s": 1.0, "source": "sysfs", "power_mw": 5000}
    part = {"target": "t", "rows": 2, "length": 4, "width": 8, "done": 1}
    return [json.dumps(tree).encode() for tree in (*trees, sample, part)]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    for reader in _READ:
        judge.attempt(reader, path)
    judge.attempt(read_part, path.parent)
    judge.attempt(_resumed, path.parent)


def _resumed(place: Path) -> None:
    part = open_part(place, 2, 4, 8, {"target": "t"}, held=False)
    assert 0 <= part.done <= part.size
