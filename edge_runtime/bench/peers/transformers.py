"""transformers with its dynamic cache: what a user gets who follows the model card on a CPU. Runs in the peer's
environment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .checkpoint import load, save
from .prefix import common

PACKAGES = ("transformers", "torch")
_CHUNK = 8
_LOOKED_UP = 10
"""Tokens of a draft by prompt lookup, as in its documentation."""
_EARLY_LAYERS = 8
"""Of the model itself, where no assistant is given."""


def prepare(order: dict[str, Any]) -> str:
    """A GGUF becomes a directory: opened as it is, its float32 copies would be the peak of memory."""
    source, place = Path(order["source"]), order["place"]
    if source.is_dir():
        return str(source)
    save(load(source, order["mode"]), Path(place))
    return str(place)


def open_peer(order: dict[str, Any]) -> TransformersPeer:
    assistant = None if order["assistant"] is None else Path(order["assistant"])
    return TransformersPeer(Path(order["source"]), order["threads"], order["context"], order["mode"], assistant)


class TransformersPeer:
    """Modes: plain and float32; lookup and assistant, in bfloat16 as plain."""

    def __init__(
        self, source: Path, threads: int, context: int, mode: str = "plain", assistant: Path | None = None
    ) -> None:
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(threads)
        self.weights = "float32" if mode == "float32" else "bfloat16"
        self._model: Any = load(source, self.weights)
        # No token ends a text.
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0
        self._drafting: dict[str, Any] = {}
        if mode == "lookup":
            self._drafting["prompt_lookup_num_tokens"] = _LOOKED_UP
        elif mode == "assistant" and assistant is not None:
            self._drafting["assistant_model"] = load(assistant, "bfloat16")
            self.weights += f", {assistant.name} drafts"
        elif mode == "assistant":
            self._drafting["assistant_early_exit"] = _EARLY_LAYERS
            self.weights += f", {_EARLY_LAYERS} layers draft"
        self._cache: Any = None
        self._held: list[int] = []
        self._last = 0

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        started = time.perf_counter()
        known = common(self._held, ids) if prefix else 0
        if known:
            surplus = self._cache.get_seq_length() - known
            self._cache.crop(-surplus)
        else:
            self._cache = self._transformers.DynamicCache()
        self._held = []
        prompt = self._torch.tensor([list(ids)])
        with self._torch.inference_mode():
            text = self._model.generate(
                prompt,
                attention_mask=self._torch.ones_like(prompt),
                past_key_values=self._cache,
                max_new_tokens=count,
                do_sample=False,
                **self._drafting,
            )
        tokens = [int(token) for token in text[0, len(ids) :]]
        seconds = time.perf_counter() - started
        self._held = [*ids, *tokens][: self._cache.get_seq_length()]
        return {"tokens": tokens, "seconds": seconds}

    def prefill(self, ids: Sequence[int]) -> float:
        started = time.perf_counter()
        self._cache = self._transformers.DynamicCache()
        self._last = int(self._forward(ids)[-1].argmax())
        return time.perf_counter() - started

    def decode(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._last = int(self._forward([self._last])[-1].argmax())
            seconds.append(time.perf_counter() - started)
        return seconds

    def verify(self, rows: int) -> float:
        started = time.perf_counter()
        self._forward([self._last] * rows).argmax(dim=-1).tolist()
        seconds = time.perf_counter() - started
        self._cache.crop(-rows)
        return seconds

    def nll(self, ids: Sequence[int]) -> float:
        self._cache, self._held = self._transformers.DynamicCache(), []
        total = 0.0
        for start in range(0, len(ids) - 1, _CHUNK):
            chunk = ids[start : min(start + _CHUNK, len(ids) - 1)]
            following = self._torch.tensor(ids[start + 1 : start + 1 + len(chunk)])
            logits = self._forward(chunk).float()
            total += float(self._torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
        return total / (len(ids) - 1)

    def _forward(self, tokens: Sequence[int]) -> Any:
        with self._torch.inference_mode():
            ids = self._torch.tensor([list(tokens)])
            return self._model(ids, past_key_values=self._cache, use_cache=True).logits[0]
