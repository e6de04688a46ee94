"""This runtime as a peer that gives whole answers, loaded as the daemon loads it. Runs in this environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...bundle import TARGET
from ...generation import Generation
from ...loading import LoadSettings, load_bundle
from ...sampling import SamplingParams
from ...session import Session
from ...text.stream import TextStream
from ..methods import DEFAULT, PLAIN, decoder_for
from .ours import engine_nll
from .prefix import common
from .protocol import Told

PACKAGES = ("edge-runtime", "onnxruntime", "numpy")


def open_peer(order: dict[str, Any]) -> OursWhole:
    return OursWhole(Path(order["source"]), order["threads"], order["context"], order["mode"])


class OursWhole:
    """Modes: plain, without a drafter; auto, as nobody has chosen anything."""

    def __init__(self, source: Path, threads: int, context: int, mode: str) -> None:
        plain = mode == "plain"
        settings = LoadSettings(
            context=context, threads=threads, drafter="none" if plain else "auto", verify_hashes=False
        )
        self._bundle = load_bundle(source, settings)
        self._decoder = decoder_for(self._bundle, PLAIN if plain else DEFAULT, time.perf_counter)
        self._held: list[int] = []
        self._texts = 0
        self.weights = self._bundle.manifest.model(TARGET).precision

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> Told:
        """As the scheduler does it: the longest start that the slot holds is not read again."""
        started = time.perf_counter()
        self._texts += 1
        session = Session(
            self._bundle.target.info,
            ids,
            SamplingParams(temperature=0.0),
            max_tokens=count,
            kv_len=common(self._held, ids) if prefix else 0,
            client=self._texts,  # nobody's earlier texts are drafted for him
        )
        self._held = []
        self._decoder.drafter.reset(0)
        generation = Generation(self._decoder, session, TextStream(self._bundle.tokenizer.piece_bytes))
        for _ in generation:
            pass
        told = Told(tokens=session.generated.tolist(), seconds=time.perf_counter() - started)
        self._held = session.tokens.tolist()[: session.kv_len]
        return told

    def nll(self, ids: Sequence[int]) -> float:
        self._held = []
        return engine_nll(self._bundle.target, ids)
