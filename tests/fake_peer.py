"""A peer that knows no model: what it does is its mode. Needs the standard library alone, and sees nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = ("no-such-package",)


def prepare(order: dict[str, Any]) -> str:
    if order["mode"] == "unmade":
        raise ValueError("cannot be made\nfor a reason that fills another line")
    made = Path(order["place"]) / "built" / "weights"
    made.parent.mkdir()
    made.write_text(Path(order["source"]).read_text() + order["mode"])
    return str(made)


def open_peer(order: dict[str, Any]) -> FakePeer:
    mode = order["mode"]
    if mode == "refuses":
        raise RuntimeError("\n\nno such architecture: gemma3\nand a long story behind it")
    if mode == "dies":
        sys.stderr.write("Segmentation fault\n")
        sys.stderr.flush()
        os._exit(139)
    if mode == "hangs":
        time.sleep(60.0)
    if mode == "mumbles":
        os.write(int(sys.argv[2]), b"Loading weights... done\n")
    return FakePeer(order)


class FakePeer:
    def __init__(self, order: dict[str, Any]) -> None:
        self._mode = order["mode"]
        self.weights = f"{Path(order['source']).name}, numpy {importlib.util.find_spec('numpy') is not None}"
        if self._mode == "leaves a child":
            self.weights = str(subprocess.Popen(["sleep", "60"]).pid)

    def generate(self, ids: list[int], count: int, prefix: int) -> Any:
        told: dict[str, Any] = {"tokens": [*range(count)], "seconds": 0.25 if prefix else 0.5}
        odd: dict[str, Any] = {
            "words": {"tokens": "Once upon a time", "seconds": 0.5},
            "list": [1, 2, 3],
            "short": told | {"tokens": [1]},
            "no time": told | {"seconds": 0},
            "negative": told | {"tokens": [-1] * count},
        }
        if self._mode == "fails later" and prefix:
            raise MemoryError
        return odd.get(self._mode, told)

    def nll(self, ids: list[int]) -> float:
        return float("nan") if self._mode == "not a number" else 3.0
