"""Whether a text has begun to repeat itself for ever. Pure; knows no text but ids."""

from __future__ import annotations

import numpy as np

from .sampling import Ids

ROUNDS = 3
"""How often something must be said before it counts as said again and again."""

LEAST_SPAN = 2 * ROUNDS
"""Shortest end of a text that is looked at."""


def period(tokens: Ids, span: int) -> int | None:
    """The smallest period of the last ``span`` of ``tokens`` [n], at least ``ROUNDS`` times in them; ``None``: none."""
    if len(tokens) < span:
        return None
    end = tokens[len(tokens) - span :]
    # Places where the last token stood before, nearest first: a period leads from one to the other.
    for place in np.flatnonzero(end[-1 - span // ROUNDS : -1][::-1] == end[-1]).tolist():
        length = place + 1
        if np.array_equal(end[length:], end[:-length]):
            return int(length)
    return None
