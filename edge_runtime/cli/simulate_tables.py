"""Simulated runs as tables of at most 100 columns. Knows how to say it; simulates and judges nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..simulator.loop import Trace
from ..simulator.scenario import Scenario
from ..simulator.series import series, sparkline
from ..simulator.study import (
    FIXED_K,
    MOST_K_CHANGES,
    Finding,
    Floor,
    summed_up,
)
from ..simulator.verdict import OVER_C, OVER_S, POWER_SHARE, Verdict

_COLUMNS = 60
_TOLD_CHANGES = 12
_TOLD_SEEDS = 10


def course(trace: Trace) -> Table:
    """How it went, as one line a quantity."""
    data = series(trace, trace.scenario.seconds / _COLUMNS)
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column(f"{trace.scenario.seconds / 60:g} minutes")
    table.add_column("", no_wrap=True)
    table.add_column("lowest", justify="right")
    table.add_column("highest", justify="right")
    for name, values, form in (
        ("die, C", data.temperature_c, "{:.1f}"),
        ("power, W", data.power_w, "{:.1f}"),
        ("GPU, MHz", data.clock_mhz, "{:.0f}"),
        ("K", data.k, "{:.1f}"),
        ("tokens/s", data.tokens_per_s, "{:.1f}"),
    ):
        low, high = min(values), max(values)
        table.add_row(name, sparkline(values, low, high), form.format(low), form.format(high))
    return table


def changes_table(trace: Trace) -> Table:
    told = trace.changes[:_TOLD_CHANGES]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("s", justify="right")
    table.add_column("state")
    table.add_column("reason")
    for time_s, state, reason in told:
        table.add_row(f"{time_s:.1f}", state, Text(reason))
    if len(trace.changes) > len(told):
        table.add_row("", "", f"and {len(trace.changes) - len(told)} more changes")
    return table


def held_table(verdict: Verdict, scenario: Scenario) -> tuple[Table, bool]:
    """And whether all was held."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("figure", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    all_held = True

    def row(name: str, figure: str, wanted: str, held: bool) -> None:
        nonlocal all_held
        all_held = all_held and held
        table.add_row(name, figure, wanted, "held" if held else "NOT HELD")

    if verdict.over_c is not None:
        limit_c = scenario.temperature_c
        row("temperature over its limit", f"{verdict.over_c:+.2f} C of {limit_c:g} C", f"<= {OVER_C:g} C",
            verdict.over_c <= OVER_C)  # fmt: skip
        row("longest time over it", f"{verdict.over_s:.1f} s", f"<= {OVER_S:g} s", verdict.over_s <= OVER_S)
    if verdict.power_share is not None:
        row("mean power over 10 s, of its cap", f"{verdict.power_share:.1%}", f"<= {POWER_SHARE:.0%}",
            verdict.power_share <= POWER_SHARE)  # fmt: skip
    row("changes of K in any minute", f"{verdict.most_k_changes}", f"<= {MOST_K_CHANGES}",
        verdict.most_k_changes <= MOST_K_CHANGES)  # fmt: skip
    throttled = f"{verdict.throttled_share:.0%} of the time, {verdict.over_current_events} over-current events"
    row("hardware throttling", throttled, "none", verdict.throttled_share == 0.0 and not verdict.over_current_events)
    if verdict.off:
        row("the hardware", "switched itself off", "stays on", False)
    table.add_row("tokens a second", f"{verdict.tokens_per_s:.1f}", "", "")
    if verdict.joules_per_token is not None:
        table.add_row("joules a token", f"{verdict.joules_per_token:.2f}", "", "")
    return table, all_held


def floors_table(asked: Sequence[Floor]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("wanted", justify="right")
    table.add_column("worst", justify="right")
    table.add_column("plants", justify="right")
    table.add_column("")
    for floor in asked:
        told = " ".join(map(str, floor.failing[:_TOLD_SEEDS]))
        more = f" and {len(floor.failing) - _TOLD_SEEDS} more" if len(floor.failing) > _TOLD_SEEDS else ""
        verdict = "held" if floor.held else f"MISSED by {len(floor.failing)}: seeds {told}{more}"
        table.add_row(floor.name, floor.wanted, floor.figure, str(floor.plants), verdict)
    return table


def plants_line(findings: Sequence[Finding]) -> Text:
    found = summed_up(findings)
    ordinary = found.plants - found.marginal - found.impossible
    lines = [
        f"{ordinary} ordinary plants, {found.marginal} where hardly any work fits within the limits, "
        f"{found.impossible} where a board without work breaks them."
    ]
    if found.of_the_best is not None:
        lines.append(f"Throughput of the best constant K and pace, geometric mean: {found.of_the_best:.3f}.")
    lines.append(
        f"K={FIXED_K} without a governor breaks the limits of {found.ungoverned_breaks} of {ordinary} plants; "
        f"in {found.throttled} its hardware throttles."
    )
    if found.of_the_throttled is not None:
        lines.append(
            f"There the governor makes {found.of_the_throttled:.2f} of its tokens in the geometric mean (and more in "
            f"{found.throttled_and_slower}), if those count that it makes beyond the limits."
        )
    return Text("\n".join(lines))
