"""``edge-runtime bench``: the figures of this machine, as tables and as JSON. Knows what to show, measures nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import __version__
from ..bench.against import OURS, PeerFigures, PeerSource, Plan, compare_peers
from ..bench.corpus import SAMPLE_TOKENS, prompts, sample_text
from ..bench.serving import ServingFigures, compare_serving
from ..bench.speculation import Case, PromptFigures, compare_plain, look_again
from ..bench.verdict import NEVER_SLOWER, Verdict, engine_verdicts, serving_verdicts, speculation_verdicts
from ..console import plain_console
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..parameters import Place, Written, refuse_useless
from ..sampling import SamplingParams
from ..telemetry.meter import Meter, board_meter
from .interrupt import ends_tidily

_GREEDY = Case("greedy", SamplingParams(temperature=0.0))
_SAMPLED = Case("sampled", SamplingParams(temperature=1.0, top_k=64, top_p=0.95))
_MODULES = {"llama.cpp": "llama_cpp", "transformers": "transformers"}


@click.command()
@click.option(
    "--bundle",
    default="bundles/gemma-3-270m",
    type=Place(),
    show_default=True,
    help="Bundle to measure.",
)
@click.option("--gguf", type=Place(), help="The checkpoint of the bundle, for the peers.")
@click.option(
    "--threads", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Of every program."
)
@click.option("--rounds", type=click.IntRange(2), default=12, show_default=True, help="Interleaved rounds.")
@click.option("--tokens", type=click.IntRange(16), default=64, show_default=True, help="Tokens of each text.")
@click.option("--only", type=click.Choice(["peers", "speculation", "serving"]), help="One part of it.")
@click.option("--json", "json_path", type=Written(), help="Write the figures here as well.")
@click.pass_context
def bench(
    said: click.Context,
    /,
    bundle: Path,
    gguf: Path | None,
    threads: int,
    rounds: int,
    tokens: int,
    only: str | None,
    json_path: Path | None,
) -> None:
    """Measure the engine against llama.cpp and transformers, drafting against plain decoding, and the daemon against
    none, side by side.
    """
    if only is not None:
        refuse_useless(said, f"--only {only}", ("tokens",) if only == "peers" else ("gguf",))
    loaded = load_bundle(bundle, LoadSettings(threads=threads))
    context = min(1024, loaded.target.info.capacity)
    size = sum(entry.bytes for entry in loaded.manifest.files)
    verdicts: list[Verdict] = []
    peers: tuple[PeerFigures, ...] = ()
    drafts: tuple[PromptFigures, ...] = ()
    serving: ServingFigures | None = None
    console = plain_console()
    try:
        with ends_tidily(), _progress() as progress, board_meter() as meter:
            if only in (None, "peers"):
                loaded.close()  # one model in memory at a time: it would count in no figure, and yet disturb
                peers = _peers(loaded, gguf, Plan(rounds=rounds, threads=threads, context=context), progress)
                loaded = load_bundle(bundle, LoadSettings(threads=threads))
            if only in (None, "speculation"):
                cases = (_GREEDY, _SAMPLED)
                decoder = loaded.decoder()
                drafts = compare_plain(
                    loaded, decoder, prompts(), cases,
                    rounds=rounds, max_tokens=tokens, meter=meter, progress=progress,
                )  # fmt: skip
                drafts = look_again(
                    loaded, decoder, drafts, cases,
                    below=NEVER_SLOWER, rounds=3 * rounds, max_tokens=tokens, meter=meter, progress=progress,
                )  # fmt: skip
            if only in (None, "serving"):
                prompt = prompts("open")[0].text
                serving = compare_serving(loaded, prompt, rounds=rounds, max_tokens=tokens, progress=progress)
    finally:
        loaded.close()
    if peers:
        console.print(_peer_table(peers, threads))
        verdicts += engine_verdicts(peers, size)
    if drafts:
        console.print(_draft_table(drafts))
        console.print(_energy_line(drafts, meter))
        verdicts += speculation_verdicts(drafts)
    if serving is not None:
        verdicts += serving_verdicts(serving)
    for verdict in verdicts:
        console.print(f"{'met ' if verdict.met else 'MISSED'} {verdict.claim}: {verdict.found}")
    if json_path is not None:
        _write(json_path, bundle, threads, peers, drafts, serving, verdicts)


def _peers(
    loaded: LoadedBundle, gguf: Path | None, plan: Plan, progress: Callable[[str, int, int], None]
) -> tuple[PeerFigures, ...]:
    sources = [PeerSource(OURS, loaded.directory)]
    for kind, module in _MODULES.items():
        if gguf is None or importlib.util.find_spec(module) is None:
            why = "no --gguf was given" if gguf is None else f"{module} is not installed"
            click.echo(f"{kind} is left out: {why}", err=True)
        else:
            sources.append(PeerSource(kind, gguf))
    ids = [loaded.tokenizer.encode(prompt.text) for prompt in prompts("open")]
    sample = loaded.tokenizer.encode(sample_text())[: SAMPLE_TOKENS + 1]
    return compare_peers(sources, ids, sample, plan, progress)


def _peer_table(peers: tuple[PeerFigures, ...], threads: int) -> Table:
    table = Table(title=f"Engines, {threads} threads, medians of interleaved rounds; x: ours over that peer")
    for column in ("program", "load s", "NLL", "ms/token", "rows 2", "rows 4", "rows 8", "peak MB"):
        table.add_column(column, justify="left" if column == "program" else "right")
    for peer in peers:
        rows = [f"{peer.verify_ms[count]:.1f}" for count in sorted(peer.verify_ms)]
        table.add_row(
            peer.kind, f"{peer.load_s:.1f}", f"{peer.nll:.4f}", f"{peer.decode_ms:.1f}", *rows,
            f"{peer.peak_bytes / 1e6:.0f}",
        )  # fmt: skip
        if peer.decode_speedup is not None:
            ratios = [str(peer.verify_speedup[count]) for count in sorted(peer.verify_speedup)]
            table.add_row("", "", "", str(peer.decode_speedup), *ratios, "", end_section=True)
    return table


def _draft_table(drafts: tuple[PromptFigures, ...]) -> Table:
    table = Table(title="Speculative over plain decoding of the same bundle, by prompt")
    for column in ("prompt", "law", "tok/s plain", "tok/s spec", "speed-up", "accepted", "length", "repeats"):
        table.add_column(column, justify="left" if column in ("prompt", "law") else "right")
    for figure in drafts:
        spec = figure.speculative
        assert spec.tpot_s is not None and figure.plain.tpot_s is not None and spec.acceptance_length is not None
        rate = "-" if spec.acceptance_rate is None else f"{spec.acceptance_rate:.0%}"
        table.add_row(
            figure.prompt, figure.case, f"{1 / figure.plain.tpot_s:.1f}", f"{1 / spec.tpot_s:.1f}", str(figure.speedup),
            rate, f"{spec.acceptance_length:.2f}", f"{figure.repeat_rate:.0%}",
        )  # fmt: skip
    return table


def _energy_line(drafts: tuple[PromptFigures, ...], meter: Meter) -> str:
    known = [figure.joules_per_token for figure in drafts if figure.joules_per_token is not None]
    if not known:
        return f"joules per token: not measured: {meter.reason}"
    plain, speculative = median(one for one, _ in known), median(other for _, other in known)
    return f"joules per token, medians over prompts: {plain:.3f} plain, {speculative:.3f} speculative ({meter.reason})"


def _write(
    path: Path,
    bundle: Path,
    threads: int,
    peers: tuple[PeerFigures, ...],
    drafts: tuple[PromptFigures, ...],
    serving: ServingFigures | None,
    verdicts: list[Verdict],
) -> None:
    report: dict[str, Any] = {
        "edge_runtime": __version__,
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()},
        "threads": threads,
        "bundle": str(bundle),
        "peers": [asdict(peer) for peer in peers],
        "speculation": [asdict(figure) for figure in drafts],
        "serving": None if serving is None else asdict(serving),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    console = plain_console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=max(done, 0), total=total)

        yield report
