"""``edge-runtime load``: many clients at a running daemon. Knows what to show; ``bench.load`` asks and counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..bench.corpus import prompts
from ..bench.load import LoadFigures, LoadPlan, quantile, run_disconnects, run_fairness, run_load
from ..files import replace_text
from ..parameters import Finite, Place, Whole, Written
from .progress import long_progress
from .remote import daemon_at


@click.command()
@click.option("--socket", metavar="PATH", type=Place(), help="Of the daemon.")
@click.option("--clients", type=Whole(1, 512), default=8, show_default=True, help="Streaming at once.")
@click.option("--minutes", type=Finite(0.05, 100_000.0, "minutes"), default=10.0, show_default=True, help="How long.")
@click.option(
    "--disconnects",
    type=Whole(0, 1_000_000),
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
    with daemon_at(socket):
        pass  # one that is not there is told at once, and not behind the patience of every client
    click.echo("fairness: a short answer beside a long one", err=True)
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
        replace_text(json_path, json.dumps(report, indent=1) + "\n")


def _load(socket: Path | None, plan: LoadPlan) -> LoadFigures:
    seconds = max(1, round(plan.seconds))
    with long_progress(f"load, {plan.clients} clients, seconds", seconds) as told:
        return asyncio.run(run_load(socket, plan, lambda done: told(int(done * seconds))))


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
