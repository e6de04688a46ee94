"""What a warm-up measures is what engines and drafters take."""

from __future__ import annotations

import pytest

from edge_runtime.cost import CostTable
from edge_runtime.drafters.costs import StepCosts
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.heads import ParallelHeads
from edge_runtime.drafters.mtp import Assistant, MultiToken
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.drafters.self_draft import SelfDraft
from edge_runtime.testing import (
    FakeAssistant,
    FakeEngine,
    FakeHeads,
    FakeModel,
    FakeMultiToken,
    FakeSelfDraft,
    ManualClock,
)
from edge_runtime.warmup import measure_costs, measure_drafter

TARGET = CostTable(body_s=tuple(0.01 + 0.001 * rows for rows in range(1, 33)), head_s=(0.002, 0.003), draft_s=0.0)
DRAFT = CostTable(body_s=tuple(0.001 + 0.0001 * rows for rows in range(1, 33)), head_s=(0.0004,), draft_s=0.0)


def made(name: str, target: FakeEngine, clock: ManualClock) -> Drafter:
    own = {"clock": clock, "cost": DRAFT}
    info = target.info
    if name == "mtp":
        return MultiToken(FakeMultiToken(FakeModel(), capacity=128, **own), info)
    if name == "assistant":
        return Assistant(FakeAssistant(target, **own), info)
    if name == "self":
        return SelfDraft(FakeSelfDraft(target, **own), info)
    if name == "heads":
        return ParallelHeads(FakeHeads(FakeModel(), fan_out=4, **own), info)
    return DraftModel(FakeEngine(FakeModel(), capacity=128, **own), info)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "each_s", "fixed_s", "fed"),
    [
        ("draft_model", 0.0015, 0.0, True),
        ("mtp", 0.0015, 0.0, True),
        ("assistant", 0.0015, 0.0, False),
        ("self", 0.0015, 0.0, False),
        # One forward, whatever is asked for.
        ("heads", 0.0, 0.0015, False),
    ],
)
def test_a_drafter_is_priced_by_what_it_takes(name: str, each_s: float, fixed_s: float, fed: bool) -> None:
    clock = ManualClock()
    target = FakeEngine(FakeModel(), max_rows=32, keeps_hidden=True, clock=clock, cost=TARGET)
    drafter = made(name, target, clock)
    costs = StepCosts()
    costs.prime(measure_costs(target, None, 7, clock, 15))
    costs.prime_draft(name, measure_drafter(target, drafter, clock))
    table = costs.table(0, name)
    assert table is not None
    assert (table.draft_s, table.draft_fixed_s) == (pytest.approx(each_s, abs=2e-4), pytest.approx(fixed_s, abs=2e-4))
    assert (table.catch_up_s > 0.0) == fed and table.catch_up_s < 0.001
    assert table.body(4) == pytest.approx(0.014) and table.head(2) == pytest.approx(0.003)
    assert table.body(16) == pytest.approx(0.026)
    # Nothing is left of the made-up text.
    free = costs.table(0)
    assert free is not None and (free.draft_s, free.catch_up_s) == (0.0, 0.0)


def test_what_is_too_small_to_be_measured_is_free() -> None:
    clock = ManualClock()
    target = FakeEngine(FakeModel(), capacity=7, max_rows=32, clock=clock, cost=TARGET)
    assert measure_drafter(target, made("draft_model", target, clock), clock).by_count_s == {}
