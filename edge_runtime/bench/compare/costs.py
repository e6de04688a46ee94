"""What a step of K drafts costs on this machine, with the head in one batch and until the first rejection.

Knows engines by their costs only; what drafting itself costs is left out.
"""

from __future__ import annotations

import statistics

from ...cost import CostTable, cost_lines, dense_by_rows
from ...engines.protocol import Engine
from ...warmup import measure_costs
from .record import StepCosts

ACCEPTANCES = (0.3, 0.5, 0.7, 0.9)
_REPEATS = 5


def step_costs(target: Engine, most_k: int) -> tuple[StepCosts, ...]:
    """K = 0..``most_k`` by acceptance, from medians of passes over all sizes. Slot 0 is written to."""
    passes = [measure_costs(target, None, most_k) for _ in range(_REPEATS)]
    body = {rows: statistics.median(one.body_s[rows] for one in passes) for rows in passes[0].body_s}
    head = {rows: statistics.median(one.head_s[rows] for one in passes) for rows in passes[0].head_s}
    table = CostTable(dense_by_rows(body), dense_by_rows(head), draft_s=0.0, min_rows=target.info.min_rows)
    return tuple(StepCosts(acceptance, cost_lines([acceptance], table, most_k)) for acceptance in ACCEPTANCES)
