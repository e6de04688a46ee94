"""``edge-runtime compare`` on the tiny bundle: what it prints, writes and resumes, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result

from edge_runtime.bench.compare.record import read_report
from edge_runtime.bench.compare.study import Study
from edge_runtime.cli import main

QUICK = (
    "--quick",
    "--tokens",
    "16",
    "--drafters",
    "draft",
    "--policies",
    "threshold",
    "--no-sampled",
    "--threads",
    "1",
)


def compare(*options: str) -> Result:
    return CliRunner().invoke(main, ["compare", "--bundle", str(tiny.bundle()), *options])


def test_it_shows_writes_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the second domain, the first is there; resumed, it is as it was."""
    path = tmp_path / "report.json"
    real: Callable[..., Any] = Study.domain
    begun: list[str] = []

    def domain(self: Study, domain: Any, *more: Any) -> Any:
        begun.append(domain.domain)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(self, domain, *more)

    monkeypatch.setattr(Study, "domain", domain)
    options = (*QUICK, "--domains", "law,poetry")
    stopped = compare(*options, "--json", str(path))
    assert stopped.exit_code == 130
    before = read_report(path)
    assert [one.domain for one in before.domains] == ["law"] and not before.complete
    done = compare(*options, "--resume", str(path))
    assert done.exit_code == 0, done.output
    assert begun == ["law", "poetry", "poetry"]
    after = read_report(path)
    assert after.domains[0] == before.domains[0] and after.plain == before.plain and after.complete
    assert "1 domain known from the file" in done.stderr and "about" in done.stderr
    for words in ("Plain decoding", "Default policy, measured", "PROJECTION, not measured", "best fixed", "Floors"):
        assert words in done.stdout
    assert "draft auto threshold" in done.stdout and max(map(len, done.stdout.splitlines())) <= 100
    assert {"priced", "named", "search", "final"} <= {run.part for run in after.domains[1].runs}
    # What cannot be written is told before a text is decoded.
    nowhere = compare(*options, "--json", str(path / "report.json"))
    assert nowhere.exit_code == 2 and "report.json cannot be written: " in nowhere.stderr and len(begun) == 3
    # Nothing is left to measure: the file is shown again.
    again = compare(*options, "--resume", str(path), "--strict")
    assert len(begun) == 3 and again.exit_code == int("MISSED" in again.stdout)
    other = compare(*options, "--rounds", "3", "--resume", str(path))
    assert other.exit_code == 2 and "cannot be resumed" in other.stderr and other.stderr.count("\n") == 1
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == 1


def test_step_costs_alone() -> None:
    done = compare("--costs", "--threads", "1")
    assert done.exit_code == 0, done.output
    assert "one batch" in done.stdout and "lazy, 0.5" in done.stdout and "Floors" not in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--domains", "lw"], ["'lw'", "did you mean 'law'"]),
        (["--domains", "law,"], ["empty name"]),
        (["--drafters", "nobody"], ["drafters", "'nobody'", "lookup"]),
        (["--policies", "9"], ["policies", "'9'"]),
        (["--no-greedy", "--no-sampled"], ["neither greedy nor sampled"]),
        (["--temperature", "0"], ["--temperature"]),
        (["--rounds", "1"], ["--rounds"]),
        (["--tokens", "3"], ["--tokens"]),
        (["--skip", "lunch"], ["--skip"]),
        (["--plot", "a.jpg"], ["a.jpg", ".svg"]),
        (["--costs", "--json", "a.json"], ["--costs", "not with --json"]),
        (["--costs", "--strict"], ["not with --strict"]),
        (["--no-sampled", "--top-p", "0.9"], ["--no-sampled", "not with --top-p"]),
        (["--json", "/etc"], ["--json", "/etc cannot be written: it is a directory"]),
        (["--resume", "nowhere.json"], ["nowhere.json", "No such file"]),
        (["--bundle", "nowhere"], ["no bundle at nowhere"]),
        (["--domains", "rag"], ["rag: pumps has", "the context of 2048", "leave the domain out"]),
    ],
)
def test_what_is_wrong_is_told_in_a_line(options: list[str], words: list[str]) -> None:
    result = compare(*options)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = compare("--plot", "a.svg")
    assert (result.exit_code, result.stdout) == (2, "")
    where = "in the directory of edge-runtime's sources: pip install '.[plot]'"
    assert result.stderr == f"error: matplotlib is not installed; it comes with the extra 'plot', {where}\n"
