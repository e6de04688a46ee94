"""``edge-runtime bench --view batch``: several sessions in one step against taking turns. Knows what to ask and to
show, measures nothing itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console

from .. import __version__
from ..bench.batch.memory import measure_memory
from ..bench.batch.record import SCHEMA, BatchReport
from ..bench.batch.run import DRAFTS, RATES, SESSIONS, measure_steps, measure_ways, prices
from ..bench.batch.stepping import Pair, Sizes
from ..bench.machine import machine
from ..bench.protocol.sheets import Sheet
from ..bench.records import begin_file, command, started, write_record
from ..bundle import TARGET, read_manifest, verify_files
from ..console import counted, ends_tidily
from ..errors import ConfigError
from .progress import nested_progress
from .sheets import table_of

_CONTEXT = 128
"""Tokens that each session holds: a step of a longer one costs more in attention, the same in both ways."""
_WAYS_FOR = (4, 8)
"""Sessions whose answers are run to the end."""
_QUICK = 2


def measure_batch(given: dict[str, Any], console: Console) -> None:
    """Raises ``ConfigError`` for a bundle without lanes, before anything is measured."""
    directory, quick = given["bundle"], given["quick"]
    manifest = read_manifest(directory)
    model = manifest.model(TARGET)
    if model.lanes is None:
        source, precision = (str(manifest.recipe.get(key, key.upper())) for key in ("source", "precision"))
        export = f"edge-export export --source {shlex.quote(source)} --precision {precision} --lanes 8"
        raise ConfigError(f"{directory} has no lanes: {export} --output {shlex.quote(str(directory))}-lanes has them")
    rounds, tokens = given["rounds"] or (_QUICK if quick else 12), given["tokens"] or (16 if quick else 64)
    capacity = _CONTEXT + tokens + DRAFTS[-1] + 1
    if capacity > model.max_context:
        raise ConfigError(f"{directory} holds {model.max_context} tokens: {capacity} are needed; give fewer --tokens")
    verify_files(directory, manifest, hashes=False)
    path = given["json_path"]
    report = BatchReport(
        schema=SCHEMA, edge_runtime=__version__, command=command(), machine=machine(), bundle=str(directory),
        started=started(), precision=model.precision,
        lanes=model.lanes.count, threads=given["threads"], rounds=rounds, tokens=tokens, context=_CONTEXT,
        rates=RATES, steps=(), ways=(), memory=(),
    )  # fmt: skip
    if path is not None:
        begin_file(path, report)
    with ends_tidily():
        report = _measured(report, given, quick)
    if path is not None:
        write_record(path, report)
    for sheet in batch_sheets(report):
        console.print(table_of(sheet))


def _measured(report: BatchReport, given: dict[str, Any], quick: bool) -> BatchReport:
    directory = given["bundle"]
    sizes = Sizes(SESSIONS[-1], report.context, report.context + report.tokens + DRAFTS[-1] + 1, DRAFTS[-1],
                  report.threads)  # fmt: skip
    with nested_progress() as progress:
        # In processes of their own, while nothing is loaded here.
        memory = measure_memory(directory, report.threads)
        pair = Pair(directory, read_manifest(directory), sizes)
        try:
            steps = measure_steps(pair, report.context, SESSIONS, report.rounds, progress)
            price = prices(steps)
            ways = [
                way
                for sessions in (_WAYS_FOR[:1] if quick else _WAYS_FOR)
                for way in measure_ways(
                    pair, report.context, sessions, report.tokens, max(2, report.rounds // 3), price, progress
                )
            ]
        finally:
            pair.close()
    return replace(report, steps=tuple(steps), ways=tuple(ways), memory=memory)


def batch_sheets(report: BatchReport) -> Iterator[Sheet]:
    steps = tuple(
        (
            str(cell.sessions), str(cell.drafts), f"{1e3 * cell.turns_s:.1f}", f"{1e3 * cell.batch_s:.1f}",
            str(cell.speedup), f"{cell.apart:.1g}", str(cell.other_argmax),
        )
        for cell in report.steps
    )  # fmt: skip
    yield Sheet(
        f"A step of all sessions, {report.precision}, {report.lanes} lanes, "
        f"{counted(report.threads, 'thread')}, {report.context} tokens each",
        ("sessions", "K", "turns ms", "batch ms", "turns / batch", "apart", "other"), 1, steps,
        f"Medians of {report.rounds} rounds and 95% intervals. apart: largest difference of a candidate's logit; "
        "other: rows with another best token.",
    )  # fmt: skip
    ways = tuple(
        (
            str(way.sessions), way.way, way.lengths, " ".join(map(str, way.drafts)), f"{way.tokens_per_s:.1f}",
            str(way.over_turns), f"{way.rejected:.0%}", f"{way.padded:.0%}", f"{way.idle:.0%}", f"{way.first_done:.0%}",
        )
        for way in report.ways
    )  # fmt: skip
    yield Sheet(
        f"Answers of {report.tokens} tokens, drafts kept at rates of {', '.join(map(str, report.rates))} in turn",
        ("sessions", "way", "K", "of each", "tok/s", "over turns", "rejected", "padded", "idle", "first"), 4, ways,
        "Drafts cost nothing here, and all ways commit the same tokens. own: each session's best K, that way; uniform: "
        "the best one for all; alone: each one's best when taking turns; padded: all lanes as long as the longest. "
        "rejected, padded: shares of rows; idle: lanes that were done before the last; first: when the first answer "
        "was done.",
    )  # fmt: skip
    yield Sheet(
        "Memory of a process",
        ("loaded", "resident MB", "anonymous MB"), 1,
        tuple((one.loaded, f"{one.resident / 1e6:.0f}", f"{one.anonymous / 1e6:.0f}") for one in report.memory),
        "One slot of 256 tokens. lanes: the body with lanes in place of the plain one.",
    )  # fmt: skip
