"""transformers in bfloat16 with its dynamic cache: what a user gets who follows the model card on a CPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CHUNK = 8


class TransformersPeer:
    def __init__(self, source: Path, threads: int, context: int) -> None:
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        torch.set_num_threads(threads)
        options: dict[str, Any] = {"dtype": torch.bfloat16, "local_files_only": True}
        if source.suffix == ".gguf":
            options["gguf_file"] = source.name
            source = source.parent
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, **options).eval()
        self._cache: Any = None
        self._last = 0

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
        self._cache = self._transformers.DynamicCache()
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
