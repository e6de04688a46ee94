"""onnxruntime-genai, on graphs that its own model builder makes of the checkpoint. Runs in the peer's environment."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import NO_TOKEN, as_directory, run_converter
from .likelihood import surprise
from .prefix import common

PACKAGES = ("onnxruntime-genai", "onnxruntime")
_BUILDER = Path(__file__).with_name("genai_builder.py")
_LIKE_Q4_K_M = ("--extra_options", "algo_config=k_quant_mixed")
"""Its way of rounding to 4 bits that is meant to lose least: more bits where llama.cpp has more."""


def prepare(order: dict[str, Any]) -> str:
    """The builder reads a Hugging Face directory, and no GGUF without a hub: transformers makes one of the file."""
    place, made = Path(order["place"]), as_directory(order)
    options = ["-p", order["mode"], "-e", "cpu", "-c", str(place / "hub")]
    options += _LIKE_Q4_K_M if order["mode"] == "int4" else ()
    run_converter("its model builder", str(_BUILDER), "-i", str(made), "-o", str(place / "built"), *options)
    config = place / "built" / "genai_config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    settings["model"]["eos_token_id"] = NO_TOKEN
    options = settings["model"]["decoder"].setdefault("session_options", {})
    options["intra_op_num_threads"] = order["threads"]
    config.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return str(place / "built")


def open_peer(order: dict[str, Any]) -> GenaiPeer:
    return GenaiPeer(order["source"], order["context"], order["mode"])


class GenaiPeer:
    def __init__(self, source: str, context: int, mode: str) -> None:
        import onnxruntime_genai

        self._api: Any = onnxruntime_genai
        self._model = onnxruntime_genai.Model(source)
        self._context = context
        self._generator: Any = None
        self._held: list[int] = []
        self.weights = f"{mode} by its builder"

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        started = time.perf_counter()
        known = common(self._held, ids) if prefix else 0
        if known:
            self._generator.rewind_to(known)
        else:
            self._begin()
        self._held = []
        self._generator.append_tokens(np.array(ids[known:], np.int32))
        tokens: list[int] = []
        while len(tokens) < count and not self._generator.is_done():
            self._generator.generate_next_token()
            tokens.append(int(self._generator.get_next_tokens()[0]))
        seconds = time.perf_counter() - started
        # The last one has not been run.
        self._held = [*ids, *tokens[:-1]]
        return {"tokens": tokens, "seconds": seconds}

    def nll(self, ids: Sequence[int]) -> float:
        """It gives logits of the last row alone, so token by token."""
        self._begin()
        self._held = []
        total = 0.0
        for token, following in pairwise(ids):
            self._generator.append_tokens(np.array([token], np.int32))
            total += surprise(self._generator.get_logits(), [following])
        return total / (len(ids) - 1)

    def _begin(self) -> None:
        self._generator = None  # the caches of one before those of the next
        params = self._api.GeneratorParams(self._model)
        params.set_search_options(max_length=self._context, do_sample=False, batch_size=1)
        self._generator = self._api.Generator(self._model, params)
