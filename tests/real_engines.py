"""Engines over bundles of the real Gemma, and plain decoding written out. Knows no test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_runtime.bundle import TARGET, read_manifest, write_manifest
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.text.tokenizer import Tokenizer


@contextmanager
def open_engine(bundle: Path, role: str = "target", **settings: Any) -> Iterator[OrtEngine]:
    """On one thread unless told otherwise: there is a worker for each core, and threads that wait for one that is not
    running burn what it waits for."""
    given = OrtSettings(**{"capacity": 512, "threads": 1, **settings})
    engine = OrtEngine(bundle, read_manifest(bundle), role, given)
    try:
        yield engine
    finally:
        engine.close()


def prompt_ids(bundle: Path, text: str) -> list[int]:
    return Tokenizer(bundle / read_manifest(bundle).tokenizer.file).encode(text)


def without_draft(bundle: Path, place: Path) -> Path:
    """The same files, linked, but those of its draft model; and a manifest that knows of none."""
    manifest = read_manifest(bundle)
    target = manifest.model(TARGET)
    files = tuple(entry for entry in manifest.files if not entry.name.startswith("draft."))
    place.mkdir()
    for entry in files:
        os.link(bundle / entry.name, place / entry.name)
    memory = replace(manifest.memory, kv_per_token=target.kv_bytes_per_token)
    write_manifest(place, replace(manifest, models={TARGET: target}, files=files, memory=memory))
    return place


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
