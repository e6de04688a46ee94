"""The warm-up pass: what forwards and heads of each size cost on this machine now. Knows engines, no text."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from .drafters.length import MeasuredCosts
from .engines.protocol import Engine, HeadRequest, StepInput

_REPEATS = 3


def measure_costs(
    target: Engine, draft: Engine | None, k_max: int, clock: Callable[[], float] = time.perf_counter
) -> MeasuredCosts:
    """Run both engines at the sizes a step may have. Slot 0 is written to: call it before the first session."""
    rows = [count for count in (1, 2, 3, 4, 6, 8, 12, 16) if count <= k_max] + [k_max + 1]
    body_s, head_s = _measure(target, rows, clock)
    if draft is None:
        return MeasuredCosts(body_s, head_s, 0.0, 0.0)
    chunk = min(draft.info.max_rows, draft.info.capacity, 16)
    draft_body, draft_head = _measure(draft, [1], clock, [chunk])
    return MeasuredCosts(body_s, head_s, draft_body[1] + draft_head[1], draft_body[chunk] / chunk)


def _measure(
    engine: Engine, rows: Sequence[int], clock: Callable[[], float], body_only: Sequence[int] = ()
) -> tuple[dict[int, float], dict[int, float]]:
    """Medians in seconds by rows, of body and head; the first run of a size sets things up and does not count."""
    body_s, head_s = {}, {}
    for count in (*rows, *body_only):
        if count > min(engine.info.max_rows, engine.info.capacity):
            continue
        tokens = np.zeros(count, np.int64)
        bodies, heads = [], []
        for _ in range(1 + _REPEATS):
            started = clock()
            engine.forward(StepInput(0, tokens, 0, None))
            between = clock()
            bodies.append(between - started)
            if count in rows:
                engine.head(HeadRequest(0, count))
                heads.append(clock() - between)
        body_s[count] = statistics.median(bodies[1:])
        if heads:
            head_s[count] = statistics.median(heads[1:])
    return body_s, head_s
