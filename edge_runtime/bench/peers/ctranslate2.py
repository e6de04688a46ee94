"""CTranslate2, on a model that its own converter makes of the checkpoint. Runs in the peer's environment."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .checkpoint import NO_TOKEN, as_directory

PACKAGES = ("ctranslate2",)


def prepare(order: dict[str, Any]) -> str:
    """Its converter reads a Hugging Face directory; transformers makes one of a GGUF."""
    import ctranslate2

    place, made = Path(order["place"]), as_directory(order)
    converter = ctranslate2.converters.TransformersConverter(str(made), low_cpu_mem_usage=True)
    converter.convert(str(place / "built"), quantization=None if order["mode"] == "float32" else "int8", force=True)
    return str(place / "built")


def open_peer(order: dict[str, Any]) -> Ctranslate2Peer:
    return Ctranslate2Peer(Path(order["source"]), order["threads"], order["mode"])


class Ctranslate2Peer:
    def __init__(self, source: Path, threads: int, mode: str) -> None:
        import ctranslate2

        kind = "float32" if mode == "float32" else "int8"
        self._model: Any = ctranslate2.Generator(str(source), device="cpu", intra_threads=threads, compute_type=kind)
        self._pieces: list[str] = json.loads((source / "vocabulary.json").read_text(encoding="utf-8"))
        self.weights = "int8 by its converter" if mode == "int8" else "float32"

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        """It caches the prefix that it is told of."""
        started = time.perf_counter()
        pieces = [self._pieces[token] for token in ids]
        options: dict[str, Any] = {"include_prompt_in_result": False, "beam_size": 1, "sampling_topk": 1}
        options |= {"max_length": count, "min_length": count, "end_token": [self._pieces[NO_TOKEN]]}
        if prefix:
            options |= {"static_prompt": pieces[:prefix], "cache_static_prompt": True}
            pieces = pieces[prefix:]
        (result,) = self._model.generate_batch([pieces], **options)
        tokens = [int(token) for token in result.sequences_ids[0]]
        return {"tokens": tokens, "seconds": time.perf_counter() - started}

    def nll(self, ids: Sequence[int]) -> float:
        (result,) = self._model.score_batch([[self._pieces[token] for token in ids]])
        return -float(sum(result.log_probs)) / (len(ids) - 1)
