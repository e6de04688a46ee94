"""``edge-export train-drafter``: how it is asked for and shown. Knows neither torch nor how training works."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..progress import progress_bars


@click.command("train-drafter")
@click.option("--target", required=True, type=click.Path(path_type=Path), help="Checkpoint, or a bundle made of one.")
@click.option(
    "--corpus", multiple=True, type=click.Path(path_type=Path), help="File or directory of text; may be repeated."
)
@click.option("--output", required=True, type=click.Path(path_type=Path), help="Goes on with what it holds.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="Of training, features not counted.")
@click.option("--steps", type=click.IntRange(min=1), help="Of training, in place of hours.")
@click.option("--tokens", default=400_000, show_default=True, help="Of text to train on.")
@click.option("--features", type=click.Path(path_type=Path), help="Features of another run, in place of a corpus.")
@click.option("--share", default=1.0, show_default=True, help="Of the features: the data-scaling check.")
@click.option("--rows", default=16_384, show_default=True, help="Of the reduced head.")
@click.option("--self-fed", default=2, show_default=True, help="Draft steps that are trained.")
@click.option("--rate", default=3e-3, show_default=True, help="Learning rate of the matrices.")
@click.option("--acceptance-weight", default=1.0, show_default=True, help="Of 1 - sum min(p, q) in the loss.")
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Of the CPU.  [default: all]")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda")
def train_drafter(
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
    import torch

    from .gather import GatherPlan
    from .loss import LossWeights
    from .session import Shown, Wanted
    from .session import train_drafter as train
    from .trainer import TrainingPlan

    torch.set_num_threads(threads or os.cpu_count() or 1)
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
