"""Engines over bundles of the real Gemma, and plain decoding written out. Knows no test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.bundle import read_manifest
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.text.tokenizer import Tokenizer


@contextmanager
def open_engine(bundle: Path, role: str = "target", **settings: Any) -> Iterator[OrtEngine]:
    engine = OrtEngine(bundle, read_manifest(bundle), role, OrtSettings(**{"capacity": 512, **settings}))
    try:
        yield engine
    finally:
        engine.close()


def prompt_ids(bundle: Path, text: str) -> list[int]:
    return Tokenizer(bundle / read_manifest(bundle).tokenizer.file).encode(text)


def greedy_gaps(engine: Engine, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Plain greedy tokens, each with how far its logit lies above the second best."""
    tokens: list[int] = []
    gaps: list[float] = []
    fed, position = np.array(prompt, np.int64), 0
    while len(tokens) < count:
        for start in range(0, len(fed), engine.info.max_rows):
            chunk = fed[start : start + engine.info.max_rows]
            head = engine.forward(StepInput(0, chunk, position, HeadRequest(len(chunk) - 1, len(chunk)))).head
            position += len(chunk)
        assert head is not None
        tokens.append(int(head.argmax[0]))
        gaps.append(float(head.candidate_logits[0, 0] - head.candidate_logits[0, 1]))
        fed = np.array(tokens[-1:], np.int64)
    return tokens, gaps
