"""``edge-runtime demo``: a text, live, and what drafting did for it. Knows what to show, not how it is made."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from ..bench.corpus import Prompt
from ..bench.speculation import Case, PromptFigures, compare_plain, generate_once
from ..generation import GenerationResult
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..resident import resident
from ..sampling import SamplingParams

_PROMPT = "The three most important inventions of the nineteenth century were"
_CASES = (
    Case("greedy", SamplingParams(temperature=0.0)),
    Case("sampled", SamplingParams(temperature=1.0, top_k=64, top_p=0.95)),
)


@click.command()
@click.option("--bundle", required=True, type=click.Path(path_type=Path), help="Directory of the bundle.")
@click.option("--tokens", type=click.IntRange(16), default=64, show_default=True, help="Tokens of each text.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of the comparison.")
def demo(bundle: Path, tokens: int, rounds: int) -> None:
    """Generate a text, then compare plain and speculative decoding."""
    loaded = load_bundle(bundle, LoadSettings(context=1024))
    try:
        decoder = loaded.decoder()
        click.echo(f"{loaded.manifest.name}, greedy, drafter {decoder.drafter.name}:\n\n{_PROMPT}", nl=False)
        params = SamplingParams(temperature=0.0)
        generate_once(loaded, decoder, _PROMPT, params, 0, tokens, lambda text: click.echo(text, nl=False))
        click.echo("\n")
        figures = compare_plain(loaded, decoder, (Prompt("demo", _PROMPT),), _CASES, rounds=rounds, max_tokens=tokens)
        _show(loaded, figures, rounds)
    finally:
        loaded.close()


def _show(loaded: LoadedBundle, figures: tuple[PromptFigures, ...], rounds: int) -> None:
    table = Table(title=f"{loaded.manifest.name}: plain against speculative, median of {rounds} rounds in turn")
    for column in ("decoding", "tok/s", "ttft_ms", "tpot_ms", "accepted", "length", "K", "repeats", "speed-up"):
        table.add_column(column, justify="left" if column == "decoding" else "right")
    for figure in figures:
        table.add_row(f"{figure.case}, plain", *_cells(figure.plain), f"{figure.repeat_rate:.0%}", "")
        table.add_row(
            f"{figure.case}, speculative", *_cells(figure.speculative), f"{figure.repeat_rate:.0%}", str(figure.speedup)
        )
    Console().print(table)
    memory, size = resident(), sum(entry.bytes for entry in loaded.manifest.files)
    click.echo(
        f"load {loaded.load_s:.2f} s, peak memory {memory.peak / 1e6:.0f} MB ({memory.anonymous / 1e6:.0f} MB of it "
        f"anonymous now), bundle {size / 1e6:.0f} MB"
    )
    for figure in figures:
        click.echo(f"{figure.case}: {figure.speculative.drafter}: {figure.speculative.reason}")
    click.echo(
        "accepted: drafts that were kept; length: tokens a step; K: drafts a step, mean; repeats: 8-grams seen before"
    )


def _cells(result: GenerationResult) -> list[str]:
    rate = "" if result.acceptance_rate is None else f"{result.acceptance_rate:.0%}"
    assert result.tpot_s is not None and result.ttft_s is not None and result.acceptance_length is not None
    return [
        f"{1.0 / result.tpot_s:.1f}",
        f"{1e3 * result.ttft_s:.0f}",
        f"{1e3 * result.tpot_s:.1f}",
        rate,
        f"{result.acceptance_length:.2f}",
        f"{result.drafted / result.steps:.2f}",
    ]
