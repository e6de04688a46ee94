"""``edge-export fit-heads``: how it is asked for. Knows neither what a fit is nor what features are made of."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from edge_runtime.errors import ConfigError
from edge_runtime.parameters import MOST_TOKENS, Place, Whole, WrittenDirectory

from .progress import progress_bars

_PARTS, _HELD = ("natural", "drawn"), ("held-natural", "held-drawn")
"""Of the features that train-drafter leaves behind: what is fitted to, and what is tried on."""


@click.command("fit-heads")
@click.option("--target", required=True, type=Place(), help="Checkpoint of the target.")
@click.option("--features", required=True, type=Place(), help="Features that train-drafter made.")
@click.option("--output", required=True, type=WrittenDirectory(), help="Must not exist.")
@click.option("--heads", type=Whole(1, 16), default=4, show_default=True, help="Tokens of a draft at most.")
@click.option("--rows", type=Whole(1, MOST_TOKENS), default=16_384, show_default=True, help="Of the reduced head.")
@click.option("--inner", type=Whole(1, 1 << 16), help="Width inside of a head.  [default: the target's]")
def fit_heads(target: Path, features: Path, output: Path, heads: int, rows: int, inner: int | None) -> None:
    """Fit parallel heads to a TARGET's features, in closed form."""
    import numpy as np

    from .checkpoint import open_checkpoint
    from .drafter import rows_by_tokens
    from .heads_fit import fit_heads as fit
    from .heads_fit import fit_record
    from .output import free_place, new_directory
    from .parallel_heads import save_heads
    from .tokenizer import build_tokenizer_model
    from .training.features import read_part

    place = free_place(output, overwrite=False)
    checkpoint = open_checkpoint(target)
    tokenizer = build_tokenizer_model(checkpoint)
    parts = [read_part(features / name) for name in _PARTS if (features / name).is_dir()]
    if not parts:
        raise ConfigError(f"{features}: no features there ({' and '.join(_PARTS)})")
    if any(part.hidden.shape[2] != checkpoint.config.hidden_size for part in parts):
        raise ConfigError(f"{features}: the rows of another target: their width is not {checkpoint.config.hidden_size}")
    full = min(checkpoint.config.vocab_size, tokenizer.vocab_size)
    seen = np.concatenate([part.tokens[: part.done].ravel() for part in parts]).astype(np.int64)
    ids = rows_by_tokens(rows, full, tokenizer, seen)
    with progress_bars() as progress:
        fitted = fit(checkpoint, parts, ids, heads, inner, progress)
    held = {name: read_part(features / name) for name in _HELD if (features / name).is_dir()}
    fitted = fit_record(fitted, checkpoint, parts, held)
    with new_directory(place) as directory:
        save_heads(directory, fitted)
        shutil.copyfile(Path(__file__).parent / "notices" / "GEMMA_NOTICE.txt", directory / "GEMMA_NOTICE.txt")
    for name, agreed in fitted.record["held_out"].items():
        click.echo(f"{name}: agrees with the target's best token, head by head: {' '.join(map(str, agreed))}")
    click.echo(f"{output}: {heads} heads, fitted to {len(seen)} tokens")
