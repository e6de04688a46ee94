"""Peers side by side: each under a Python of its own, whatever becomes of it; verdicts of made-up records."""

from __future__ import annotations

import ast
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge_runtime.bench import environments
from edge_runtime.bench.environments import (
    PeerKind,
    chosen_kinds,
    make_environments,
    named_pythons,
    peer_kinds,
    python_in,
    python_of,
)
from edge_runtime.bench.process import OURS, PROGRAMS, Order, PeerProcess
from edge_runtime.bench.rivals.figures import DEFAULT, PLAIN, figures, verdicts
from edge_runtime.bench.rivals.record import Answer, Entrant, FirstToken, PromptKind, Report, Rival, Settings
from edge_runtime.bench.rivals.run import Document, Plan, Question, Race
from edge_runtime.errors import ConfigError, EngineError

FAKE = Path(__file__).with_name("fake_peer.py")
_KINDS: tuple[PromptKind, ...] = ("open", "copy")


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An environment in which nothing is installed."""
    path = python_in(tmp_path / "bare")
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n', encoding="ascii")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def serve(mode: str, python: Path, patience_s: float = 60.0) -> PeerProcess:
    return PeerProcess("fake", Order("serve", str(FAKE), "model.gguf", 1, 64, mode), python, patience_s)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("refuses", "bench: fake: RuntimeError: no such architecture: gemma3"),
        ("dies", "bench: fake ended: Segmentation fault"),
        ("mumbles", "bench: fake answers nonsense: 'Loading weights... done'"),
    ],
)
def test_a_peer_that_does_not_start_says_why_in_a_line(mode: str, words: str, bare_python: Path) -> None:
    with pytest.raises(EngineError) as told:
        serve(mode, bare_python)
    assert str(told.value) == words


def test_a_peer_that_hangs_is_ended(bare_python: Path) -> None:
    with pytest.raises(EngineError, match=r"fake gave no answer within 0\.1 s"):
        serve("hangs", bare_python, 0.1)


def test_a_python_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="nowhere cannot be started: No such file"):
        serve("good", tmp_path / "nowhere")


def test_what_a_peer_started_ends_with_it(bare_python: Path) -> None:
    with serve("leaves a child", bare_python) as peer:
        child = Path("/proc", peer.greeting["weights"])
        assert child.exists()
    # Whoever it was left to may be slow to collect it.
    until_s = time.monotonic() + 10.0
    while _lives(child) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not _lives(child)


def _lives(process: Path) -> bool:
    try:
        return "State:\tZ" not in (process / "status").read_text(encoding="ascii")
    except OSError:
        return False


def plan(rounds: int = 2) -> Plan:
    questions = tuple(tuple(Question(f"{which} {n}", which, (2, n)) for which in _KINDS) for n in range(rounds))
    return Plan(questions, tuple(Document(2, (5, 6, 7), (5, 6, 8)) for _ in range(rounds)), (1, 2, 3), 4, 1, 64, 60.0)


def race(entrants: Sequence[Entrant]) -> dict[str, Rival]:
    with Race(entrants, plan()) as running:
        running.load(lambda *_: None)
        assert list(running.rounds(lambda *_: None)) == [-1, 0]
        running.finish(lambda *_: None)
        return running.rivals


def test_one_that_fails_stops_no_other(bare_python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model.gguf"
    source.write_text("weights ", encoding="ascii")
    odd = ("refuses", "words", "list", "short", "no time", "negative", "fails later", "not a number")
    entrants = [Entrant("fake", mode, str(FAKE), bare_python, source) for mode in ("good", *odd)]
    entrants.append(Entrant("absent", "plain", str(FAKE), None, source, missing="not installed: `make peers`"))
    rivals = race(entrants)
    good = rivals.pop("fake good")
    assert good.whole and good.weights == "model.gguf, numpy False"
    assert good.versions is not None and list(good.versions) == ["python"]
    assert good.nll == 3.0 and good.peak_bytes is not None and 1 << 20 < good.peak_bytes < 1 << 28
    # The round that warms up is not kept.
    assert [(one.kind, one.prompt, one.seconds, one.tokens) for one in good.answers] == [
        ("open", "open 1", 0.5, (0, 1, 2, 3)),
        ("copy", "copy 1", 0.5, (0, 1, 2, 3)),
    ]
    assert good.firsts == (FirstToken(0, 0.5, 0.25),)
    errors = {name: rival.error or "" for name, rival in rivals.items()}
    assert not any(rival.whole for rival in rivals.values()) and all("\n" not in error for error in errors.values())
    for name, words in {
        "fake refuses": "no such architecture",
        "fake words": "answers nonsense: \"{'tokens': 'Once upon a time'",
        "fake list": "answers nonsense: '[1, 2, 3]'",
        "fake short": "made 1 tokens of 4",
        "fake no time": "answers nonsense: seconds of '0'",
        "fake negative": "answers nonsense",
        "fake fails later": "MemoryError",
        "fake not a number": "answers nonsense: nll of 'nan'",
        "absent plain": "not installed: `make peers`",
    }.items():
        assert words in errors[name], errors[name]
    assert "absent plain is out: not installed" in capsys.readouterr().err


def test_a_checkpoint_is_converted_once_and_whole_or_not_at_all(bare_python: Path, tmp_path: Path) -> None:
    source, models = tmp_path / "model.gguf", tmp_path / "models"
    source.write_text("weights ", encoding="ascii")

    def entrants() -> list[Entrant]:
        made = {"plain": "int4", "lookup": "int4", "a": "unmade", "b": "unmade"}
        return [Entrant("fake", m, str(FAKE), bare_python, source, f, models / f) for m, f in made.items()]

    rivals = race(entrants())
    assert rivals["fake plain"].whole and rivals["fake lookup"].weights.startswith("weights,")
    for name in ("fake a", "fake b"):
        assert rivals[name].error == "ValueError: cannot be made"
    assert sorted(path.name for path in models.iterdir()) == ["int4"]
    weights = models / "int4" / "built" / "weights"
    assert weights.read_text() == "weights int4"
    weights.write_text("as it was")
    blocked = replace(entrants()[0], place=source / "models" / "int4")
    with Race([blocked], plan()) as running:
        running.load(lambda *_: None)
        assert "cannot be written: Not a directory" in (running.rivals["fake plain"].error or "")
    with Race(entrants()[:1], plan()) as running:
        running.load(lambda *_: None)
        assert running.rivals["fake plain"].error is None
    assert weights.read_text() == "as it was"


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_a_conversion_that_is_interrupted_leaves_nothing_half_made(
    bare_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    source, models = tmp_path / "model.gguf", tmp_path / "models"
    source.write_text("weights ", encoding="ascii")

    def interrupted(name: str, order: Order, *given: object) -> PeerProcess:
        assert order.place is not None and Path(order.place).is_dir()
        raise end

    monkeypatch.setattr("edge_runtime.bench.rivals.run.PeerProcess", interrupted)
    entrant = Entrant("fake", "plain", str(FAKE), bare_python, source, "int4", models / "int4")
    with pytest.raises(type(end)), Race([entrant], plan()) as running:
        running.load(lambda *_: None)
    assert list(models.iterdir()) == []


def test_programs_see_nothing_of_this_project() -> None:
    """They run where it is not installed; what they share lies beside them."""
    ours = {"ours.py", "ours_whole.py", "protocol.py", "__init__.py"}
    beside = {path.stem for path in PROGRAMS.glob("*.py") if path.name not in ours}
    for path in PROGRAMS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.name not in ours else ():
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module in beside, (path.name, ast.unparse(node))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                assert "edge_runtime" not in ast.unparse(node), path.name
    assert {kind.program for kind in peer_kinds()} <= {path.name for path in PROGRAMS.glob("*.py")}


# Environments


def kind(name: str, module: str = "no_such_module") -> PeerKind:
    return PeerKind(name, str(FAKE), module, {"good": None}, ("a==1", "b"))


def test_which_python_a_peer_runs_under(bare_python: Path, tmp_path: Path) -> None:
    assert python_of(kind("bare"), {}, tmp_path) == bare_python
    assert python_of(kind("bare"), {"bare": Path("/other")}, tmp_path) == Path("/other")
    assert python_of(kind("none"), {}, tmp_path) is None
    assert python_of(kind("here", "json"), {}, tmp_path) == Path(sys.executable)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("llama.cpp", "'llama.cpp' is not KIND=PATH"),
        ("llama.cpp=", "is not KIND=PATH"),
        ("llamacpp=/bin/sh", r"none of llama.cpp, .*\(did you mean 'llama.cpp'\?\)"),
        ("llama.cpp=/no/such", "there is no /no/such"),
    ],
)
def test_a_python_that_is_named_wrongly(given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named_pythons([given])


def test_peers_are_chosen_by_name() -> None:
    assert [one.kind for one in chosen_kinds(["transformers", "llama.cpp"])] == ["llama.cpp", "transformers"]
    assert named_pythons([f"llama.cpp={sys.executable}"]) == {"llama.cpp": Path(sys.executable)}
    assert len(chosen_kinds(())) == len(peer_kinds())
    for one in peer_kinds():
        assert one.modes and any("==" in package for package in one.packages)


def test_an_environment_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed is not there afterwards; what is there is not made again."""
    commands: list[Sequence[str]] = []

    def ran(command: Sequence[str], timeout_s: float) -> str | None:
        commands.append(command)
        if "venv" in command:
            python = python_in(Path(command[-1]))
            python.parent.mkdir(parents=True)
            python.touch()
            return None
        return "ERROR: no C++ compiler" if "bad" in command[0] else None

    monkeypatch.setattr(environments, "_ran", ran)
    assert make_environments([kind("bad"), kind("good")], tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    assert [*commands[-1]][-2:] == ["a==1", "b"] and commands[-1][0] == str(python_in(tmp_path / "good"))
    told = capsys.readouterr().out
    assert "bad: failed, and is left out: ERROR: no C++ compiler" in told and "good: ready" in told
    count = len(commands)
    assert make_environments([kind("good")], tmp_path) == 1 and len(commands) == count
    assert make_environments([replace(kind("good"), packages=("a==2",))], tmp_path) == 1 and len(commands) > count


def test_a_command_that_fails_is_told_in_a_line() -> None:
    ran: Callable[[Sequence[str], float], str | None] = environments._ran
    failing = ["sh", "-c", "echo 'ERROR: no wheel' >&2; echo 'notice: a new pip' >&2; exit 1"]
    assert ran(failing, 60.0) == "ERROR: no wheel"
    assert ran(["sh", "-c", "exit 3"], 60.0) == "ended without a word (3)"
    assert ran(["true"], 60.0) is None
    assert "timed out" in (ran(["sleep", "60"], 0.05) or "")
    assert "No such file" in (ran(["no/such/program"], 1.0) or "")


# Figures and verdicts


def rival(kind: str, mode: str, seconds: float = 1.0, **changes: object) -> Rival:
    answers = tuple(
        Answer(number, which, f"{which} {number}", seconds * (1 + number), tuple(range(32)))
        for number in range(3)
        for which in _KINDS
    )
    firsts = tuple(FirstToken(number, 10 * seconds, seconds) for number in range(3))
    made = Rival(kind, mode, "int8", {}, 1.0, answers, firsts, 500_000_000, 3.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def report(*rivals: Rival) -> Report:
    settings = Settings({}, "", "", 3, 32, 500, 400, 1, 1024)
    return Report(1, "0", "", "", settings, rivals, complete=True)


def judged(*rivals: Rival) -> dict[str, tuple[bool, str]]:
    return {one.claim: (one.met, one.found) for one in verdicts(report(*rivals))}


QUALITY = "NLL at most 0.02 above the best"
OPEN, COPY = (f"first in tok/s on {which} prompts at equal NLL" for which in _KINDS)
PREFIX, MEMORY = "first in ttft on a repeated prefix of 500 tokens", "first in peak memory"


def test_figures_are_medians_of_whole_answers() -> None:
    plain, auto = rival(OURS, "plain", 2.0), rival(OURS, "auto")
    apart = tuple(replace(one, tokens=(7,)) for one in auto.answers[:2])
    other = replace(auto, kind="x", answers=apart + auto.answers[2:])
    whole = figures(report(plain, auto, other, rival("y", "plain", error="no")))
    found = {f"{one.kind} {one.mode}": one for one in whole}
    assert list(found) == [PLAIN, DEFAULT, "x auto"]
    assert found[DEFAULT].tokens_per_s == {"open": 16.0, "copy": 16.0}
    assert found[DEFAULT].cold_s == 10.0 and found[DEFAULT].warm_s == 1.0
    assert found["x auto"].as_ours == (4, 6) and found[DEFAULT].as_ours == (6, 6)
    assert found[DEFAULT].as_reference is None


def test_first_in_everything() -> None:
    close = rival("a", "plain", 1.2, peak_bytes=600_000_000, nll=3.01)
    found = judged(rival(OURS, "auto"), close, rival("b", "plain", 2.0))
    assert [met for met, _ in found.values()] == [True] * 5
    assert found[OPEN][1].startswith("16.0 ours, 13.3 a plain: 1.20x")
    assert found[MEMORY][1] == "500 MB ours, 500 MB b plain"


def test_what_is_missed_is_said_with_the_best_rival() -> None:
    fast = rival("fast", "lookup", 0.5, peak_bytes=400_000_000, nll=2.95)
    found = judged(rival(OURS, "auto"), rival(OURS, "plain", 0.1), fast, rival("slow", "plain", 3.0))
    assert [met for met, _ in found.values()] == [False] * 5
    assert all("fast lookup" in told for _, told in found.values())
    assert found[QUALITY][1] == "3.0000 ours, 2.9500 fast lookup, +0.0500"


def test_only_equals_are_rivals_in_speed_and_all_are_in_the_rest() -> None:
    """A coarser one may be fast without winning anything; in memory and prefixes it counts."""
    coarse = rival("coarse", "int4", 0.5, peak_bytes=300_000_000, nll=3.03)
    found = judged(rival(OURS, "auto"), coarse, rival("equal", "int8", 1.5, nll=3.01))
    assert found[OPEN][0] and "equal int8" in found[OPEN][1] and found[OPEN][1].endswith("left aside: coarse int4")
    assert not found[PREFIX][0] and not found[MEMORY][0] and found[QUALITY][0]
    assert "nobody else" in judged(rival(OURS, "auto"), coarse)[COPY][1]


def test_who_did_not_run_is_no_rival_and_ours_must() -> None:
    assert judged(rival(OURS, "auto"), rival("a", "plain", error="it broke")) == {}
    assert judged(rival(OURS, "auto", error="no bundle"), rival("a", "plain")) == {
        "ours runs to the end": (False, "no bundle")
    }
