"""Does a second body pack the weights a second time? Asked of processes of their own. Knows no clock.

python -m edge_runtime.bench.batch.memory BUNDLE plain|lanes|both THREADS      # that process: one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...bundle import TARGET, read_manifest
from ...engines.opening import open_engine
from ...engines.ort_settings import OrtSettings
from ...engines.protocol import HeadRequest, StepInput
from ...errors import InputError
from ...resident import resident
from .record import Memory

LOADED = ("plain", "lanes", "both")
_ROWS = 8


def measure_memory(bundle: Path, threads: int) -> tuple[Memory, ...]:
    """Raises ``InputError`` with what went wrong there."""
    return tuple(_measure(bundle, loaded, threads) for loaded in LOADED)


def _measure(bundle: Path, loaded: str, threads: int) -> Memory:
    command = [sys.executable, "-m", __name__, str(bundle), loaded, str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(f"memory of {bundle}: {said[-1] if said else 'ended without a word'}")
    return Memory(loaded, *json.loads(done.stdout))


def _main(bundle: Path, loaded: str, threads: int) -> None:
    manifest = read_manifest(bundle)
    settings = OrtSettings(capacity=256, max_head_rows=_ROWS, threads=threads)
    engines = [
        open_engine(bundle, manifest, TARGET, "onnxruntime", replace(settings, lanes=lanes))
        for lanes, name in ((False, "plain"), (True, "lanes"))
        if loaded in (name, "both")
    ]
    for engine in engines:
        engine.forward(StepInput(0, np.arange(3, 3 + _ROWS, dtype=np.int64), 0, HeadRequest(0, _ROWS)))
    found = resident()
    sys.stdout.write(json.dumps([found.now, found.anonymous]))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
