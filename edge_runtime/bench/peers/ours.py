"""This runtime's engine as a peer: plain forwards, no decoder around them. Runs in this environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle import TARGET, read_manifest
from ...engines.ort import OrtEngine, OrtSettings
from ...engines.protocol import Engine, HeadOutput, HeadRequest, StepInput

PACKAGES = ("edge-runtime", "onnxruntime", "numpy")
_CHUNK = 8


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
        return engine_nll(self._engine, ids)

    def _forward(self, tokens: Sequence[int], head: HeadRequest | None) -> HeadOutput | None:
        return self._engine.forward(StepInput(0, np.array(tokens, np.int64), self._position, head)).head


def engine_nll(engine: Engine, ids: Sequence[int]) -> float:
    """Mean negative log-likelihood of ids[1:], in nats; slot 0 is written to."""
    total = 0.0
    for start in range(0, len(ids) - 1, _CHUNK):
        chunk = ids[start : min(start + _CHUNK, len(ids) - 1)]
        following = np.array(ids[start + 1 : start + 1 + len(chunk)], np.int64)
        request = HeadRequest(0, len(chunk), gather_ids=following)
        head = engine.forward(StepInput(0, np.array(chunk, np.int64), start, request)).head
        assert head is not None and head.gathered is not None
        total += float((head.logsumexp.astype(np.float64) - head.gathered).sum())
    return total / (len(ids) - 1)
