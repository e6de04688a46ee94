"""Steps of several sessions against turns: drafts whose fate is given, answers run to the end, what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

sys.path.append(str(Path(__file__).parent / "conformance"))

from random_gemma import export_random, save_random

from edge_runtime.bench.batch.record import BATCH, TURNS, Memory
from edge_runtime.bench.batch.replay import (
    Answer,
    answers,
    expected,
    lengths_alone,
    lengths_together,
    price_of,
    uniform_length,
)
from edge_runtime.bench.batch.run import ALONE, PADDED, WAYS, Prices, measure_steps, measure_ways
from edge_runtime.bench.batch.stepping import Pair, Sizes
from edge_runtime.bundle import FileEntry, Manifest, write_manifest
from edge_runtime.cli import bench_batch, main

Made = tuple[Path, Manifest]
FREE = Prices(lambda rows: 1.0 + 0.05 * rows, lambda rows: 1.0 + 0.05 * rows)


def saved(folder: Path, checkpoint: Path, **recipe: int) -> Made:
    manifest = export_random(folder, checkpoint, precision="fp32", max_context=256, **recipe)
    for name in ("tokenizer.model", "NOTICE"):
        (folder / name).touch()
    files = tuple(FileEntry(path.name, path.stat().st_size, "") for path in folder.iterdir())
    manifest = replace(manifest, files=files, licence_file="NOTICE")
    write_manifest(folder, manifest)
    return folder, manifest


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("batch")
    save_random(place / "checkpoint", "gemma2")
    return place


@pytest.fixture(scope="module")
def made(place: Path) -> Made:
    return saved(place / "lanes", place / "checkpoint", lanes=2)


def test_a_draft_is_kept_until_the_first_wrong_place() -> None:
    answer = Answer(0.5, np.array([True, True, False, True]))
    assert [answer.kept(place, 7) for place in range(4)] == [2, 1, 0, 1]
    assert answer.kept(0, 1) == 1


def test_replayed_answers_keep_what_they_are_expected_to() -> None:
    (answer,) = answers([0.6], 4_000, seed=1)
    kept = [answer.kept(place, 3) + 1 for place in range(len(answer.guessed) - 3)]
    assert np.mean(kept) == pytest.approx(expected(0.6, 3), rel=0.05)


def test_own_lengths_are_the_best_there_are() -> None:
    """Against every choice of K."""
    rates, most = (0.3, 0.6, 0.9), 4
    for price in (FREE.batch, price_of({1: 1.0, 4: 1.1, 8: 2.0, 15: 4.0})):
        found = lengths_together(rates, price, most)

        def speed(lengths: tuple[int, ...], price: object = price) -> float:
            gain = sum(expected(rate, drafts) for rate, drafts in zip(rates, lengths, strict=True))
            return gain / price(sum(lengths) + len(lengths))  # type: ignore[operator]

        best = max(product(range(most + 1), repeat=len(rates)), key=speed)
        assert speed(tuple(found)) == pytest.approx(speed(best))
        uniform = uniform_length(rates, price, most)
        assert speed((uniform,) * 3) == pytest.approx(max(speed((drafts,) * 3) for drafts in range(most + 1)))
    assert lengths_alone(rates, FREE.turns, 7) == sorted(lengths_alone(rates, FREE.turns, 7))


def test_prices_lie_on_a_line_between_what_was_measured() -> None:
    price = price_of({1: 1.0, 3: 2.0})
    assert [price(1), price(2), price(3), price(5)] == [1.0, 1.5, 2.0, 3.0]


def test_steps_agree_and_all_ways_write_the_same_answers(made: Made) -> None:
    """More sessions than lanes, too."""
    pair = Pair(*made, Sizes(slots=4, context=20, capacity=44, drafts=7, threads=1))

    def progress(what: str, done: int, total: int) -> None:
        assert done < total

    cells = measure_steps(pair, 20, (1, 4), 2, progress)
    assert [(cell.sessions, cell.drafts) for cell in cells] == list(product((1, 4), (0, 1, 3, 7)))
    assert all(cell.apart < 1e-4 and not cell.other_argmax for cell in cells)
    ways = {(way.way, way.lengths): way for way in measure_ways(pair, 20, 3, 12, 2, FREE, progress)}
    pair.close()
    assert tuple(ways) == WAYS and ways[WAYS[0]].over_turns.median == 1.0
    ragged, padded = ways[(BATCH, ALONE)], ways[(PADDED, ALONE)]
    assert ragged.drafts == padded.drafts == ways[WAYS[0]].drafts and len(set(ragged.drafts)) == 3
    assert ragged.padded == 0.0 < padded.padded and ragged.idle == padded.idle > 0.0
    for (way, lengths), found in ways.items():
        assert (found.idle > 0.0) == (way != TURNS and lengths != "none")
        assert (found.rejected > 0.0) == (lengths != "none")
        assert found.tokens_per_s > 0.0 and 0.0 < found.first_done <= 1.0


def test_the_view_shows_and_writes(made: Made, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def view(bundle: Path, *options: str) -> Result:
        return CliRunner().invoke(main, ["bench", "--view", "batch", "--bundle", str(bundle), *options])

    without, _ = saved(place / "plain", place / "checkpoint")
    refused = view(without)
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1 and "--lanes 8 --output" in refused.stderr
    assert refused.stderr.count("\n") == 1
    vain = view(without, "--html", str(tmp_path / "page.html"))
    assert vain.exit_code == 2 and "not with --html" in vain.stderr
    longer = view(made[0], "--tokens", "200")
    assert longer.exit_code == 2 and "fewer --tokens" in longer.stderr

    monkeypatch.setattr(bench_batch, "measure_memory", lambda place, threads: (Memory("plain", 1 << 20, 1 << 19),))
    monkeypatch.setattr(bench_batch, "SESSIONS", (1, 4))
    path = tmp_path / "batch.json"
    done = view(made[0], "--quick", "--threads", "1", "--json", str(path))
    assert done.exit_code == 0 and "turns / batch" in done.stdout and "padded" in done.stdout
    report = json.loads(path.read_text())
    assert len(report["steps"]) == 8 and len(report["ways"]) == len(WAYS) and report["lanes"] == 2
