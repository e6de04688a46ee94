"""Pruned drafts: which rows of the head a draft keeps. Knows no weights; training a drafter is elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.files import read_text_at_most

from .tokenizer import TokenizerModel

_MULTIPLE = 64
"""Head rows come in groups of 64: the readout searches them group by group."""
_RANK_OFFSET = 2000.0
_MOST_BYTES = 1 << 28

Ids = NDArray[np.int64]


def frequent_rows(
    count: int, vocab_size: int, tokenizer: TokenizerModel, corpus: Path | None, key: str = "draft.frequency_corpus"
) -> Ids:
    """[count, rounded up] the most frequent token ids, rising; the end-of-text ids are always among them.

    Ids of Gemma's vocabulary are roughly by frequency, so 0.5 / (id + 2000) ranks what a corpus leaves open; control
    and unused pieces are never drafted and come last. ``key``: of the recipe, for what is refused.
    """
    ids: Ids = np.zeros(0, np.int64)
    if corpus is not None:
        text = read_text_at_most(corpus, _MOST_BYTES, f"{key}: ")
        ids = np.array(tokenizer.encode(text), np.int64)
    return rows_by_tokens(count, vocab_size, tokenizer, ids)


def rows_by_tokens(count: int, vocab_size: int, tokenizer: TokenizerModel, ids: Ids) -> Ids:
    """The same by the tokens themselves."""
    count = min(-(-count // _MULTIPLE) * _MULTIPLE, vocab_size)
    score = 0.5 / (np.arange(vocab_size) + _RANK_OFFSET)
    score += np.bincount(ids[ids < vocab_size], minlength=vocab_size)[:vocab_size] / max(1, len(ids))
    score[[i for i in tokenizer.control_ids if i < vocab_size]] = -1.0
    score[list(tokenizer.eos_ids)] = np.inf
    best = np.argsort(-score, kind="stable")[:count]
    return np.sort(best).astype(np.int64)
