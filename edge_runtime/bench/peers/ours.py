"""This runtime's engine as a peer: plain forwards, no decoder around them. Runs in this environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle import TARGET, read_manifest
from ...engines.ort import OrtEngine, OrtSettings
from ...engines.protocol import HeadOutput, HeadRequest, StepInput
from ..reading import read

PACKAGES = ("edge-runtime", "onnxruntime", "numpy")


def open_peer(order: dict[str, Any]) -> OursPeer:
    return OursPeer(Path(order["source"]), order["threads"], order["context"])


class OursPeer:
    def __init__(self, source: Path, threads: int, context: int) -> None:
        settings, manifest = OrtSettings(capacity=context, threads=threads), read_manifest(source)
        self.weights = manifest.model(TARGET).precision
        self._engine = OrtEngine(source, manifest, TARGET, settings)
        self._position = 0
        self._last = 0

    def prefill(self, ids: Sequence[int]) -> float:
        started = time.perf_counter()
        step = self._engine.info.max_rows
        self._position = 0
        for start in range(0, len(ids), step):
            chunk = ids[start : start + step]
            rows = len(chunk)
            last = start + rows == len(ids)
            head = self._forward(chunk, HeadRequest(rows - 1, rows) if last else None)
            self._position += rows
        assert head is not None
        self._last = int(head.argmax[0])
        return time.perf_counter() - started

    def decode(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            head = self._forward([self._last], HeadRequest(0, 1))
            assert head is not None
            self._last = int(head.argmax[0])
            seconds.append(time.perf_counter() - started)
            self._position += 1
        return seconds

    def verify(self, rows: int) -> float:
        started = time.perf_counter()
        head = self._forward([self._last] * rows, HeadRequest(0, rows))
        assert head is not None
        head.argmax.tolist()
        return time.perf_counter() - started

    def nll(self, ids: Sequence[int]) -> float:
        return read(self._engine, ids[:1], ids[1:], self._engine.info.max_rows).nll

    def _forward(self, tokens: Sequence[int], head: HeadRequest | None) -> HeadOutput | None:
        return self._engine.forward(StepInput(0, np.array(tokens, np.int64), self._position, head)).head
