"""``edge-export train-drafter``: how it is asked for and shown. Knows neither torch nor how training works."""

from __future__ import annotations

from pathlib import Path

import click

from edge_runtime.cores import usable_cores
from edge_runtime.parameters import (
    MOST_SEED,
    MOST_THREADS,
    MOST_TOKENS,
    Finite,
    Place,
    Whole,
    WrittenDirectory,
    refuse_useless,
)

from ..progress import progress_bars


@click.command("train-drafter")
@click.option("--target", required=True, type=Place(), help="Checkpoint, or a bundle made of one.")
@click.option("--corpus", multiple=True, type=Place(), help="File or directory of text; may be repeated.")
@click.option("--output", required=True, type=WrittenDirectory(), help="Goes on with what it holds.")
@click.option("--hours", type=Finite(0.0, 100_000.0, "hours", above=True), help="Of training, features not counted.")
@click.option("--steps", type=Whole(1, 1 << 40), help="Of training, in place of hours.")
@click.option("--tokens", type=Whole(1, 1 << 40), default=400_000, show_default=True, help="Of text to train on.")
@click.option("--features", type=Place(), help="Features of another run, in place of a corpus.")
@click.option(
    "--share", type=Finite(0.0, 1.0, above=True), default=1.0, show_default=True,
    help="Of the features: the data-scaling check.",
)  # fmt: skip
@click.option("--rows", type=Whole(1, MOST_TOKENS), default=16_384, show_default=True, help="Of the reduced head.")
@click.option("--self-fed", type=Whole(0, 64), default=2, show_default=True, help="Draft steps that are trained.")
@click.option(
    "--rate", type=Finite(0.0, 10.0, above=True), default=3e-3, show_default=True, help="Learning rate of the matrices."
)
@click.option(
    "--acceptance-weight",
    type=Finite(0.0, 1e6),
    default=1.0,
    show_default=True,
    help="Of 1 - sum min(p, q) in the loss.",
)
@click.option("--seed", type=Whole(0, MOST_SEED), default=0, show_default=True)
@click.option("--threads", type=Whole(1, MOST_THREADS), help="Of the CPU.  [default: all]")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda")
@click.pass_context
def train_drafter(
    said: click.Context,
    /,
    target: Path,
    corpus: tuple[Path, ...],
    output: Path,
    hours: float | None,
    steps: int | None,
    tokens: int,
    features: Path | None,
    share: float,
    rows: int,
    self_fed: int,
    rate: float,
    acceptance_weight: float,
    seed: int,
    threads: int | None,
    device: str,
) -> None:
    """Train a multi-token drafter for a TARGET from the target's own outputs."""
    if features is not None:
        refuse_useless(said, "--features are gathered already", ("corpus", "tokens"))
    import torch

    from .gather import GatherPlan
    from .loss import LossWeights
    from .session import Shown, Wanted
    from .session import train_drafter as train
    from .trainer import TrainingPlan

    torch.set_num_threads(threads or usable_cores())
    plan = TrainingPlan(
        hours, steps, self_fed=self_fed, matrix_rate=rate, loss=LossWeights(acceptance=acceptance_weight)
    )
    # A GPU wants more at once; what is learnt at once stays the same.
    bulk = 16 if device.startswith("cuda") else 1
    gather = GatherPlan(tokens, batch_tokens=2048 * bulk, drawn_batch=64 * min(bulk, 4))
    wanted = Wanted(target, corpus, output, plan, gather, features, rows, share=share, seed=seed, device=device)
    with progress_bars() as progress:
        place = train(wanted, Shown(progress, lambda text: click.echo(text)))
    click.echo(f"{place}: the best drafter of this run")
