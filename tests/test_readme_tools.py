"""tools/: the README's tables from records, and its picture from a command."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from compare_runs import domain, priced, run
from protocol_runs import answers, report

from edge_runtime.bench.compare import record as compare
from edge_runtime.bench.records import write_record

ROOT = Path(__file__).parent.parent
FEW = tuple(one for one in answers(2, ("main",), (), None) if one.domain in ("law", "poetry"))


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    # Of an interval: what it is, is another test's.
    monkeypatch.setattr("edge_runtime.bench.stats._RESAMPLES", 20)


def tool(name: str) -> Any:
    return import_module(name)


def compared(**changes: Any) -> compare.Report:
    settings = compare.Settings(
        machine={}, bundle="b", bundle_sha256="ab", prompts_sha256="cd", laws={"greedy": "", "sampled": ""}, methods=(),
        searched=(), curves=("flat", "steep"), rounds=1, named_rounds=1, finalists=1, prompts_per_domain=1, tokens=33,
        head="screened", threads=2,
    )  # fmt: skip
    return compare.Report(compare.SCHEMA, "0.1.0", settings, {"screened": 20.0}, **changes)


def test_a_record_becomes_a_table_with_its_machine() -> None:
    few = report(two=False, answers=FEW)
    text = tool("readme_table").by_domain(few)
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 * 3, "two laws; two kinds of text, and all"
    short = [line for line in tool("readme_table").measured(few).splitlines() if line.startswith("|")]
    assert short == [head, rule, *(row for row in rows if row.startswith(("| greedy | all", "| sampled | all")))]
    assert {line.count("|") for line in (head, rule, *rows)} == {9}
    assert "**made up, 2 of 2 cores, 8.0 GB**" in text and "2026-11-30 12:00 UTC" in text and "NLL 2.9877" in text
    # 101 tokens: 0.1 s of prompt and 100 times 20.22 ms, or 16.18.
    assert "| greedy | law | 2.12 | 1.72 | 49.5 | 61.8 | 2.00 | 1.24 [1.24, 1.24] |" in rows
    assert "not finished" not in text
    assert "not finished" in tool("readme_table").measured(report(two=False, answers=FEW, complete=False))


def test_what_is_projected_is_priced_and_nothing_else() -> None:
    records = (
        domain("law", "open", run(3.0), priced(1.4, "flat"), priced(1.1, "steep")),
        domain("json", "copy", priced(2.0, "flat"), priced(9.0, "flat", repeat_rate=0.9)),
    )
    rows = tool("readme_table").projected(compared(domains=records)).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| flat", "| flat", "| steep"]
    assert [row.split(" | ")[4].split("x")[0] for row in rows] == ["1.40", "2.00", "1.10"]


def test_tables_go_between_their_marks_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "README.md"
    write_record(one, report(two=False, answers=FEW))
    write_record(other, compared(domains=(domain("law", "open", priced(1.4, "flat")),)))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    main = tool("readme_table").main
    assert main([str(one), "--projected", str(other), "--into", str(page)]) == 0
    made = page.read_text(encoding="utf-8")
    assert "made up, 2 of 2 cores" in made.split("## Projected")[0] and "1.40x" in made.split("## Projected")[1]
    assert main([str(one), "--projected", str(other), "--into", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == made
    for before, after in zip(text.split("<!-- "), made.split("<!-- "), strict=True):
        if not before.startswith(("measured: begin", "projected: begin")):
            assert before == after
    assert main([str(one)]) == 0 and "| greedy | law |" in capsys.readouterr().out
    assert "| greedy | law |" not in made
    second = tmp_path / "bench.md"
    second.write_text((ROOT / "docs/bench.md").read_text(encoding="utf-8"), encoding="utf-8")
    assert main([str(one), "--into", str(page), "--into", str(second)]) == 0
    assert "| greedy | law |" in second.read_text(encoding="utf-8")
    page.write_text("no marks", encoding="utf-8")
    assert main([str(one), "--into", str(page)]) == 2
    assert main([str(tmp_path / "none.json")]) == 2
    assert capsys.readouterr().err.count("error: ") == 2


def test_a_picture_is_what_the_command_printed(tmp_path: Path) -> None:
    place = tmp_path / "a.svg"
    says = "printf '\\033[31mred\\033[0m <b> & 1.23x\\n'; test -t 1 && echo terminal >&2"
    assert tool("record_terminal").main([str(place), "--", "sh", "-c", says]) == 0
    check_picture(place, "red <b> & 1.23x", "terminal", "printf")


def test_a_command_that_fails_gives_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, main = tmp_path / "a.svg", tool("record_terminal").main
    assert main([str(place), "--", "sh", "-c", "echo oh; exit 3"]) == 3
    assert main([str(place), "--", "printf", "\\033[2Kgone"]) == 2
    assert main([str(place), "--", str(tmp_path / "none")]) == 2
    assert main([str(place)]) == 2
    assert not place.exists() and capsys.readouterr().err.count("error: ") == 3


def test_the_picture_of_the_readme_is_whole() -> None:
    typed = "$ edge-runtime demo --bundle bundles/gemma-3-270m"
    shown = check_picture(ROOT / "docs/demo.svg", typed, "speed-up", "tok/s")
    assert "/root" not in shown and "/home" not in shown


def check_picture(place: Path, *words: str) -> str:
    """Well-formed, holding the words, and asking for nothing from elsewhere."""
    source = place.read_text(encoding="utf-8")
    root = ET.fromstring(source)
    shown = "".join(root.itertext()).replace("\xa0", " ")
    for word in words:
        assert word in shown, word
    assert source.count("http") == 1, "the name of the format"
    assert "@import" not in source and "@font-face" not in source
    return shown
