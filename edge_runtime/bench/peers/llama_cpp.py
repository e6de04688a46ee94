"""llama.cpp through llama-cpp-python, on its C API so that Python costs it nothing it would not cost in C++."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 8


class LlamaCppPeer:
    def __init__(self, source: Path, threads: int, context: int) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._model: Any = llama_cpp.Llama(
            str(source),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=64,
            n_ubatch=64,
            verbose=False,
        )
        self._context = self._model._ctx.ctx
        self._vocab = self._model.n_vocab()
        self._batch = llama_cpp.llama_batch_init(64, 0, 1)
        self._position = 0
        self._last = 0

    def prefill(self, ids: Sequence[int]) -> float:
        started = time.perf_counter()
        self._rollback(0)
        for start in range(0, len(ids), 64):
            logits = self._forward(ids[start : start + 64], every_row=False)
            self._position += len(ids[start : start + 64])
        self._last = int(logits[0].argmax())
        return time.perf_counter() - started

    def decode(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._last = int(self._forward([self._last], every_row=False)[0].argmax())
            seconds.append(time.perf_counter() - started)
            self._position += 1
        return seconds

    def verify(self, rows: int) -> float:
        started = time.perf_counter()
        self._forward([self._last] * rows, every_row=True).argmax(axis=1).tolist()
        seconds = time.perf_counter() - started
        self._rollback(self._position)
        return seconds

    def nll(self, ids: Sequence[int]) -> float:
        self._rollback(0)
        total = 0.0
        for start in range(0, len(ids) - 1, _CHUNK):
            chunk = ids[start : min(start + _CHUNK, len(ids) - 1)]
            logits = self._forward(chunk, every_row=True).astype(np.float64)
            peak = logits.max(axis=1)
            lse = peak + np.log(np.exp(logits - peak[:, None]).sum(axis=1))
            following = np.array(ids[start + 1 : start + 1 + len(chunk)])
            total += float((lse - logits[np.arange(len(chunk)), following]).sum())
            self._position += len(chunk)
        return total / (len(ids) - 1)

    def _rollback(self, position: int) -> None:
        memory = self._api.llama_get_memory(self._context)
        self._api.llama_memory_seq_rm(memory, 0, position, -1)
        self._position = position

    def _forward(self, tokens: Sequence[int], *, every_row: bool) -> NDArray[np.float32]:
        """[rows or 1, vocab] a view on llama.cpp's own buffer."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1 if every_row or i == len(tokens) - 1 else 0
        if self._api.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        rows = len(tokens) if every_row else 1
        pointer = self._api.llama_get_logits(self._context)
        return np.ctypeslib.as_array(pointer, shape=(rows, self._vocab))
