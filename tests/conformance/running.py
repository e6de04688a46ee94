"""What the tests do with an engine: feed it, read rows out, write texts. Knows no test and no kind of engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_runtime.engines.protocol import Engine, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput

Measured = Callable[[str, float, float], None]
"""``measured(what, found, allowed)``"""
HEAD_ROWS = 8
"""Rows of logits that every engine is opened with."""
_PIECES = 64
"""Ids that texts are made of: of those that every vocabulary has."""


def text(count: int, seed: int = 0) -> Ids:
    """Random ids. No two neighbours are alike, so that a row that was taken for its neighbour shows."""
    steps = np.random.default_rng(seed).integers(1, _PIECES - 1, count)
    return np.cumsum(steps).astype(np.int64) % _PIECES


def feed(engine: Engine, tokens: Ids, position: int, slot: int = 0, head: HeadRequest | None = None) -> StepOutput:
    return engine.forward(StepInput(slot, np.asarray(tokens, np.int64), position, head))


def rows_after(engine: Engine, tokens: Ids, position: int = 0, slot: int = 0, size: int | Sequence[int] = 0) -> Floats:
    """[len(tokens), vocab_size] logits, fed ``size`` at a time (the last repeated; 0: as many as one forward takes)."""
    sizes = [size] if isinstance(size, int) else list(size)
    found: list[Floats] = []
    start = 0
    while start < len(tokens):
        take = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        chunk = tokens[start : start + (take or engine.info.max_rows)]
        feed(engine, chunk, position + start, slot)
        found += read_rows(engine, len(chunk))
        start += len(chunk)
    return np.stack(found)


def read_rows(engine: Engine, count: int) -> list[Floats]:
    """All rows of the last forward."""
    found = []
    for first in range(0, count, HEAD_ROWS):
        stop = min(count, first + HEAD_ROWS)
        engine.head(HeadRequest(first, stop))
        found += [engine.logits(row).copy() for row in range(stop - first)]
    return found


def apart(found: Floats, wanted: Floats) -> float:
    """The largest difference, in deviations of the rows that were wanted. Not finite is infinitely far."""
    if not (np.isfinite(found).all() and found.shape == wanted.shape):
        return float("inf")
    return float(np.abs(found - wanted).max() / wanted.std())


def head_rows_of(engine: Engine, ids: Ids) -> Ids:
    """Rows of the head that stand for token ids."""
    known = engine.info.token_ids
    return ids if known is None else np.searchsorted(known, ids)


def token_of_rows(engine: Engine, rows: Ids) -> Ids:
    known = engine.info.token_ids
    return rows if known is None else known[rows]


def kept(output: HeadOutput) -> HeadOutput:
    """A copy: what an engine hands out is a view on its buffers."""
    gathered = None if output.gathered is None else output.gathered.copy()
    arrays = (output.argmax, output.candidate_ids, output.candidate_logits, output.logsumexp)
    argmax, ids, logits, logsumexp = (one.copy() for one in arrays)
    return HeadOutput(argmax, ids, logits, logsumexp, gathered)
