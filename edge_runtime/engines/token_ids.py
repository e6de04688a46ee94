"""Rows of a reduced head and the token ids that they stand for. Knows no engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..bundle import Model
from ..errors import BundleError, why
from .protocol import Ids


def read_token_ids(directory: Path, model: Model) -> Ids | None:
    """[vocab_size] head row -> token id; ``None`` where they are equal. Raises ``BundleError``."""
    if model.token_ids is None:
        return None
    path = directory / model.token_ids
    try:
        size = path.stat().st_size
        ids = np.fromfile(path, "<i8", model.vocab_size) if size == 8 * model.vocab_size else None
    except OSError as problem:
        raise BundleError(f"{path} cannot be read: {why(problem)}") from None
    if ids is None or ids.min() < 0 or np.any(np.diff(ids) <= 0):
        raise BundleError(f"{model.token_ids}: not {model.vocab_size} rising token ids")
    return ids


def head_rows(token_ids: Ids | None, wanted: Ids, vocab_size: int) -> Ids:
    """Token ids as rows of the head, of which there are ``vocab_size``. ``ValueError`` for one that it lacks."""
    if token_ids is None:
        if len(wanted) and not (int(wanted.min()) >= 0 and int(wanted.max()) < vocab_size):
            raise ValueError(f"a gathered id is not in the head's {vocab_size} rows")
        return wanted
    rows = np.searchsorted(token_ids, wanted)
    if not np.array_equal(token_ids[np.minimum(rows, len(token_ids) - 1)], wanted):
        raise ValueError("a gathered id is not in the reduced head")
    return rows.astype(np.int64)
