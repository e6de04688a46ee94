"""Simulated runs as tables of at most 100 columns. Knows how to say it; simulates and judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from ..simulator.loop import Trace
from ..simulator.scenario import Scenario
from ..simulator.series import series, sparkline
from ..simulator.study import FIXED_K, MOST_K_CHANGES, Finding, Floor, against_limit, summed_up
from ..simulator.verdict import OVER_C, OVER_S, POWER_SHARE, Verdict

_COLUMNS = 60
_TOLD_CHANGES = 12
_TOLD_SEEDS = 10
SWITCHED_OFF = "THE BOARD SWITCHED ITSELF OFF: what is said of limits is said of a board that is off"


def course(trace: Trace) -> Table:
    """How it went, as one line a quantity."""
    data = series(trace, trace.scenario.seconds / _COLUMNS)
    return lines_table(
        f"{trace.scenario.seconds / 60:g} minutes",
        (
            ("die, C", data.temperature_c, "{:.1f}"),
            ("power, W", data.power_w, "{:.1f}"),
            ("GPU, MHz", data.clock_mhz, "{:.0f}"),
            ("K", data.k, "{:.1f}"),
            ("tokens/s", data.tokens_per_s, "{:.1f}"),
        ),
    )


def lines_table(title: str, rows: Sequence[tuple[str, Sequence[float], str]]) -> Table:
    """(name, values over time, form of one of them) each."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(title, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("lowest", justify="right", no_wrap=True)
    table.add_column("highest", justify="right", no_wrap=True)
    for name, values, form in rows:
        low, high = min(values), max(values)
        table.add_row(name, sparkline(values, low, high), form.format(low), form.format(high))
    return table


def changes_table(changes: Sequence[tuple[float, str, str]]) -> Table:
    """(seconds, state, reason) each."""
    told = changes[:_TOLD_CHANGES]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("s", justify="right")
    table.add_column("state")
    table.add_column("reason")
    for time_s, state, reason in told:
        table.add_row(f"{time_s:.1f}", state, Text(reason))
    if len(changes) > len(told):
        table.add_row("", "", f"and {len(changes) - len(told)} more changes")
    return table


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    figure: str
    wanted: str = ""
    held: bool | None = None
    """``None``: nothing is asked of it."""


def limit_rows(limit_c: float | None, over_c: float | None, over_s: float | None, share: float | None) -> list[Row]:
    """Of what is limited; ``share``: the highest mean power over ten seconds, of its cap."""
    rows = []
    if over_c is not None and over_s is not None and limit_c is not None:
        figure = f"{limit_c + over_c:.2f} C, {against_limit(over_c)} {limit_c:g} C"
        rows.append(Row("highest temperature", figure, f"<= {OVER_C:g} C above", over_c <= OVER_C))
        rows.append(Row("longest time above its limit", f"{over_s:.1f} s", f"<= {OVER_S:g} s", over_s <= OVER_S))
    if share is not None:
        wanted = f"<= {POWER_SHARE:.0%}"
        rows.append(Row("mean power over 10 s, of its cap", f"{share:.1%}", wanted, share <= POWER_SHARE))
    return rows


def off_rows(off: bool) -> list[Row]:
    return [Row("the hardware", "switched itself off", "stays on", False)] if off else []


def held_table(rows: Sequence[Row]) -> tuple[Table, bool]:
    """And whether all was held."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("figure", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(row.name, row.figure, row.wanted, "" if row.held is None else "held" if row.held else "NOT HELD")
    return table, all(row.held is not False for row in rows)


def verdict_rows(verdict: Verdict, scenario: Scenario) -> list[Row]:
    events = verdict.over_current_events
    rows = limit_rows(scenario.temperature_c, verdict.over_c, verdict.over_s, verdict.power_share)
    changes = verdict.most_k_changes
    rows.append(Row("changes of K in any minute", f"{changes}", f"<= {MOST_K_CHANGES}", changes <= MOST_K_CHANGES))
    throttled = f"{verdict.throttled_share:.0%} of the time, {events} over-current events"
    rows.append(Row("hardware throttling", throttled, "none", verdict.throttled_share == 0.0 and not events))
    rows += off_rows(verdict.off)
    rows.append(Row("tokens a second", f"{verdict.tokens_per_s:.1f}"))
    if verdict.joules_per_token is not None:
        rows.append(Row("joules a token", f"{verdict.joules_per_token:.2f}"))
    return rows


def floors_table(asked: Sequence[Floor]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("wanted", justify="right")
    table.add_column("worst", justify="right")
    table.add_column("of plants", justify="right")
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
        f"With a limit of temperature that can be kept: {found.warm} of {found.plants} plants; with such a cap of "
        f"power: {found.capped}. Of those the first three rows are asked.",
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
