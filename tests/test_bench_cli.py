"""``edge-runtime bench`` on the tiny bundle: what it prints, writes and resumes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result

from edge_runtime.bench import environments
from edge_runtime.bench.bandwidth import measure_speeds
from edge_runtime.bench.environments import PeerKind
from edge_runtime.bench.protocol.figures import PLAIN_LABEL
from edge_runtime.bench.protocol.record import read_report
from edge_runtime.bench.protocol.run import Bench
from edge_runtime.cli import bench_protocol, bench_rivals, main
from edge_runtime.errors import InputError
from edge_runtime.resident import Resident
from edge_runtime.text.tokenizer import Tokenizer

OPTIONS = ("--threads", "1", "--tokens", "16", "--rounds", "2", "--no-sampled", "--lengths", "4,80")


def bench(*options: str) -> Result:
    return CliRunner().invoke(main, ["bench", "--bundle", str(tiny.bundle()), *OPTIONS, *options])


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of a megabyte, and no process to look at the memory of."""
    monkeypatch.setattr(bench_protocol, "measure_speeds", lambda threads: measure_speeds(threads, 0.001, 1 << 20))
    monkeypatch.setattr(bench_protocol, "measure", lambda config: Resident(len(config.engine.drafter), 1, 1))


def test_it_shows_writes_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second part, the first is there; resumed, it is as it was."""
    path, html = tmp_path / "run.json", tmp_path / "new" / "run.html"
    real: Callable[..., Any] = Bench.episode
    begun: list[tuple[int, str]] = []

    def episode(self: Bench, number: int, domain: Any) -> Any:
        begun.append((number, domain.domain))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(self, number, domain)

    monkeypatch.setattr(Bench, "episode", episode)
    options = ("--domains", "technology")
    stopped = bench(*options, "--json", str(path))
    assert stopped.exit_code == 130
    before = read_report(path)
    assert len(before.answers) == 2 + 3 and not before.complete and before.peaks == ()
    done = bench(*options, "--resume", str(path), "--html", str(html))
    assert done.exit_code == 0, done.output
    assert begun == [(0, "technology"), (1, "technology"), (1, "technology")]
    after = read_report(path)
    assert after.answers[: len(before.answers)] == before.answers and after.complete
    assert after.started == before.started and len(after.speeds) > len(before.speeds)
    assert [(peak.drafter, peak.resident.peak) for peak in after.peaks] == [("none", 4), ("auto", 4)]
    assert "texts of 16 tokens: about " in done.stderr
    assert "1 domain of rounds known from the file" in done.stderr
    for words in ("Whole answers, plain against drafted", "What drafting did", "Draft lengths", "draft K=80", "Bundles",
                  "memory bandwidth and energy", "not measured: "):  # fmt: skip
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    facts = after.bundles["main"]
    assert facts.precision == "int8" and facts.nll > 1.0 and facts.read_bytes is not None
    assert "<svg" in html.read_text(encoding="utf-8")
    # Nothing is left to measure: the file is shown again.
    again = bench(*options, "--resume", str(path))
    assert len(begun) == 3 and again.exit_code == 0 and again.stdout == done.stdout
    other = bench(*options, "--resume", str(path), "--skip", "lengths")
    assert other.exit_code == 2 and "cannot be resumed: lengths was" in other.stderr and other.stderr.count("\n") == 1


def test_two_precisions_are_taken_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights with a draft and without stand for them; memory that cannot be measured loses nothing else."""

    def measure(config: Any) -> Resident:
        raise InputError("it does not load")

    monkeypatch.setattr(bench_protocol, "measure", measure)
    path = tmp_path / "run.json"
    options = ("--quick", "--skip", "lengths", "--json", str(path))
    found = bench(*options, "--beside", str(tiny.bundle_without_draft()))
    assert found.exit_code == 0, found.output
    assert found.stderr.count("peak memory is not measured: it does not load") == 1
    assert "not measured" in found.stdout
    assert "Precision x speculation" in found.stdout and "precision alone" in found.stdout
    report = read_report(path)
    assert {one.bundle for one in report.answers} == {"main", "beside"} and set(report.bundles) == {"main", "beside"}
    assert report.bundles["main"].nll == pytest.approx(report.bundles["beside"].nll, abs=1e-6)
    plain = [one.nll for one in report.answers if (one.prompt, one.method) == ("battery", PLAIN_LABEL)]
    assert len(plain) == 2 and plain[0] == pytest.approx(plain[1], abs=1e-6)


def test_peers_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours on the tiny bundle, beside a peer that works, one that does not, and one that is not installed."""
    fake = str(Path(__file__).with_name("fake_peer.py"))
    kinds = (
        PeerKind("fake", fake, "json", {"good": None, "refuses": None}, ()),
        PeerKind("absent", fake, "no_such_module", {"plain": None}, ()),
    )
    monkeypatch.setattr(environments, "peer_kinds", lambda: kinds)
    monkeypatch.setattr(bench_rivals, "_PREFIX_TOKENS", 40)
    monkeypatch.setattr(bench_rivals, "SAMPLE_TOKENS", 24)
    path, checkpoint = tmp_path / "run.json", tmp_path / "model.gguf"
    checkpoint.touch()
    options = ("--view", "rivals", "--peer-envs", str(tmp_path), "--threads", "1", "--tokens", "16", "--rounds", "2")
    common = ["bench", "--bundle", str(tiny.bundle()), *options]
    found = CliRunner().invoke(main, [*common, "--gguf", str(checkpoint), "--json", str(path)])
    assert found.exit_code == 0, found.output
    report = json.loads(path.read_text(encoding="utf-8"))
    rivals = {f"{one['kind']} {one['mode']}": one for one in report["rivals"]}
    named = ["ours plain", "ours auto", "fake good", "fake refuses", "absent plain"]
    assert report["complete"] and list(rivals) == named
    plain, auto = rivals["ours plain"], rivals["ours auto"]
    assert [one["tokens"] for one in plain["answers"]] == [one["tokens"] for one in auto["answers"]]
    assert len(plain["answers"]) == 4 and len(plain["firsts"]) == 2
    assert plain["nll"] == pytest.approx(auto["nll"], abs=1e-6)
    for words in ("Peers side by side", "Did not run", "no such architecture: gemma3", "not installed: `make peers`",
                  "first in peak memory", "first in ttft on a repeated prefix of 40 tokens"):  # fmt: skip
        assert words in " ".join(found.stdout.split())
    assert "2 rounds: about " in found.stderr and max(map(len, found.stdout.splitlines()[:8])) <= 100


def test_no_two_rounds_of_rivals_begin_alike() -> None:
    """A program that keeps prefixes would have read a prompt already that comes again."""
    tokenizer = Tokenizer(tiny.bundle() / "tokenizer.model")
    plan = bench_rivals._plan(tokenizer, {"rounds": 9, "tokens": 8, "threads": 1, "patience": 1.0})
    for kind in zip(*plan.questions, strict=True):
        assert len({one.ids[:16] for one in kind}) == len({one.name for one in kind}) == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--view rivals needs --gguf"),
        (("--gguf", "no/such.gguf"), "gguf: there is no no/such.gguf"),
        (("--gguf", "/", "--peers", "lama.cpp"), "none of llama.cpp"),
        (("--gguf", "/", "--peer-python", "llama.cpp"), "not KIND=PATH"),
        (("--gguf", "/", "--assistant", "no/such"), "assistant: there is no no/such"),
        (("--gguf", "/", "--tokens", "1000"), "tokens: at most"),
        (("--gguf", "/", "--html", "x.html"), "not with --html"),
        (("--gguf", "/", "--patience", "nan"), "not a finite number"),
    ],
)
def test_rivals_refuse_in_a_line(options: tuple[str, ...], words: str) -> None:
    found = CliRunner().invoke(main, ["bench", "--bundle", str(tiny.bundle()), "--view", "rivals", *options])
    assert found.exit_code == 2 and words in found.stderr


def test_other_views_take_no_option_of_rivals() -> None:
    for options in (("--peers", "llama.cpp"), ("--view", "claims", "--assistant", "x")):
        found = CliRunner().invoke(main, ["bench", "--bundle", str(tiny.bundle()), *options])
        assert found.exit_code == 2 and f"not with {options[-2]}" in found.stderr
