"""A comparison as a picture, where matplotlib is there: it is heavier than the rest of the tests' packages together."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_runs import domain, priced, run

from edge_runtime.bench.compare.plot import check_plot, plot
from edge_runtime.bench.compare.record import SCHEMA, Report, Settings, StepCosts
from edge_runtime.cost import CostTable, cost_lines
from edge_runtime.errors import ConfigError

matplotlib = pytest.importorskip("matplotlib", reason="the plot extra is not installed")


def _report() -> Report:
    settings = Settings(
        machine={}, bundle="tiny", bundle_sha256="0", prompts_sha256="0", laws={"sampled": "temperature 1.0"},
        methods=(), searched=(), curves=("flat",), rounds=2, named_rounds=1, finalists=1, prompts_per_domain=1,
        tokens=33, head="full", threads=0,
    )  # fmt: skip
    table = CostTable((0.01, 0.02), (0.01, 0.015), draft_s=0.0)
    finals = [run(1.2), run(1.1, round=1), run(1.3, method="lookup K=2")]
    return Report(
        SCHEMA, "0", settings, {"full": 10.0},
        (domain("law", "open", *finals, priced(1.4, "flat")), domain("rag", "copy", run(2.0))),
        (StepCosts(0.5, cost_lines([0.5], table, 3)),),
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_says_what_is_measured_and_what_is_not(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"compare.{suffix}"
    check_plot(path)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(_report(), path)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        text = path.read_text(encoding="utf-8")
        for words in ("a projection, not measured", "best fixed by search", "flat curve", "rag", "acceptance 0.5"):
            assert words in text


def test_a_picture_of_nothing_yet(tmp_path: Path) -> None:
    empty = Report(SCHEMA, "0", _report().settings, {"full": 10.0})
    plot(empty, tmp_path / "compare.svg")


def test_only_formats_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.svg, \.png, \.pdf"):
        check_plot(tmp_path / "compare.jpg")
