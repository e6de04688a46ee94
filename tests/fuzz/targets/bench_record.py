"""Files that a measurement left and is resumed from: views of the bench, soaks, recordings of telemetry, features. Of
what is read, all is shown that a command would show.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from rich.console import Console

from edge_runtime.bench import stats
from edge_runtime.bench.compare import record as compare
from edge_runtime.bench.compare.figures import DEFAULT_LABEL
from edge_runtime.bench.compare.floors import floors
from edge_runtime.bench.growth import html as growth_page
from edge_runtime.bench.growth import plots as growth_plots
from edge_runtime.bench.growth import record as growth
from edge_runtime.bench.growth import sheets as growth_sheets
from edge_runtime.bench.protocol import html as protocol_page
from edge_runtime.bench.protocol import plots as protocol_plots
from edge_runtime.bench.protocol import record as protocol
from edge_runtime.bench.protocol import sheets as protocol_sheets
from edge_runtime.bench.protocol.figures import PLAIN_LABEL
from edge_runtime.bench.protocol.svg import draw
from edge_runtime.bench.soak import figures as soak_figures
from edge_runtime.bench.soak import record as soak
from edge_runtime.bench.soak.verdicts import unjudged, verdicts
from edge_runtime.cli.compare_tables import tables
from edge_runtime.errors import ConfigError
from edge_runtime.telemetry.recording import read_recording
from edge_runtime.telemetry.sample import Sample
from export.training.features import open_part, read_part

from ..examples import example, words
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = ConfigError
NAME = "part.json"
_KNOWN = [
    *words(compare.Report), *words(growth.Report), *words(protocol.Report), *words(Sample),
    "rows", "length", "width", "done",
]  # fmt: skip
Show = Callable[[Any], object]


def _of_growth(report: growth.Report) -> None:
    _shown(growth_page.cards(report), growth_sheets.sheets(report), growth_plots.plots(report))


def _of_protocol(report: protocol.Report) -> None:
    _shown(protocol_page.cards(report), protocol_sheets.sheets(report), protocol_plots.plots(report))


def _of_comparison(report: compare.Report) -> None:
    floors(report.domains, tuple(report.settings.laws))
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, width=100, markup=False)
        for table in tables(report):
            console.print(table)


def _shown(cards: Any, sheets: Any, plots: Any) -> None:
    assert "nan" not in "".join([*map(str, cards), *map(str, sheets), *map(draw, plots)])


def _of_soak(lines: Sequence[soak.Line]) -> None:
    with patch.object(soak_figures, "_RESAMPLES", 8):
        figures = soak_figures.summed_up(lines)
    told = [*map(str, verdicts(figures)), *unjudged(figures)]
    assert "nan" not in " ".join(told)


READ: tuple[tuple[Callable[[Path], Any], Show], ...] = (
    (compare.read_report, _of_comparison),
    (growth.read_report, _of_growth),
    (protocol.read_report, _of_protocol),
    (read_recording, str),
    (soak.read_lines, _of_soak),
)


def prepare(place: Path) -> None:
    np.save(place / "tokens.npy", np.zeros((2, 4), np.int32))
    np.save(place / "hidden.npy", np.zeros((2, 4, 8), np.float16))


def seeds() -> list[bytes]:
    trees = [_comparison(), _growth(), _protocol()]
    sample = example(Sample) | {"memory": None, "zones": [], "fan": 0.5}
    recording = "\n".join(json.dumps(sample | {"time_s": float(second)}) for second in range(3))
    part = {"target": "t", "rows": 2, "length": 4, "width": 8, "done": 1}
    each = [json.dumps(tree).encode() for tree in (*trees, sample)]
    soaked = b"".join(msgspec.json.encode(line) + b"\n" for line in _soak())
    return [*each, soaked, json.dumps(part).encode(), recording.encode()]


def _comparison() -> Any:
    tree = example(compare.Report)
    (domain,) = tree["domains"]
    (run,) = domain["runs"]
    parts = [(part, method) for part in ("final", "named", "search") for method in (DEFAULT_LABEL, "a")]
    domain["runs"] = [{**run, "part": part, "method": method, "curve": None} for part, method in parts]
    domain["runs"].append({**run, "part": "priced", "method": DEFAULT_LABEL})
    return tree


def _growth() -> Any:
    tree = example(growth.Report)
    for steps in (tree["context"], tree["models"][0]):
        (step,) = steps["steps"]
        steps["steps"] = [{**step, "round": 0, "k": k, "drafted": k, "context": at} for k in (0, 1) for at in (1, 9)]
    (shared,) = tree["sessions"]["runs"]
    tree["sessions"]["runs"] = [{**shared, "round": 0, "sessions": count} for count in (1, 2)]
    tree["context"]["prefills"][0]["round"] = 0
    return tree


def _soak() -> list[soak.Line]:
    """Two rests' worth of everything, and enough of it for a quarter to have two of each."""
    found: list[soak.Line] = [soak.Settings(soak.SCHEMA, "c", "s", {}, "b", 1.0, 1.0, 1, 1, 1, "o", "sysfs", 60.0, 1)]
    for lap in range(8):
        at_s = 10.0 * lap
        found += [
            soak.Happening(at_s, at_s + 5.0, "hot", True),
            soak.Answer(at_s, at_s + 1.0, "chat", "chat 0", 0, "streamed", "right", "", "", 0.2, 0.01, 32),
            soak.Answer(at_s, at_s + 1.0, "rag", "rag 0", 0, "whole", "refused", "critical: temperature", "x"),
            soak.Look(at_s, 50.0 + 2.0 * lap, "critical", lap, False, 0.9),
            soak.Checkpoint(at_s, lap, 9, 8, 7, 6, 5.0, 4.0, 0, 0, ()),
            soak.Probe(at_s, lap, 0.2, 0.01, 1.0, 0.1),
        ]
    return [*found, soak.End(80.0, "complete")]


def _protocol() -> Any:
    tree = example(protocol.Report)
    (one,) = tree["answers"]
    one |= {"round": 0, "tokens": 9}
    tree["settings"]["lengths"] = ["b"]
    labels = (("rounds", PLAIN_LABEL), ("rounds", DEFAULT_LABEL), ("lengths", PLAIN_LABEL), ("lengths", "b"))
    tree["answers"] = [{**one, "part": part, "method": label} for part, label in labels]
    return tree


def mutate(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if len(lines) > 1 and rng.randrange(4):  # a record of lines: one of them
        at = rng.randrange(len(lines))
        lines[at] = edit_json(lines[at], rng, _KNOWN) + b"\n" * rng.randrange(2)
        return b"".join(lines)
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    judge.either([*((_read_and_shown(*one), path) for one in READ), (read_part, path.parent), (_resumed, path.parent)])


def _read_and_shown(reader: Callable[[Path], Any], show: Show) -> Callable[[Path], object]:
    def both(path: Path) -> object:
        report = reader(path)
        with patch.object(stats, "_RESAMPLES", 8):
            return show(report)

    return both


def _resumed(place: Path) -> None:
    part = open_part(place, 2, 4, 8, {"target": "t"}, held=False)
    assert 0 <= part.done <= part.size
