"""``edge-runtime load``: many clients at a running daemon. Knows what to show; ``bench.load`` asks and counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..bench.corpus import prompts
from ..bench.load import LoadFigures, LoadPlan, quantile, run_disconnects, run_fairness, run_load
from ..bench.records import write_whole
from ..console import plain_console
from ..parameters import Finite, Place, Written


@click.command()
@click.option("--socket", metavar="PATH", type=Place(), help="Of the daemon.")
@click.option("--clients", type=click.IntRange(1, 512), default=8, show_default=True, help="Streaming at once.")
@click.option("--minutes", type=Finite(0.05, 100_000.0, "minutes"), default=10.0, show_default=True, help="How long.")
@click.option(
    "--disconnects",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Afterwards, so many clients that leave at a random moment.",
)
@click.option("--json", "json_path", type=Written(), help="Write the figures here as well.")
def load(socket: Path | None, clients: int, minutes: float, disconnects: int, json_path: Path | None) -> None:
    """Put a daemon under load and count what is lost: streams, fairness, memory, clients that leave."""
    texts = [prompt.text for prompt in prompts()]
    report: dict[str, Any] = {}
    fairness = asyncio.run(run_fairness(socket, texts[0]))
    report["fairness"] = asdict(fairness)
    click.echo(
        f"fairness: 20 tokens beside a 500-token answer: {fairness.short_s:.2f} s ({fairness.alone_s:.2f} s alone); "
        f"the long one ended {fairness.long_s - fairness.short_s:.2f} s after it"
    )
    figures = _load(socket, LoadPlan(clients, 60.0 * minutes, texts))
    report["load"] = asdict(figures)
    for line in _lines(figures, clients):
        click.echo(line)
    if disconnects:
        left = asyncio.run(run_disconnects(socket, disconnects, texts))
        report["disconnects"] = asdict(left)
        click.echo(
            f"disconnects: {left.asked} clients left ({left.left_before_an_answer} before the first token, "
            f"{left.cancelled} answers cancelled): {left.busy_slots} slots busy, {left.waiting} requests waiting"
        )
    if json_path is not None:
        write_whole(json_path, json.dumps(report, indent=1) + "\n")


def _load(socket: Path | None, plan: LoadPlan) -> LoadFigures:
    console = plain_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        task = bars.add_task("load", total=1.0)
        return asyncio.run(run_load(socket, plan, lambda done: bars.update(task, completed=done)))


def _lines(figures: LoadFigures, clients: int) -> list[str]:
    growth = figures.memory_growth()
    return [
        f"load: {clients} clients, {figures.seconds:.0f} s: {figures.requests} requests, {figures.lost} lost, "
        f"{figures.tokens} tokens, {figures.tokens / figures.seconds:.1f} tok/s",
        *(f"  lost: {problem}" for problem in figures.problems),
        f"ttft_ms p50 {_ms(figures.ttft_s, 0.5)}, p95 {_ms(figures.ttft_s, 0.95)}; "
        f"tpot_ms p50 {_ms(figures.tpot_s, 0.5)}, p95 {_ms(figures.tpot_s, 0.95)}",
        f"texts: {figures.differing} of {figures.repeated} repeated greedy answers differ from the first",
        "memory: too short to tell" if growth is None else
        f"memory: anonymous {figures.memory[-1].anonymous_bytes / 1e6:.0f} MB at the end, {growth:+.2%} after warm-up",
    ]  # fmt: skip


def _ms(rising: Sequence[float], share: float) -> str:
    value = quantile(rising, share)
    return "-" if value is None else f"{1e3 * value:.1f}"
