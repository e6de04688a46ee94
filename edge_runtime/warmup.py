"""The warm-up pass: what forwards, heads and drafts of each size cost on this machine now. Knows no text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from .drafters.costs import DraftCosts, MeasuredCosts
from .drafters.protocol import DraftContext, Drafter
from .engines.protocol import Engine, HeadRequest, StepInput
from .sampling import SamplingParams

_REPEATS = 3
_TEXT = 24
"""Tokens of the made-up text that drafters are measured on."""
_LONGER = 4
"""Tokens of the longer of two drafts: one of a single token tells what each of them has in common."""

Clock = Callable[[], float]


def measure_costs(
    target: Engine, draft: Engine | None, k_max: int, clock: Clock = time.perf_counter, longest: int = 0
) -> MeasuredCosts:
    """Run both engines at the sizes a step may have. Slot 0 is written to: call it before the first session.

    ``longest``: K of drafts beyond ``k_max``, whose rows the head reads in parts.
    """
    rows = [count for count in (1, 2, 3, 4, 6, 8, 12, 16) if count <= k_max] + [k_max + 1]
    body_s, head_s = _measure(target, rows, clock, [longest + 1] if longest > k_max else ())
    if draft is None:
        return MeasuredCosts(body_s, head_s, 0.0, 0.0)
    chunk = min(draft.info.max_rows, draft.info.capacity, 16)
    draft_body, draft_head = _measure(draft, [1], clock, [chunk])
    return MeasuredCosts(body_s, head_s, draft_body[1] + draft_head[1], draft_body[chunk] / chunk)


def measure_drafter(target: Engine, drafter: Drafter, clock: Clock = time.perf_counter) -> DraftCosts:
    """Let it draft behind a made-up text, as it would behind a real one. Slot 0 is written to, likewise."""
    info = target.info
    most = min(info.max_rows, info.capacity - _LONGER - 2)
    if most < 2 or drafter.max_k < 1:
        return DraftCosts({})
    # The largest piece of a prompt that it may be fed, for the memory that it takes.
    drafter.warm(_text(target, most))
    drafter.reset(0)
    context = _text(target, min(_TEXT, most))
    fed_s, by_count_s = [], {}
    for _ in range(1 + _REPEATS):
        drafter.reset(0)
        started = clock()
        fed = drafter.warm(context)
        if fed:
            fed_s.append((clock() - started) / fed)
    for k in sorted({1, min(_LONGER, drafter.max_k)}):
        seconds = []
        for _ in range(1 + _REPEATS):
            started = clock()
            made = len(drafter.propose(context, k).tokens)
            seconds.append(clock() - started)
            drafter.observe(0, 0)
        if made:
            by_count_s[made] = min(seconds[1:])
    drafter.reset(0)
    return DraftCosts(by_count_s, min(fed_s[1:], default=0.0), drafter.window)


def _text(target: Engine, count: int) -> DraftContext:
    """Made up, of ``count`` tokens that the target has read and one more."""
    info = target.info
    tokens = np.arange(3, count + 4, dtype=np.int64) % info.vocab_size
    target.forward(StepInput(0, tokens[:count], 0, None))
    return DraftContext(
        tokens=tokens,
        slot=0,
        params=SamplingParams(temperature=0.0),
        seed=None,
        uniform=lambda: 0.5,
        hidden=target.hidden_rows(0)[:count] if info.keeps_hidden else None,
        kv_len=count,
    )


def _measure(
    engine: Engine, rows: Sequence[int], clock: Clock, body_only: Sequence[int] = ()
) -> tuple[dict[int, float], dict[int, float]]:
    """The least seconds by rows, of body and head; the first run of a size sets things up and does not count.

    Sizes take turns: what else the machine does meets all of them, and a choice of K hangs on their ratios. It only
    ever adds, so the least of a few is nearer to the truth than their median.
    """
    sizes = [count for count in (*rows, *body_only) if count <= min(engine.info.max_rows, engine.info.capacity)]
    bodies: dict[int, list[float]] = {count: [] for count in sizes}
    heads: dict[int, list[float]] = {count: [] for count in sizes if count in rows}
    for _ in range(1 + _REPEATS):
        for count in sizes:
            started = clock()
            engine.forward(StepInput(0, np.zeros(count, np.int64), 0, None))
            between = clock()
            bodies[count].append(between - started)
            if count in heads:
                engine.head(HeadRequest(0, count))
                heads[count].append(clock() - between)
    return _least(bodies), _least(heads)


def _least(seconds: dict[int, list[float]]) -> dict[int, float]:
    return {count: min(runs[1:]) for count, runs in seconds.items()}
