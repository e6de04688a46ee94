"""Choosers over fakes: what steps cost is told, not measured. Knows no test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_runtime.cost import CostTable
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.chooser import Chooser
from edge_runtime.drafters.costs import DraftCosts, MeasuredCosts, StepCosts
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.drafters.several import Several
from edge_runtime.engines.protocol import Engine, EngineInfo
from edge_runtime.testing import FakeEngine, ManualClock


class Named(DraftModel):
    """A draft model with a name of its own, so that there can be several."""

    def __init__(self, name: str, engine: Engine, target: EngineInfo) -> None:
        super().__init__(engine, target)
        self.name = name


def told_costs(
    table: CostTable, drafts: Mapping[str, tuple[float, float]], min_rows: int = 1, window: int | None = None
) -> StepCosts:
    """``drafts``: name -> seconds of a drafted token, and of one that is caught up; all with the same ``window``."""
    costs = StepCosts(min_rows)
    costs.prime(MeasuredCosts(dict(enumerate(table.body_s, 1)), dict(enumerate(table.head_s, 1)), 0.0, 0.0))
    for name, (draft_s, catch_up_s) in drafts.items():
        costs.prime_draft(name, DraftCosts({1: draft_s, 4: 4 * draft_s} if draft_s else {}, catch_up_s, window))
    return costs


def choosing(
    target: FakeEngine,
    table: CostTable,
    *,
    free: Sequence[Drafter] = (),
    models: Sequence[Drafter] = (),
    drafts: Mapping[str, tuple[float, float]] | None = None,
    k_max: int = 5,
    free_k: int = 15,
    clock: ManualClock | None = None,
    branches: int = 0,
) -> Decoder:
    """A decoder that chooses; ``drafts`` as for ``told_costs``, free where a model is not named."""
    costs = told_costs(table, {one.name: (0.0, 0.0) for one in models} | dict(drafts or {}), target.info.min_rows)
    chooser = Chooser(costs, [(one.name, min(k_max, one.max_k)) for one in models], k_max, free_k, branches=branches)
    return Decoder(target, Several("auto", free, models), chooser, clock=clock or ManualClock())


def seconds(decoder_or_session_totals: object) -> float:
    totals = decoder_or_session_totals
    return totals.draft_s + totals.verify_s + totals.overhead_s  # type: ignore[attr-defined,no-any-return]
