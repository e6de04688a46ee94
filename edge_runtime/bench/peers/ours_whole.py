"""This runtime as a peer that gives whole answers, loaded as the daemon loads it. Runs in this environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...bundle import TARGET
from ...loading import LoadSettings, load_bundle
from ...sampling import SamplingParams
from ..methods import DEFAULT, PLAIN
from ..reading import read
from ..texts import Desk, Held, Law, Task
from .prefix import common
from .protocol import Told

PACKAGES = ("edge-runtime", "onnxruntime", "numpy")
_GREEDY = Law("greedy", SamplingParams(temperature=0.0))


def open_peer(order: dict[str, Any]) -> OursWhole:
    return OursWhole(Path(order["source"]), order["threads"], order["context"], order["mode"])


class OursWhole:
    """Modes: plain, without a drafter; auto, as nobody has chosen anything."""

    def __init__(self, source: Path, threads: int, context: int, mode: str) -> None:
        self._method = PLAIN if mode == "plain" else DEFAULT
        settings = LoadSettings(
            context=context, threads=threads, drafter="none" if mode == "plain" else "auto", verify_hashes=False
        )
        self._desk = Desk(load_bundle(source, settings), Held())
        self._desk.decoder(self._method)
        self._held: list[int] = []
        self.weights = self._desk.bundle.manifest.model(TARGET).precision

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> Told:
        """As the scheduler does it: the longest start that the slot holds is not read again."""
        started = time.perf_counter()
        known = common(self._held, ids) if prefix else 0
        self._held = []
        spoken = self._desk.ask(self._method, Task("", "", tuple(ids)), _GREEDY, 0, count, known=known)
        tokens = list(spoken.result.tokens)
        seconds = time.perf_counter() - started
        # The last one has not been run.
        self._held = [*ids, *tokens[:-1]]
        return Told(tokens=tokens, seconds=seconds)

    def nll(self, ids: Sequence[int]) -> float:
        self._held = []
        bundle = self._desk.bundle
        return read(bundle.target, ids[:1], ids[1:], bundle.max_head_rows).nll
