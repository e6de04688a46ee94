"""How much of a text a drafter is fed: hand-made cases, each with its reason."""

from __future__ import annotations

import pytest

from edge_runtime.cost import CostTable
from edge_runtime.feeding import Fed, Feeding, feeding

WHOLE = CostTable(body_s=(0.01,), head_s=(0.01,), draft_s=0.001, catch_up_s=0.001)
END = CostTable(body_s=(0.01,), head_s=(0.01,), draft_s=0.001, catch_up_s=0.001, window=10)


@pytest.mark.parametrize(
    ("table", "fed", "length", "won_s", "to_come", "told"),
    [
        (WHOLE, Fed(), 100, 0.0, 64.0, Feeding(98, None, Fed(0, 100))),
        (WHOLE, Fed(0, 60), 100, 0.0, 64.0, Feeding(38, None, Fed(0, 100))),
        # A short text is all end.
        (END, Fed(), 12, 0.0, 64.0, Feeding(10, None, Fed(0, 12))),
        (END, Fed(), 100, 0.0, 64.0, Feeding(10, 10, Fed(88, 100))),
        # After a pause: what it lacks, or the end again.
        (END, Fed(88, 100), 105, 0.0, 64.0, Feeding(3, 10, Fed(88, 105))),
        (END, Fed(88, 100), 100, 0.0, 64.0, Feeding(0, 10, Fed(88, 100))),
        (END, Fed(88, 100), 130, 0.0, 64.0, Feeding(10, 10, Fed(118, 130))),
        # 98 tokens take 0.098 s: won, and no more than 5% of 98 steps; of 90 it is more.
        (END, Fed(88, 100), 100, 0.098, 98.0, Feeding(98, None, Fed(0, 100))),
        (END, Fed(88, 100), 100, 0.098, 90.0, Feeding(0, 10, Fed(88, 100))),
        (END, Fed(88, 100), 100, 0.097, 98.0, Feeding(0, 10, Fed(88, 100))),
        # It has the whole, and goes on having it while that is cheap.
        (END, Fed(0, 100), 105, 0.0, 64.0, Feeding(3, None, Fed(0, 105))),
        (END, Fed(0, 100), 130, 0.05, 64.0, Feeding(28, None, Fed(0, 130))),
        (END, Fed(0, 100), 130, 0.01, 64.0, Feeding(10, 10, Fed(118, 130))),
    ],
)
def test_feeding(table: CostTable, fed: Fed, length: int, won_s: float, to_come: float, told: Feeding) -> None:
    assert feeding(fed, length, table, won_s, to_come) == told
