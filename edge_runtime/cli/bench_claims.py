"""What the project claims, held against other programs and against itself: ``edge-runtime bench --view claims``. Knows
what to show, measures nothing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..bench.against import PeerFigures, PeerSource, Plan, compare_peers
from ..bench.corpus import SAMPLE_TOKENS, prompts, sample_text
from ..bench.environments import chosen_kinds, python_of
from ..bench.process import OURS
from ..bench.serving import ServingFigures, compare_serving
from ..bench.speculation import PromptFigures, compare_plain, look_again
from ..bench.texts import Desk, Held, Law
from ..bench.verdict import NEVER_SLOWER, Verdict, engine_verdicts, serving_verdicts, speculation_verdicts
from ..console import counted, ends_tidily
from ..files import replace_text
from ..loading import LoadedBundle, LoadSettings, load_bundle
from ..sampling import SamplingParams
from ..telemetry.meter import Meter, board_meter
from .progress import nested_progress

PARTS = ("peers", "speculation", "serving")
_LAWS = (
    Law("greedy", SamplingParams(temperature=0.0)),
    Law("sampled", SamplingParams(temperature=1.0, top_k=64, top_p=0.95)),
)
_PEERS = ("llama.cpp", "transformers")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is measured, and how long."""

    bundle: Path
    gguf: Path | None
    """The checkpoint of the bundle, for the peers."""
    parts: tuple[str, ...]
    threads: int
    rounds: int
    tokens: int
    json_path: Path | None
    pythons: Mapping[str, Path]
    """Of peers that are named."""
    environments: Path
    """Of the others."""


@dataclass(slots=True)
class _Found:
    peers: tuple[PeerFigures, ...] = ()
    drafts: tuple[PromptFigures, ...] = ()
    serving: ServingFigures | None = None
    verdicts: list[Verdict] = field(default_factory=list)


def hold_claims(wanted: Wanted, console: Console) -> None:
    """Measure, show, and write."""
    settings = LoadSettings(threads=wanted.threads)
    loaded = load_bundle(wanted.bundle, settings)
    size = sum(entry.bytes for entry in loaded.manifest.files)
    found = _Found()
    try:
        with ends_tidily(), nested_progress() as progress, board_meter() as meter:
            if "peers" in wanted.parts:
                loaded.close()  # one model in memory at a time: it would count in no figure, and yet disturb
                context = min(1024, loaded.target.info.capacity)
                plan = Plan(rounds=wanted.rounds, threads=wanted.threads, context=context)
                found.peers = _peers(loaded, wanted, plan, progress)
                loaded = load_bundle(wanted.bundle, settings)
            if "speculation" in wanted.parts:
                found.drafts = _drafts(loaded, wanted, meter, progress)
            if "serving" in wanted.parts:
                prompt = prompts("open")[0].text
                found.serving = compare_serving(
                    loaded, prompt, rounds=wanted.rounds, max_tokens=wanted.tokens, progress=progress
                )
    finally:
        loaded.close()
    if found.peers:
        console.print(_peer_table(found.peers, wanted.threads))
        found.verdicts += engine_verdicts(found.peers, size)
    if found.drafts:
        console.print(_draft_table(found.drafts))
        console.print(_energy_line(found.drafts, meter))
        found.verdicts += speculation_verdicts(found.drafts)
    if found.serving is not None:
        found.verdicts += serving_verdicts(found.serving)
    for verdict in found.verdicts:
        console.print(str(verdict))
    if wanted.json_path is not None:
        _write(wanted.json_path, wanted, found)


def _drafts(
    loaded: LoadedBundle, wanted: Wanted, meter: Meter, progress: Callable[[str, int, int], None]
) -> tuple[PromptFigures, ...]:
    desk, tokens = Desk(loaded, Held()), wanted.tokens
    drafts = compare_plain(
        desk, prompts(), _LAWS, rounds=wanted.rounds, max_tokens=tokens, meter=meter, progress=progress
    )
    return look_again(
        desk, drafts, _LAWS,
        below=NEVER_SLOWER, rounds=3 * wanted.rounds, max_tokens=tokens, meter=meter, progress=progress,
    )  # fmt: skip


def _peers(
    loaded: LoadedBundle, wanted: Wanted, plan: Plan, progress: Callable[[str, int, int], None]
) -> tuple[PeerFigures, ...]:
    sources = [PeerSource(OURS, loaded.directory)]
    for kind in chosen_kinds(_PEERS):
        python = python_of(kind, wanted.pythons, wanted.environments)
        if wanted.gguf is None or python is None:
            why = "no --gguf was given" if wanted.gguf is None else f"{kind.module} is not installed (`make peers`)"
            click.echo(f"{kind.kind} is left out: {why}", err=True)
        else:
            sources.append(PeerSource(kind.kind, wanted.gguf, kind.program, python))
    ids = [loaded.tokenizer.encode(prompt.text) for prompt in prompts("open")]
    sample = loaded.tokenizer.encode(sample_text())[: SAMPLE_TOKENS + 1]
    return compare_peers(sources, ids, sample, plan, progress)


def _peer_table(peers: tuple[PeerFigures, ...], threads: int) -> Table:
    table = Table(title=f"Engines, {counted(threads, 'thread')}, medians of interleaved rounds; x: ours over that peer")
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
            figure.prompt, figure.law, f"{1 / figure.plain.tpot_s:.1f}", f"{1 / spec.tpot_s:.1f}", str(figure.speedup),
            rate, f"{spec.acceptance_length:.2f}", f"{figure.repeat_rate:.0%}",
        )  # fmt: skip
    return table


def _energy_line(drafts: tuple[PromptFigures, ...], meter: Meter) -> str:
    known = [figure.joules_per_token for figure in drafts if figure.joules_per_token is not None]
    if not known:
        return f"joules per token: not measured: {meter.reason}"
    plain, speculative = median(one for one, _ in known), median(other for _, other in known)
    return f"joules per token, medians over prompts: {plain:.3f} plain, {speculative:.3f} speculative ({meter.reason})"


def _write(path: Path, wanted: Wanted, found: _Found) -> None:
    report: dict[str, Any] = {
        "edge_runtime": __version__,
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()},
        "threads": wanted.threads,
        "bundle": str(wanted.bundle),
        "peers": [asdict(peer) for peer in found.peers],
        "speculation": [asdict(figure) for figure in found.drafts],
        "serving": None if found.serving is None else asdict(found.serving),
        "verdicts": [asdict(verdict) for verdict in found.verdicts],
    }
    replace_text(path, json.dumps(report, indent=1) + "\n")
