"""examples/: each is run as docs/run.md says and does what its header says, on a real server over a fake engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import doc_pages
import jsonschema
import pytest
from server_runs import WAIT_S, Puppet, Running, running, say, tiny_model

from edge_runtime.client import Client
from edge_runtime.errors import QueueFull
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.server.service import Model

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = {"complete.sh": "bash", "complete.mjs": "node"}
HEARD = ["A table for four on Friday, please.", "At seven, for Ada."]


def commands() -> list[str]:
    """Of docs/run.md, those that this file runs."""
    return [one.text for one in doc_pages.commands("docs/run.md") if one.mark == "run by: tests/test_examples.py"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), capacity=4096)


@pytest.fixture(scope="module")
def run(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    with running(model, scheduler, tmp_path_factory.mktemp("socket")) as found:
        yield found
    scheduler.close()


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def scripted(model: Model, puppet: Puppet, tmp_path: Path) -> Iterator[Running]:
    """A server that answers what the test says."""
    with running(model, puppet, tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name: str) -> Any:
    return import_module(name)


def shell(command: str, socket: str, **more: Any) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "EDGE_RUNTIME_SOCKET": socket, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_S, **more
    )


def needed(command: str) -> None:
    for program in ("node", "curl"):
        used = {"node": "node ", "curl": ".sh"}[program]
        if used in command and shutil.which(program) is None:
            reason = f"{program} is not installed"
            if "EDGE_RUNTIME_NO_SKIPS" in os.environ:
                pytest.fail(reason)
            pytest.skip(reason)


# --- as docs/run.md has them -----------------------------------------------------------------------


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page(
    run: Running, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(command)
    if command.startswith("python examples/"):
        # As itself, but in this process: one interpreter that imports it all is enough, and the form's is one.
        _, script, *arguments = shlex.split(command)
        monkeypatch.setenv("EDGE_RUNTIME_SOCKET", run.path)
        monkeypatch.chdir(ROOT)
        assert example(Path(script).stem).main(arguments) == 0
        assert capsys.readouterr().out.strip()
        return
    done = shell(command, run.path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() and "Traceback" not in done.stderr


def test_all_examples_are_on_the_page_and_say_how_they_are_run() -> None:
    run_there = " ".join(commands())
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh", ".mjs") and path.name != "passages.py":
            assert f"examples/{path.name}" in run_there
            assert f"examples/{path.name}" in path.read_text(encoding="utf-8")[:800], path.name


@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_daemon_a_script_ends_in_one_line(tmp_path: Path, name: str) -> None:
    needed(f"{SCRIPTS[name]} {name}")
    done = shell(f"{SCRIPTS[name]} examples/{name} Hi", str(tmp_path / "none.sock"))
    assert done.returncode != 0
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(("name", "arguments"), [("rag", ["docs", "Hi?"]), ("form", []), ("watch", ["x.log"])])
def test_without_a_daemon_a_program_ends_in_one_line(
    name: str,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", str(tmp_path / "none.sock"))
    assert example(name).main(arguments) == 2
    done = capsys.readouterr()
    assert done.err.startswith("error: no daemon answers at ") and done.err.count("\n") == 1 and not done.out


def test_without_its_packages_an_example_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "apsw.py").write_text("raise ModuleNotFoundError('none', name='apsw')")
    command = [sys.executable, "examples/rag.py", "docs", "Hi?"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and done.stderr == "error: no module apsw: pip install '.[examples]'\n"


# --- retrieval ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedder() -> Any:
    sys.path.insert(0, str(EXAMPLES))
    try:
        return example("passages").load_embedder()
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder of three texts."""
    place = tmp_path / "shop"
    place.mkdir()
    (place / "bike.md").write_text("# Bikes\n\nThe battery lasts for sixty kilometres.\n\nTyres cost ten euros.\n")
    (place / "food.txt").write_text("Soup of the day: tomato. Bread comes with it.\n")
    (place / "staff.md").write_text("Ada opens the shop at nine. Grace closes it at six in the evening.\n")
    (place / "photo.bin").write_bytes(b"\xff\xfe soup")
    return place


def test_what_means_the_same_is_found_without_a_word_in_common(shop: Path, embedder: Any) -> None:
    index = example("passages").Index(":memory:", embedder)
    assert index.update(shop) == (3, 3)
    for question, name in (("How far can I cycle on one charge?", "bike.md"), ("Which dishes can I eat?", "food.txt")):
        assert Path(index.search(question, 1)[0].path).name == name
    # And words that no embedding knows, quotes and all.
    assert Path(index.search('"Ada" OR (', 1)[0].path).name == "staff.md"
    assert len(index.search("?", 2)) == 2


def test_only_what_changed_is_embedded_again(shop: Path, tmp_path: Path, embedder: Any) -> None:
    place = str(tmp_path / "index.sqlite")
    assert example("passages").Index(place, embedder).update(shop) == (3, 3)
    index = example("passages").Index(place, embedder)
    assert index.update(shop) == (0, 3)
    (shop / "food.txt").write_text("Today: pancakes.\n")
    (shop / "staff.md").unlink()
    assert index.update(shop) == (1, 2)
    assert {Path(one.path).name for one in index.search("soup, shop, pancakes", 9)} == {"bike.md", "food.txt"}


def test_passages_know_their_lines(shop: Path) -> None:
    text = "one\n\n" + "two\n" * 130 + "\n\nthree\n\n" + "4" * 1200
    found = list(example("passages").passages(text))
    assert [line for line, _ in found] == [1, 3, 135, 137, 137]
    assert "".join(part for _, part in found).count("two") == 130
    assert all(len(part) <= 1000 for _, part in found)
    assert list(example("passages").passages(" \n\n ")) == []


def test_the_same_said_twice_is_chosen_once(tmp_path: Path, embedder: Any) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("The pump starts below two bar of pressure.\n")
    (tmp_path / "c.txt").write_text("A pump needs oil every year.\n")
    index = example("passages").Index(":memory:", embedder)
    index.update(tmp_path)
    texts = [one.text for one in index.search("When does the pump start?", 2)]
    assert len(set(texts)) == 2


def test_what_the_daemon_remembers_is_told(
    run: Running, shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", run.path)
    assert example("rag").main([str(shop), "Who opens the shop?", "Who closes the shop?", "--passages", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("index: 3 passages, 3 of them new") and out.count("staff.md:1") == 2
    (first, second) = re.findall(r"prompt (\d+) tokens, (\d+) of them remembered", out)
    # The instructions were prefilled while the index was made; then the passages too are known.
    instructions = len(example("rag").PREFIX)
    assert int(first[1]) >= 0.9 * instructions
    assert int(second[1]) > int(first[1]) + 60
    assert "waited for" in out.split("\n\nQ:")[1]
    assert re.search(r"drafts accepted: prompt_lookup \d+ of \d+|drafts accepted: none", out)
    assert "the daemon since its start: " in out


def test_whether_retrieval_was_hidden_is_told(run: Running) -> None:
    rag = example("rag")
    with Client(run.path) as client:
        answer = client.complete("Hi", max_tokens=2, temperature=0.0)
    found = rag.Found([], 0.0125, 5.0)
    assert rag.told(answer, found, True).startswith("retrieval 12 ms, beside the last answer | prompt 3 tokens")
    assert rag.told(answer, found, False).startswith("retrieval 12 ms, waited for | ")


def test_passages_of_the_last_prompt_keep_their_place() -> None:
    assert example("rag").in_order([3, 1, 4], [1, 2, 3]) == [1, 3, 4]


def test_a_folder_without_texts(
    run: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", run.path)
    assert example("rag").main([str(tmp_path), "Hi?"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} has no text to answer from")


# --- the form -------------------------------------------------------------------------------------


def test_every_turn_has_the_structure_whatever_the_model_is(run: Running) -> None:
    form = example("form")
    with Client(run.path) as client:
        for said in [*HEARD, 'x"\n}', ""]:
            answer = form.heard(client, said, 60_000, 96)
            assert answer.finish_reason == "stop"
            jsonschema.validate(json.loads(answer.text), form.SCHEMA)
            assert answer.usage.completion_tokens <= 96


def test_the_form_fills_from_what_was_said_and_from_nothing_else(
    scripted: Running, puppet: Puppet, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(
        [
            '{"people": 4, "day": "Friday", "time": "20:00", "name": "Alan"}',
            '{"people": 7, "day": null, "time": null, "name": null}',
            '{"people": 5, "day": null, "time": null, "name": null}',
            '{"people": null, "day": null, "time": "19:00", "name": "Ada"}',
        ]
    )
    puppet.answer = lambda request, sink: say(sink, next(answers))
    with Client(scripted.path) as client:
        lines = [HEARD[0], "At seven.", "No, we are five.", HEARD[1]]
        filled = example("form").converse(client, lines, 2000, 96)
    assert filled == {"people": 5, "day": "Friday", "time": "19:00", "name": "Ada"}
    out = capsys.readouterr().out
    assert 'nobody said it: {"' in out and "Alan" in out.split("At what time?")[0]
    assert "Thank you." in out and "4 turns, the longest " in out
    assert puppet.asked[-1][0].deadline_s is not None


def test_a_turn_that_would_be_late_is_given_up_and_the_form_stays(
    run: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    form: dict[str, Any] = {"people": 2}
    with Client(run.path) as client:
        took_ms, in_time = example("form").turn(client, form, HEARD[0], 1, 96)
    assert not in_time and form == {"people": 2}
    assert f"given up after {took_ms:.0f} of 1 ms: the deadline passed" in capsys.readouterr().out


# --- the watcher ----------------------------------------------------------------------------------


class Follower:
    """``follow`` in a thread, and what it has seen."""

    def __init__(self, path: Path, from_start: bool) -> None:
        self.ended, self.lines, self._changed = threading.Event(), [], threading.Condition()
        lines = example("watch").follow(path, from_start, self.ended)
        self._thread = threading.Thread(target=self._read, args=(lines,))
        self._thread.start()

    def _read(self, lines: Iterator[Any]) -> None:
        for line in lines:
            with self._changed:
                self.lines.append((line.number, line.text))
                self._changed.notify_all()

    def has(self, *lines: tuple[int, str]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= len(lines), WAIT_S), self.lines
        assert self.lines == list(lines)

    def close(self) -> None:
        self.ended.set()
        self._thread.join(WAIT_S)


def test_a_file_is_followed_through_rotation_and_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example("watch"), "POLL_S", 0.01)
    log = tmp_path / "a.log"
    follower = Follower(log, True)  # before it is there
    try:
        log.write_text("one\ntw")
        follower.has((1, "one"))
        with log.open("a") as more:
            more.write("o\n")
        follower.has((1, "one"), (2, "two"))
        log.rename(tmp_path / "a.log.1")
        log.write_text("three\n")
        follower.has((1, "one"), (2, "two"), (1, "three"))
        log.write_text("4\n")
        follower.has((1, "one"), (2, "two"), (1, "three"), (1, "4"))
    finally:
        follower.close()


def test_what_piles_up_is_bounded_and_repeats_are_asked_once(run: Running) -> None:
    watch = example("watch")
    with Client(run.path) as client:
        watcher = watch.Watcher(client, watch.NOTABLE)
        for number in range(40):
            watcher.see(watch.Line(number, "all is well"))
            watcher.see(watch.Line(number, f"disk {number} failed"))
            watcher.see(watch.Line(number, "error " + "x" * number))
        assert (watcher.repeated, watcher.left_out) == (39, 40 + 1 - watch.QUEUE_LINES)


def test_a_busy_daemon_is_asked_again_later_and_below_everybody_else(
    scripted: Running,
    puppet: Puppet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", scripted.path)
    watch = example("watch")
    log = tmp_path / "a.log"
    log.write_text("fatal: disk 1\n")
    puppet.refusal = QueueFull("the queue is full")
    puppet.answer = lambda request, sink: say(sink, '{"kind": "disk", "why": "It is full."}')
    refused = watch.Watcher._ask

    def busy_once(self: Any, line: Any) -> str:
        threading.Timer(0.2, setattr, (puppet, "refusal", None)).start()
        return str(refused(self, line))

    monkeypatch.setattr(watch.Watcher, "_ask", busy_once)
    assert watch.main([str(log), "--from-start", "--until-idle", "0"]) == 0
    assert (
        capsys.readouterr().out
        == "1: [disk] It is full.  <- fatal: disk 1\n1 explained, 0 more like them, 0 left out\n"
    )
    assert puppet.asked[-1][0].priority == 2


def test_classes_hold_whatever_the_model_is(run: Running, capsys: pytest.CaptureFixture[str]) -> None:
    watch = example("watch")
    with Client(run.path) as client:
        text = watch.Watcher(client, watch.NOTABLE)._ask(watch.Line(1, 'error: \x07 "quoted"'))
    kind = re.match(r"\[(\w+)\] \S", text)
    assert kind and kind[1] in watch.KINDS


def test_a_pattern_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        example("watch").main(["x.log", "--notable", "("])
    assert caught.value.code == 2 and "no regular expression" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("rag", ["no-folder", "Hi?"], "no folder"),
        ("rag", [str(EXAMPLES), "Hi?", " "], "a question is empty"),
        ("rag", [str(EXAMPLES), "Hi?", "--passages", "0"], "1 or more"),
        ("form", ["--budget-ms", "0"], "1 or more"),
        ("form", ["--max-tokens", "-1"], "1 or more"),
        ("watch", [str(EXAMPLES)], "is no file"),
        ("watch", ["/dev/null"], "is no file"),
        ("watch", ["x.log", "--until-idle", "nan"], "a number of seconds"),
        ("watch", ["x.log", "--until-idle", "-1"], "a number of seconds"),
    ],
)
def test_what_cannot_be_is_told_before_a_daemon_is_asked(
    name: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        example(name).main(arguments)
    assert caught.value.code == 2 and words in capsys.readouterr().err


def test_the_log_stays_quiet_whatever_the_embedding_model_does_to_it() -> None:
    """In a process of its own: importing it sets up the log of the whole program, requests of the client included."""
    code = (
        "import logging, sys; sys.path.insert(0, 'examples'); import passages; passages.load_embedder(); "
        "logging.getLogger('httpx').info('a request')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- shell and Node -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_streams_what_the_client_gets(scripted: Running, puppet: Puppet, name: str) -> None:
    needed(f"{SCRIPTS[name]} {name}")
    prompts = []
    text = 'a "b" \\n c\n\tü€\U0001f600 {"text":"x"} \\u0041%s'
    puppet.answer = lambda request, sink: (prompts.append(request.prompt), say(sink, text))
    prompt = 'say "hi"\\\n\tü' + "".join(map(chr, (*range(1, 32), 127)))
    environment = {**os.environ, "EDGE_RUNTIME_SOCKET": scripted.path}
    done = subprocess.run(
        [SCRIPTS[name], str(EXAMPLES / name), prompt, "7"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, done.stdout) == (0, text), done.stderr
    assert re.search(r"\[\d+ tokens\]", done.stderr)
    assert puppet.asked[0][0].max_tokens == 7
    pieces = scripted.service.ready()[0].tokenizer.piece_bytes
    assert b"".join(map(pieces, prompts[0])).decode().endswith(prompt)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_refusal_is_one_line(scripted: Running, name: str) -> None:
    needed(f"{SCRIPTS[name]} {name}")
    done = shell(f"{SCRIPTS[name]} examples/{name} Hi 0", scripted.path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: max_tokens") and done.stderr.count("\n") == 1
    for wrong in ("Hi x", "Hi -1", "", "''"):
        done = shell(f"{SCRIPTS[name]} examples/{name} {wrong}", scripted.path)
        assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, wrong
