"""Logits to likelihoods, for programs that give whole rows of them. Knows no peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def surprise(logits: Any, following: Sequence[int]) -> float:
    """Sum over the rows of logits [n, vocab] of the negative log-likelihood of what follows each, in nats."""
    rows = np.asarray(logits, np.float64).reshape(len(following), -1)
    peak = rows.max(axis=1)
    lse = peak + np.log(np.exp(rows - peak[:, None]).sum(axis=1))
    return float((lse - rows[np.arange(len(rows)), list(following)]).sum())
