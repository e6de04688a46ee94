"""``engine.json``: what was built for one machine."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from edge_runtime.engines.engine_record import EngineRecord, read_record
from edge_runtime.errors import ConfigError

from ..examples import example, words
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = ConfigError
NAME = "engine.json"
_KNOWN = words(EngineRecord)


def seeds() -> list[bytes]:
    tree = example(EngineRecord)
    plan = tree["plans"].pop("a") | {"graph": "body.onnx", "file": "body.plan"}
    return [json.dumps(tree | {"plans": {"body.onnx": plan}}).encode()]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    judge.attempt(read_record, path.parent)
