"""llama.cpp through llama-cpp-python, on its C API so that Python costs it nothing it would not cost in C++; its prompt
lookup is that of llama-cpp-python. Runs in the peer's environment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .likelihood import surprise
from .prefix import common

PACKAGES = ("llama-cpp-python", "numpy")
_CHUNK = 8
_ROWS = 64
"""Of a forward. Wider ones read no prompt faster on a processor, and lookup would keep logits of every row."""
_DRAFTED = 2
"""What its documentation advises on a processor; 10 is for a GPU."""


def open_peer(order: dict[str, Any]) -> LlamaCppPeer:
    kind = LlamaCppLookup if order["mode"] == "lookup" else LlamaCppPeer
    return kind(Path(order["source"]), order["threads"], order["context"])


class LlamaCppPeer:
    weights = "as in the file"

    def __init__(self, source: Path, threads: int, context: int, **more: Any) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._model: Any = llama_cpp.Llama(
            str(source),
            n_ctx=context,
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=_ROWS,
            n_ubatch=_ROWS,
            verbose=False,
            **more,
        )
        self._context = self._model._ctx.ctx
        self._vocab = self._model.n_vocab()
        self._batch = llama_cpp.llama_batch_init(_ROWS, 0, 1)
        self._position = 0
        self._last = 0
        self._held: list[int] = []

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        started = time.perf_counter()
        known = common(self._held, ids) if prefix else 0
        # It says so where its cache cannot be cut there.
        known = known if self._rollback(known) else 0
        self._held = []
        self._read(ids, known)
        tokens = [self._last]
        while len(tokens) < count:
            self._last = int(self._forward([self._last], every_row=False)[0].argmax())
            self._position += 1
            tokens.append(self._last)
        seconds = time.perf_counter() - started
        self._held = [*ids, *tokens[:-1]]
        return {"tokens": tokens, "seconds": seconds}

    def prefill(self, ids: Sequence[int]) -> float:
        started = time.perf_counter()
        self._held = []
        self._rollback(0)
        self._read(ids, 0)
        return time.perf_counter() - started

    def _read(self, ids: Sequence[int], start: int) -> None:
        for first in range(start, len(ids), _ROWS):
            logits = self._forward(ids[first : first + _ROWS], every_row=False)
            self._position += len(ids[first : first + _ROWS])
        self._last = int(logits[0].argmax())

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
        self._held = []
        self._rollback(0)
        total = 0.0
        for start in range(0, len(ids) - 1, _CHUNK):
            chunk = ids[start : min(start + _CHUNK, len(ids) - 1)]
            logits = self._forward(chunk, every_row=True)
            total += surprise(logits, ids[start + 1 : start + 1 + len(chunk)])
            self._position += len(chunk)
        return total / (len(ids) - 1)

    def _rollback(self, position: int) -> bool:
        """Whether it could; to 0 it always can."""
        memory = self._api.llama_get_memory(self._context)
        done = bool(self._api.llama_memory_seq_rm(memory, 0, position, -1))
        if not done:
            self._api.llama_memory_seq_rm(memory, 0, 0, -1)
        self._position = position if done else 0
        return done

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


class LlamaCppLookup(LlamaCppPeer):
    """Its own loop, with its own draft model."""

    def __init__(self, source: Path, threads: int, context: int) -> None:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        drafter = LlamaPromptLookupDecoding(num_pred_tokens=_DRAFTED)
        super().__init__(source, threads, context, draft_model=drafter, logits_all=True)

    def generate(self, ids: Sequence[int], count: int, prefix: int) -> dict[str, Any]:
        started = time.perf_counter()
        if not prefix:
            self._model.reset()
            self._model._ctx.kv_cache_clear()
        # What it holds of the prompt's start it does not read again.
        stream = self._model.generate(list(ids), temp=0.0, repeat_penalty=1.0)
        tokens = [int(next(stream)) for _ in range(count)]
        seconds = time.perf_counter() - started
        stream.close()
        return {"tokens": tokens, "seconds": seconds}
