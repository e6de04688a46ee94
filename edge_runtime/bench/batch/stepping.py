"""The two ways to run one step of several sessions, on the clock. Knows no figure and no draft's fate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...bundle import TARGET, Manifest
from ...engines.opening import open_engine
from ...engines.ort import OrtEngine
from ...engines.ort_settings import OrtSettings
from ...engines.protocol import Engine, Floats, HeadRequest, Ids, LanesEngine, StepInput
from ...errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sizes:
    slots: int
    context: int
    """Tokens that each slot holds before anything is measured."""
    capacity: int
    drafts: int
    """Most of K."""
    threads: int


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    argmax: Ids
    """[rows] of all sessions, in order."""
    logits: Floats
    """[rows, C] of the candidates."""


class Pair:
    """The same slots on an engine with the plain body and on one with lanes. Close it."""

    def __init__(self, directory: Path, manifest: Manifest, sizes: Sizes) -> None:
        """Raises ``ConfigError`` for a bundle without lanes."""
        rows = sizes.slots * (sizes.drafts + 1)
        settings = OrtSettings(
            capacity=sizes.capacity, slots=sizes.slots, max_rows=max(64, rows), max_head_rows=rows,
            threads=sizes.threads,
        )  # fmt: skip
        self.plain: Engine = open_engine(directory, manifest, TARGET, "onnxruntime", settings)
        try:
            self.lanes = open_lanes(directory, manifest, replace(settings, lanes=True))
        except ConfigError:
            self.plain.close()
            raise
        self.text = _text(sizes.capacity, manifest.model(TARGET).vocab_size)
        for slot in range(sizes.slots):
            for start in range(0, sizes.context, settings.max_rows):
                tokens = self.text[slot, start : min(start + settings.max_rows, sizes.context)]
                for engine in (self.plain, self.lanes):
                    engine.forward(StepInput(slot, tokens, start, None))

    def steps(self, slots: Sequence[int], positions: Sequence[int], rows: Sequence[int]) -> list[StepInput]:
        """Each reads out all its rows, as greedy verification does."""
        return [
            StepInput(slot, self.text[slot, at : at + count], at, HeadRequest(0, count))
            for slot, at, count in zip(slots, positions, rows, strict=True)
        ]

    def turns(self, steps: Sequence[StepInput]) -> Ran:
        argmax, logits = [], []
        started = time.perf_counter()
        for step in steps:
            head = self.plain.forward(step).head
            assert head is not None  # each asks for one
            # The next turn writes over it, as it would in a scheduler.
            argmax.append(head.argmax.copy())
            logits.append(head.candidate_logits.copy())
        seconds = time.perf_counter() - started
        return Ran(seconds, np.concatenate(argmax), np.concatenate(logits))

    def batch(self, steps: Sequence[StepInput]) -> Ran:
        """As many at a time as there are lanes."""
        argmax, logits, lanes = [], [], self.lanes.info.lanes
        started = time.perf_counter()
        for first in range(0, len(steps), lanes):
            for one in self.lanes.forward_lanes(steps[first : first + lanes]).steps:
                assert one.head is not None
                argmax.append(one.head.argmax.copy())
                logits.append(one.head.candidate_logits.copy())
        seconds = time.perf_counter() - started
        return Ran(seconds, np.concatenate(argmax), np.concatenate(logits))

    def close(self) -> None:
        self.plain.close()
        self.lanes.close()


def open_lanes(directory: Path, manifest: Manifest, settings: OrtSettings) -> LanesEngine:
    """Raises ``ConfigError`` for a bundle without lanes."""
    engine = open_engine(directory, manifest, TARGET, "onnxruntime", settings)
    assert isinstance(engine, OrtEngine)  # as asked for
    return engine


def _text(count: int, vocab_size: int) -> Ids:
    """[16, ``count``] made up; what stands in a text does not change what a step costs."""
    return np.random.default_rng(9).integers(3, vocab_size, (16, count)).astype(np.int64)
