"""How many examples a property is tried on. Knows no property."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("EDGE_RUNTIME_EXAMPLES", "1"))
"""So many times as many as a change must pass."""


def examples(count: int, steps: int = 50) -> settings:
    """``steps``: rules of a state machine that are tried in a row, at most.

    In the long form they are new ones each time, whatever CI does: what is found belongs into a test of its own.
    """
    if TIMES == 1:
        return settings(max_examples=count, stateful_step_count=steps)
    return settings(max_examples=count * TIMES, stateful_step_count=steps, derandomize=False, database=None)
