"""``edge-export quality``: how it is asked for and shown. Knows neither rounding nor likelihoods."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from edge_runtime.console import plain_console
from edge_runtime.errors import ConfigError
from edge_runtime.files import read_text_at_most
from edge_runtime.parameters import MOST_TOKENS, Place, Whole, Word

from .progress import progress_bars

if TYPE_CHECKING:
    from .quality import QualityReport

_MOST_TEXT_BYTES = 1 << 24


@click.command()
@click.argument("source", type=Place())
@click.option("--text", type=Place(), help="Text to predict, not the one that calibrates.  [default: the GPL-3]")
@click.option("--tokens", type=Whole(1, MOST_TOKENS), default=2048, show_default=True, help="Of it, in pieces of 512.")
@click.option(
    "--calibration", type=Word(), metavar="FILE|builtin", default="builtin", show_default=True,
    help="Text whose activations guide the calibrated schemes.",
)  # fmt: skip
@click.option("--scheme", "names", multiple=True, metavar="NAME", help="Measure this one; repeatable.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def quality(source: Path, text: Path | None, tokens: int, calibration: str, names: tuple[str, ...],
            as_json: bool) -> None:  # fmt: skip
    """What rounding a checkpoint's products to 4 bits costs: NLL and KL against SOURCE's own weights.

    Needs the reference extra, and memory for the model in float32.
    """
    from .checkpoint import open_checkpoint
    from .quality import SCHEMES, measure_quality

    known = {scheme.name: scheme for scheme in SCHEMES}
    for name in names:
        if name not in known:
            raise ConfigError(f"--scheme: {name!r} is none of {', '.join(known)}")
    checkpoint = open_checkpoint(source)
    given = None if text is None else (str(text), read_text_at_most(text, _MOST_TEXT_BYTES, ""))
    with progress_bars() as progress:
        report = measure_quality(
            checkpoint,
            progress,
            text=given,
            tokens=tokens,
            calibration=calibration,
            schemes=[known[name] for name in names] or SCHEMES,
        )
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        _show(report)


def _show(report: QualityReport) -> None:
    about = f"{report.tokens} tokens of {report.text} in contexts of {report.context}"
    table = Table(title=f"{report.checkpoint}, {about}: NLL {report.nll:.4f} in float32")
    table.add_column("scheme")
    for name in ("bits", "NLL", "more", "KL (nats)", "top-1"):
        table.add_column(name, justify="right")
    for row in report.rows:
        error = "" if row.kl_error is None else f" ± {row.kl_error:.4f}"
        more = f"{row.nll - report.nll:+.4f}"
        figures = (f"{row.bits:.2f}", f"{row.nll:.4f}", more, f"{row.kl:.4f}{error}", f"{row.top1_agreement:.3f}")
        table.add_row(f"{row.scheme}: {row.text}", *figures)
    plain_console().print(table)
    if report.calibration_tokens:
        click.echo(f"calibrated on {report.calibration_tokens} tokens of another text")
    for name in report.left_out:
        click.echo(f"{name}: left out, its blocks do not divide the rows of this checkpoint")
