"""The harness: ratios, verdicts, and peers in processes of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_models import TinyConfig, export_tiny, save_tiny

from edge_runtime.bench.against import PeerFigures, PeerSource, Plan, compare_peers
from edge_runtime.bench.corpus import prompts, sample_text
from edge_runtime.bench.process import OURS, PeerProcess, order_for_ours
from edge_runtime.bench.stats import Ratio, paired_ratio
from edge_runtime.bench.texts import repeat_rate
from edge_runtime.bench.verdict import engine_verdicts
from edge_runtime.bundle import write_manifest
from edge_runtime.errors import EngineError


def test_a_ratio_is_taken_within_pairs() -> None:
    # The machine slows down threefold half way: the ratio does not care.
    baseline = [2.0] * 6 + [6.0] * 6
    ratio = paired_ratio(baseline, [second / 2 for second in baseline])
    assert ratio == Ratio(2.0, 2.0, 2.0, 12)


def test_an_interval_holds_the_median_and_repeats() -> None:
    ratio = paired_ratio([1.0, 1.2, 0.9, 1.1, 1.4], [1.0] * 5)
    assert ratio.low <= ratio.median == 1.1 <= ratio.high
    assert ratio == paired_ratio([1.0, 1.2, 0.9, 1.1, 1.4], [1.0] * 5)


@pytest.mark.parametrize("pairs", [([], []), ([1.0], [])])
def test_no_pairs_no_ratio(pairs: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="no pairs"):
        paired_ratio(*pairs)


def test_repeats_are_counted_by_eights() -> None:
    assert repeat_rate(range(30)) == 0.0
    assert repeat_rate([1, 2, 3, 4] * 10) == pytest.approx(29 / 33)
    assert repeat_rate([1, 2]) == 0.0


def test_the_corpus_has_both_kinds() -> None:
    assert len(prompts("open")) == 10 and len(prompts("copy")) >= 3
    assert len({prompt.name for prompt in prompts()}) == len(prompts())
    assert len(sample_text()) > 10_000


def _figures(kind: str, **changes: object) -> PeerFigures:
    ratio = None if kind == OURS else Ratio(1.2, 1.1, 1.3, 12)
    rows = {} if ratio is None else {4: Ratio(1.4, 1.3, 1.5, 12)}
    figures = PeerFigures(kind, 1.0, 2.97, 10.0, {4: 20.0}, 500_000_000, ratio, rows)
    return dataclasses.replace(figures, **changes)


def test_a_missed_claim_is_said() -> None:
    llama = _figures("llama.cpp", decode_speedup=Ratio(0.9, 0.8, 1.0, 12), nll=2.94)
    found = {v.claim: v.met for v in engine_verdicts([_figures(OURS), llama], 200_000_000)}
    assert found == {
        "NLL at most 0.02 above llama.cpp's": False,
        "plain decoding at least as fast as llama.cpp": False,
        "a forward of 4 rows at least 1.3x faster than llama.cpp's": True,
        "peak resident memory at most the bundle's size + 250 MB": False,
    }


def test_a_peer_that_is_absent_is_not_claimed_about() -> None:
    claims = [v.claim for v in engine_verdicts([_figures(OURS)], 300_000_000)]
    assert claims == ["peak resident memory at most the bundle's size + 250 MB"]


def test_a_peer_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"bench: ours: BundleError: no bundle at"):
        PeerProcess(OURS, order_for_ours("ours", tmp_path / "nowhere", 1, 64))


def test_our_engine_as_a_peer(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "hf", TinyConfig(layers=2))
    directory, manifest = export_tiny(tmp_path / "bundle", source, precision="fp32")
    for name in ("tokenizer.model", "NOTICE"):
        (directory / name).touch()
    from edge_runtime.bundle import FileEntry

    entries = tuple(FileEntry(path.name, path.stat().st_size, "") for path in sorted(directory.iterdir()))
    write_manifest(directory, dataclasses.replace(manifest, files=entries, licence_file="NOTICE"))
    plan = Plan(rounds=2, decode_tokens=4, verify_rows=(2, 4), verify_repeats=1, threads=1, context=100)
    (figures,) = compare_peers([PeerSource(OURS, directory)], [[2, 5, 9]], list(range(2, 40)), plan, lambda *_: None)
    assert figures.decode_ms > 0.0 and set(figures.verify_ms) == {2, 4}
    # Random weights of this size know nothing: about as unlikely as a guess among 512.
    assert 4.0 < figures.nll < 12.0
