"""What a soak's record says: figures and verdicts of records that are made up, and of files that break off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace
from test_faults_log import little_room

from edge_runtime.bench.soak.figures import Quarters, SoakFigures, quarters, summed_up
from edge_runtime.bench.soak.mix import Book, Order, Sizes, fault, said, scripts
from edge_runtime.bench.soak.plan import soak_plan
from edge_runtime.bench.soak.record import (
    SCHEMA,
    Answer,
    Checkpoint,
    End,
    Happening,
    Line,
    Look,
    Probe,
    Record,
    Settings,
    read_lines,
    share_had,
)
from edge_runtime.bench.soak.verdicts import unjudged, verdicts
from edge_runtime.bench.stats import student
from edge_runtime.boards import board_named
from edge_runtime.cli import main
from edge_runtime.cli.soak import run
from edge_runtime.client.results import Choice, Completion, ToolCall, Usage
from edge_runtime.errors import ConfigError, EngineError

SETTINGS = Settings(
    SCHEMA, "edge-runtime soak", "2026-01-01 00:00 UTC", {}, "b", 120.0, 300.0, 4, 3, 2, "orin-nano-8", "sysfs", 60.0, 1
)
RIGHT = Answer(10.0, 11.0, "chat", "chat 0", 0, "streamed", "right", "", "", 0.2, 0.01, 32)
HOT, MEMORY = Happening(100.0, 130.0, "hot", True), Happening(200.0, 220.0, "memory", True)
STOPPED = "critical: temperature: tj at 64.0 C, the limit is 60 C"
STARVED = "memory runs out: 315 MB are available and 800 MB are to stay so"
_LAPS = 24


def refused(began_s: float, why: str) -> Answer:
    return replace(RIGHT, began_s=began_s, ended_s=began_s + 0.1, outcome="refused", why=why, ttft_s=None, tpot_s=None)


def checkpoint(lap: int, **more: Any) -> Checkpoint:
    given = {"anonymous": 700_000_000, "files": 14, "threads": 21, "errors": (), **more}
    return Checkpoint(300.0 * (lap + 1), lap, 710_000_000, given["anonymous"], given["files"], given["threads"],
                      60.0 * lap, 0.0, 0, 0, given["errors"])  # fmt: skip


def probes(seconds: Sequence[float], waited_s: float = 0.0) -> list[Probe]:
    return [Probe(300.0 * (lap + 1), lap, one, one / 20, one, waited_s) for lap, one in enumerate(seconds)]


def a_record(*more: Line) -> list[Line]:
    """One that misses nothing, and what is added to it."""
    looks = [Look(0.25 * at, 50.0, "warm", at, False) for at in range(400)]
    return [SETTINGS, RIGHT, HOT, MEMORY, *looks, *map(checkpoint, range(_LAPS)), *probes([1.0] * _LAPS), *more,
            End(7300.0, "complete")]  # fmt: skip


def missed(lines: Iterable[Line]) -> list[str]:
    return [verdict.claim for verdict in verdicts(summed_up(tuple(lines))) if not verdict.met]


def test_a_record_that_misses_nothing() -> None:
    figures = summed_up(tuple(a_record()))
    assert missed(a_record()) == [] and list(unjudged(figures)) == []
    assert figures.memory is not None and figures.memory.per_hour == pytest.approx(0.0, abs=1.0)
    assert figures.seconds == 7300.0 and figures.outcomes["chat"] == {"right": 1}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (replace(RIGHT, outcome="lost", why="no end"), "0 requests lost"),
        (replace(RIGHT, outcome="wrong", why="'a' and not 'b'"), "every answer"),
        (refused(150.0, STOPPED), "0 requests lost"),
        (refused(190.0, STARVED), "0 requests lost"),
        (refused(110.0, STARVED), "0 requests lost"),
        (refused(110.0, "the queue is full: 12 requests wait"), "0 requests lost"),
        (refused(110.0, "something else"), "0 requests lost"),
        (Happening(1.0, 9.0, "swap", False, "not within 9 s"), "whatever was done to it"),
        (checkpoint(_LAPS, errors=("x error y",)), "no error in the log"),
        (Look(200.0, 62.0, "warm", 999, False), "the governor keeps"),
    ],
)
def test_each_kind_of_fault_is_seen(line: Line, words: str) -> None:
    (claim,) = missed(a_record(line))
    assert claim.startswith(words)


@pytest.mark.parametrize(
    "line",
    [
        refused(110.0, STOPPED),
        replace(refused(90.0, STOPPED), ended_s=101.0),
        refused(205.0, STARVED),
        replace(RIGHT, outcome="left"),
        Look(200.0, 75.0, "critical", 399, True),
    ],
)
def test_what_is_due_is_no_fault(line: Line) -> None:
    assert missed(a_record(line)) == []


def test_a_board_that_is_nearly_too_hot_is_a_cause_as_well() -> None:
    near = Look(160.0, 58.5, "critical", 400, False)
    assert missed(a_record(near, refused(159.0, STOPPED))) == []
    assert missed(a_record(replace(near, die_c=50.0), refused(159.0, STOPPED))) != []


def test_an_answer_outlasts_what_was_done_and_is_refused_for_it() -> None:
    crowd = Happening(300.0, 301.0, "crowd", True)
    assert missed(a_record(crowd, refused(300.5, "the queue is full: 12 requests wait of at most 12"))) == []


@pytest.mark.parametrize("name", ["anonymous", "files", "threads"])
def test_what_grows_is_seen(name: str) -> None:
    first: int = getattr(checkpoint(0), name)
    grown = [checkpoint(lap, **{name: first + lap * max(1, first // 500)}) for lap in range(_LAPS)]
    lines = [line for line in a_record() if not isinstance(line, Checkpoint)]
    (claim,) = missed([*lines, *grown])
    assert claim.startswith("anonymous memory" if name == "anonymous" else "no more ")


def test_what_grew_while_it_warmed_up_is_no_fault() -> None:
    grown = [checkpoint(lap, anonymous=400_000_000 + 50_000_000 * min(lap, 6)) for lap in range(_LAPS)]
    assert missed([*(line for line in a_record() if not isinstance(line, Checkpoint)), *grown]) == []


def test_slower_and_slower_is_seen_and_a_shared_machine_is_reckoned_off() -> None:
    lines = [line for line in a_record() if not isinstance(line, Probe)]
    slower = [1.0 + 0.03 * lap for lap in range(_LAPS)]
    assert len(missed([*lines, *probes(slower)])) == 3
    # Twice as long by the clock, and a processor for half of it.
    shared = [*probes([1.0] * 12), *(Probe(9000.0 + lap, lap, 2.0, 0.1, 1.0, 1.0) for lap in range(12))]
    assert missed([*lines, *shared]) == []
    figures = summed_up((*lines, *shared))
    assert figures.had == (1.0, 0.5) and any("shared" in str(verdict) for verdict in verdicts(figures))


def test_no_time_counts_while_the_soak_itself_was_stopped() -> None:
    late = [Look(200.0, 58.0, "warm", 400, False), Look(1100.0, 58.0, "warm", 400, False)]
    slow = Probe(1100.5, 3, 900.0, 0.1, 1.0, 0.0)
    answers = [replace(RIGHT, began_s=float(at), ended_s=at + 1.0) for at in range(20)]
    hung = replace(RIGHT, began_s=150.0, ended_s=1100.2, ttft_s=900.0)
    figures = summed_up(tuple(a_record(*late, slow, *answers, hung)))
    assert figures.pauses == (100.25, 900.0) and not missed(a_record(*late, slow))
    assert figures.ttft is not None and figures.ttft.last.high < 1.0


def test_where_others_have_the_processors_the_temperature_is_not_judged() -> None:
    lines = [line for line in a_record() if not isinstance(line, Look)]
    starved = [Look(0.25 * at, 66.0, "warm", at, False, 0.3) for at in range(400)]
    figures = summed_up((*lines, *starved))
    assert missed([*lines, *starved]) == [] and figures.heat.highest_c == 66.0 and figures.heat.over_c is None
    assert any("others had the processors" in what for what in unjudged(figures))


def test_what_was_not_judged_between_is_not_time_above_the_limit() -> None:
    """Above for a moment, hours apart, and in between no processors to speak of."""
    lines = [line for line in a_record() if not isinstance(line, Look)]
    above = [Look(at, 60.5, "warm", 1, False) for at in (0.0, 0.25, 900.0, 900.25)]
    starved = [Look(20.0 + at, 50.0, "warm", 1, False, 0.0) for at in range(800)]
    figures = summed_up((*lines, *sorted([*above, *starved], key=lambda look: look.at_s)))
    assert figures.heat.over_s == 0.25 and figures.heat.over_c == 0.5


def test_what_was_cut_off_is_neither_done_nor_failed_and_still_a_cause() -> None:
    cut = Happening(500.0, 510.0, "swap", None)
    figures = summed_up(tuple(a_record(cut, refused(505.0, "not served any more"))))
    assert figures.failed == () and figures.undue == () and "swap" not in figures.happenings


def test_the_interval_of_a_few_rests_is_that_of_a_few() -> None:
    for freedom, point in ((2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student(freedom) == pytest.approx(point, rel=0.04)


def test_a_thread_that_has_ended_takes_what_it_waited_with_it() -> None:
    assert (share_had(1.0, -0.5), share_had(0.0, -1.0), share_had(1.0, 1.0)) == (1.0, 1.0, 0.5)


def test_steps_while_all_is_stopped_are_seen() -> None:
    stopped = [Look(500.0 + at, 70.0, "critical", tokens, True) for at, tokens in enumerate((400, 401, 401, 403))]
    assert summed_up(tuple(a_record(*stopped))).tokens_while_stopped == 2


def test_quarters_take_the_first_and_the_last_by_time() -> None:
    found = quarters([(float(at), 1.0 if at < 50 else 3.0) for at in range(99, -1, -1)], 0.95)
    assert isinstance(found, Quarters)
    assert (found.first.median, found.last.median, found.ratio.median) == (1.0, 3.0, 3.0)
    assert quarters([(float(at), 1.0) for at in range(7)], 0.95) is None


# --- files ----------------------------------------------------------------------------------------

ENCODED, REST = (msgspec.json.encode(line) + b"\n" for line in (SETTINGS, checkpoint(0)))
END = b'{"type":"end","at_s":1.0,"why":""}\n'

def written(path: Path, lines: Iterable[Line]) -> Path:
    with Record(path) as record:
        for line in lines:
            record.add(line)
    return path


def show(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["soak", "--show", str(path), *options])


def test_a_record_of_a_run_that_was_killed_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = a_record()
    path = written(tmp_path / "new" / "r.jsonl", lines[:-1])
    path.write_bytes(path.read_bytes() + b'{"type":"answer","began')
    assert list(read_lines(path)) == lines[:-1]
    done = show(path)
    assert done.exit_code == 0 and "the record breaks off" in done.output and "MISSED" not in done.output
    done = show(written(path, [*lines[:-1], replace(RIGHT, outcome="lost", why="no end"), lines[-1]]))
    assert done.exit_code == 1 and "MISSED 0 requests lost" in done.output


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    done = show(Path("/dev/zero"))
    assert done.exit_code == 2 and done.stderr == "error: /dev/zero, line 1: longer than any of a soak's record\n"


def test_what_a_record_says_does_not_command_the_terminal(tmp_path: Path) -> None:
    odd = "\x1b[2J\u202e"
    lines = a_record(replace(RIGHT, kind=odd, outcome="wrong", why=odd), Happening(1.0, 2.0, odd, False, odd))
    lines[0] = replace(SETTINGS, board=odd, bundle=odd)
    done = show(written(tmp_path / "r.jsonl", [*lines, checkpoint(_LAPS, errors=(odd,)), End(1.0, odd)]))
    assert done.exit_code == 1 and done.output.replace("\n", "").isprintable() and "\u241b[2J" in done.output


def test_an_older_record_stays_where_no_daemon_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*given: object) -> Any:
        raise EngineError("it did not come up")

    path = tmp_path / "r.jsonl"
    path.write_text("two hours")
    monkeypatch.setattr("edge_runtime.cli.soak.staged", nothing)
    with pytest.raises(EngineError):
        run(tmp_path, tmp_path, board_named("orin-nano-8"), "sysfs", soak_plan(1.0, 1.0, 1, 1, 60.0, 1), path)
    assert path.read_text() == "two hours"


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with Record(path) as record:
        record.add(SETTINGS)
        with little_room(path.stat().st_size + 9), pytest.raises(OSError, match="File too large") as caught:
            record.add(RIGHT)
        assert caught.value.filename == str(path)
        record.add(End(1.0, "OSError: File too large"))
    assert read_lines(path) == (SETTINGS, End(1.0, "OSError: File too large"))


def test_a_daemon_that_ends_is_a_fault() -> None:
    assert missed([*a_record()[:-1], End(99.0, "the daemon ended with -9")]) == ["the daemon lives to the end"]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}\n", b"no JSON\n", b'{"type":"end","at_s":1.0,"why":""}\n', b"\n", b"\xff\n", b"[" * 9000 + b"\n",
        b"x" * (2 << 20), b"x" * (2 << 20) + b"\n",
        ENCODED + END.replace(b"1.0", b"1e999"), ENCODED + END.replace(b"1.0", b"1e300"), ENCODED + END[:-9] + b"\n",
        ENCODED + END.replace(b"1.0", b"-1.0"), ENCODED + END.replace(b"1.0", b"9" * 5000),
        ENCODED.replace(b'"schema":1', b'"schema":2'), ENCODED.replace(b'"settings"', b'"odd"'),
        ENCODED + REST + REST, ENCODED + END + ENCODED,
        ENCODED + REST.replace(b'"anonymous":7', b'"anonymous":' + b"7" * 400),
    ],
    ids=range(19),
)  # fmt: skip
def test_files_that_are_no_record(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text)
    with pytest.raises(ConfigError):
        read_lines(path)
    done = show(path)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1


def test_options_that_do_nothing_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", a_record())
    assert CliRunner().invoke(main, ["soak", "--record", "/dev/null"]).exit_code == 2
    for options in (("--clients", "3"), ("--record", str(tmp_path / "x"))):
        assert show(path, *options).exit_code == 2
    assert CliRunner().invoke(main, ["soak"]).exit_code == 2


# --- answers --------------------------------------------------------------------------------------

BOOK = '{"shelf": "north", "copies": 3, "lent": false, "tags": ["old"]}'


def completion(text: str, reason: str, *calls: ToolCall, tokens: int = 9) -> Completion:
    return Completion("i", "m", 0, (Choice(0, text, reason, calls),), Usage(3, tokens))


def ordering(arguments: str) -> Completion:
    return completion("", "tool_calls", ToolCall("an id of its own", "order", arguments))


def of_kind(kind: str) -> Any:
    return next(script for script in scripts(Sizes()) if script.kind == kind)


@pytest.mark.parametrize(
    ("kind", "answer", "words"),
    [
        ("json", completion(BOOK, "stop"), None),
        ("json", completion(BOOK, "length"), "ended as length"),
        ("json", completion(BOOK.replace("3", "300"), "stop"), "not of its form"),
        ("json", completion(BOOK[:-1], "stop"), "not of its form"),
        ("json", completion(BOOK.replace("north", "west"), "stop"), "not of its form"),
        ("json", completion(BOOK[:-1] + ', "more": 1}', "stop"), "not of its form"),
        ("tools", ordering('{"item": "tea", "count": 2}'), None),
        ("tools", ordering('{"item": "tea", "count": 0}'), "not of its form"),
        ("tools", completion("I would", "stop"), "no tool is called"),
        ("chat", completion("Hi", "length"), None),
        ("chat", completion("Hi", "length", tokens=0), "no tokens"),
        ("chat", completion("Hi", "content_filter"), "ended as"),
    ],
)
def test_an_answer_is_held_to_its_form(kind: str, answer: Completion, words: str | None) -> None:
    found = fault(of_kind(kind), answer)
    assert found is None if words is None else (found or "").startswith(words)


def test_scripts_are_apart_and_say_the_same_each_time() -> None:
    known = scripts(Sizes())
    assert known == scripts(Sizes()) and len({script.name for script in known}) == len(known)
    assert {script.reads for script in known} == {None, Book, Order}
    rag = [script for script in known if script.kind == "rag"]
    assert rag[0].turns[0][:2800] == rag[1].turns[0][:2800] != rag[2].turns[0][:2800]
    assert said(of_kind("tools"), ordering("{}")) == "order {}"


def test_figures_of_an_empty_run() -> None:
    figures = summed_up((SETTINGS, End(1.0, "EdgeRuntimeError: x")))
    assert isinstance(figures, SoakFigures) and not all(verdict.met for verdict in verdicts(figures))
