"""``edge-runtime demo``: a text from the daemon, live, and what drafting does for it. Knows what to show, not how it is
made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from ..bench.corpus import Prompt, prompts
from ..bench.daemon import running_daemon
from ..bench.speculation import PromptFigures, compare_plain
from ..bench.texts import Desk, Held, Law
from ..client import Client
from ..console import counted, ends_tidily, plain_console
from ..generation import GenerationResult
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..parameters import MOST_ROUNDS, Place, Whole
from ..resident import resident
from ..sampling import SamplingParams

_PROMPT = "The three most important inventions of the nineteenth century were"
_GREEDY = Law("greedy", SamplingParams(temperature=0.0))
_SAMPLED = Law("sampled", SamplingParams(temperature=1.0, top_k=64, top_p=0.95))


@click.command()
@click.option("--bundle", required=True, type=Place(), help="Directory of the bundle.")
@click.option("--tokens", type=Whole(16, 1024), default=16, show_default=True, help="Tokens of each text.")
@click.option("--rounds", type=Whole(1, MOST_ROUNDS), default=3, show_default=True, help="Rounds of the comparison.")
def demo(bundle: Path, tokens: int, rounds: int) -> None:
    """Serve a bundle and talk to it, then compare plain and speculative decoding."""
    _serve(bundle, tokens)
    loaded = load_bundle(bundle, LoadSettings(verify_hashes=False))  # the daemon has just checked them
    try:
        desk = Desk(loaded, Held())
        copy = next(prompt for prompt in prompts("copy") if prompt.name == "copy-rag")
        figures: list[PromptFigures] = []
        for prompt, law in ((Prompt("story", _PROMPT), _SAMPLED), (replace(copy, name="retrieval"), _GREEDY)):
            figures += compare_plain(desk, (prompt,), (law,), rounds=rounds, max_tokens=tokens)
        _show(loaded, figures, rounds)
    finally:
        loaded.close()


def _serve(bundle: Path, tokens: int) -> None:
    """A daemon of our own: a text as it is made, and the same prompt again from the daemon's cache."""
    with ends_tidily(), running_daemon(bundle) as socket, Client(socket) as client:
        status = client.status()
        assert status.model is not None  # it is ready
        click.echo(
            f"the daemon serves {status.model.name} at {socket}, drafter {status.model.drafter}:\n\n{_PROMPT}", nl=False
        )
        with client.stream_complete(_PROMPT, max_tokens=tokens, temperature=0.0) as chunks:
            for chunk in chunks:
                click.echo(chunk.text, nl=False)
        first, again = (client.complete(_retrieval(ask), max_tokens=2, temperature=0.0) for ask in ("flow", "motor"))
        if first.timings and again.timings and again.usage and first.timings.ttft_ms and again.timings.ttft_ms:
            click.echo(
                f"\n\nttft_ms {first.timings.ttft_ms:.0f} for a new context of {again.usage.prompt_tokens} tokens, "
                f"{again.timings.ttft_ms:.0f} for a second question on it ({again.usage.cached_tokens} tokens cached)"
            )
    click.echo("the daemon is shut down\n")


def _retrieval(ask: str) -> str:
    copy = next(prompt for prompt in prompts("copy") if prompt.name == "copy-rag")
    return f"{copy.text}\n\nQuestion: what about the {ask}?\nAnswer:"


def _show(loaded: LoadedBundle, figures: Sequence[PromptFigures], rounds: int) -> None:
    table = Table(title=f"{loaded.manifest.name}: plain against speculative, {counted(rounds, 'round')} in turn")
    table.add_column("")
    for figure in figures:
        for way in ("plain", "drafted"):
            table.add_column(f"{figure.prompt}\n{figure.law}\n{way}", justify="right")
    for label, cell in _ROWS.items():
        cells = (cell(result) for figure in figures for result in (figure.plain, figure.speculative))
        table.add_row(label, *cells)
    table.add_row("speed-up", *(text for figure in figures for text in ("", f"{figure.speedup.median:.2f}x")))
    bounds = [f"{figure.speedup.low:.2f}-{figure.speedup.high:.2f}" for figure in figures]
    table.add_row("95% of it", *(text for bound in bounds for text in ("", bound)))
    repeats = [text for figure in figures for text in ("", f"{figure.repeat_rate:.0%}")]
    table.add_row("repeats", *repeats)
    plain_console().print(table)
    memory, size = resident(), sum(entry.bytes for entry in loaded.manifest.files)
    click.echo(
        "speed-up: median of the ratios within each round; all else: the last round, so its tok/s need not divide to it"
    )
    click.echo("accepted: drafts kept; length: tokens a step; by K: steps with 0, 1, ... drafts; repeats: 8-grams seen")
    click.echo(
        f"load {loaded.load_s:.2f} s, peak memory {memory.peak / 1e6:.0f} MB ({memory.anonymous / 1e6:.0f} MB of it "
        f"anonymous now), bundle {size / 1e6:.0f} MB"
    )
    for figure in figures:
        click.echo(
            f"{figure.prompt}, {figure.law}: {figure.speculative.drafter}, last step: {figure.speculative.reason}"
        )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.1f}"


_ROWS: dict[str, Callable[[GenerationResult], str]] = {
    "tok/s": lambda result: "" if result.tpot_s is None else f"{1.0 / result.tpot_s:.1f}",
    "ttft_ms": lambda result: _ms(result.ttft_s),
    "tpot_ms": lambda result: _ms(result.tpot_s),
    "accepted": lambda result: "" if result.acceptance_rate is None else f"{result.acceptance_rate:.0%}",
    "length": lambda result: f"{result.acceptance_length or 0.0:.2f}",
    "K, mean": lambda result: f"{result.drafted / max(result.steps, 1):.2f}",
    "by K": lambda result: " ".join(map(str, result.steps_by_drafted)),
}
