"""The commands that talk with a daemon: what they ask, what they write, and how they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result
from daemon_runs import PATIENCE_S, Running, daemon, settled, write_config
from scripted_server import Exchange, Script, scripted_server
from test_client import LAST, STATUS, delta, error

from edge_runtime.cli import main
from edge_runtime.cli.output import TextOutput
from edge_runtime.schema import plain
from edge_runtime.status import ModelStatus

ROOM = STATUS.model
assert isinstance(ROOM, ModelStatus)


def run(*arguments: str, lines: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=lines)


def assert_one_line(result: Result, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def text_event(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"id": "cmpl-1", "model": "m", "choices": [{"index": 0, "text": text, "finish_reason": reason}]}


def answered(exchange: Exchange, what: str) -> bool:
    """Whether it was one of the questions ahead of a request."""
    bodies = {"GET /health": {"status": "ok"}, "GET /v1/status": plain(STATUS), "GET /v1/models": {"data": []}}
    if what in bodies:
        exchange.answer(bodies[what])
    return what in bodies


class Asked:
    """A daemon that streams the same answer to everything, and the bodies that it was sent."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self.bodies: list[Any] = []
        self._events = events

    def __call__(self, exchange: Exchange) -> None:
        while True:
            what, body = exchange.request()
            if not answered(exchange, what):
                self.bodies.append(body)
                exchange.stream(*self._events)


def served(tmp_path: Path, script: Script, command: str, *options: str, lines: str | bytes | None = None) -> Result:
    with scripted_server(tmp_path / "s", [script]):
        return run(command, "--socket", str(tmp_path / "s"), *options, lines=lines)


# --- complete -------------------------------------------------------------------------------------


def test_complete_streams_what_it_is_told(tmp_path: Path) -> None:
    script = Asked(text_event(" a"), text_event("b\u2028"), text_event("", "stop"), LAST)
    result = served(tmp_path, script, "complete", "--prompt", "Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, " ab\u2028\n", "")
    (body,) = script.bodies
    assert (body["prompt"], body["temperature"], body["stream"]) == ("Hi", 0.0, True)
    # Not OpenAI's 16: as generate, it goes on for as long as the context holds.
    assert body["max_tokens"] > 1_000_000


def test_complete_sends_its_options(tmp_path: Path) -> None:
    script = Asked(text_event("a", "length"), LAST)
    options = ["--max-tokens", "3", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1"]
    options += ["--seed", "7", "--stop", "x", "--stop", "y", "--json"]
    result = served(tmp_path, script, "complete", "--prompt", "Hi", *options)
    report = json.loads(result.stdout)
    assert (report["text"], report["finish_reason"], report["usage"]["completion_tokens"]) == ("a", "length", 2)
    (body,) = script.bodies
    wanted = {"max_tokens": 3, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7}
    assert body["stop"] == ["x", "y"]
    assert {key: body[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["either --prompt or --prompt-file"]),
        (["--prompt", "Hi", "--policy", "threshold"], ["--policy", "--bundle"]),
        (["--prompt", "Hi", "--temperature", "-1"], ["temperature", "-1"]),
        (["--prompt", "Hi", "--stop", ""], ["stop", "empty"]),
        (["--prompt", "a\udcff"], ["not UTF-8"]),
    ],
)
def test_complete_refuses_before_it_asks(tmp_path: Path, options: list[str], words: list[str]) -> None:
    assert_one_line(run("complete", "--socket", str(tmp_path / "s"), *options), *words)


def test_what_the_daemon_refuses_is_one_line(tmp_path: Path) -> None:
    def refusing(status: int, message: str) -> Script:
        def script(exchange: Exchange) -> None:
            while True:
                if not answered(exchange, exchange.request()[0]):
                    exchange.answer(error(message), status)

        return script

    for status, code in ((400, 2), (413, 2), (429, 1), (500, 1)):
        result = served(tmp_path, refusing(status, "too\nmuch"), "complete", "--prompt", "Hi")
        assert_one_line(result, "too much", code=code)


@pytest.mark.parametrize(
    "command", [["complete", "--prompt", "Hi"], ["chat"], ["status"], ["top", "--once"], ["load"]], ids=lambda it: it[0]
)
def test_no_daemon_is_told_with_its_socket_and_how_to_start_it(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", str(tmp_path / "s"))
    assert_one_line(run(*command), f"no daemon answers at {tmp_path / 's'}", "edge-runtime serve --config")


# --- chat -----------------------------------------------------------------------------------------


def test_a_chat_by_the_daemon_sends_the_whole_conversation(tmp_path: Path) -> None:
    script = Asked(delta("", role="assistant"), delta("one"), delta(None, reason="stop"), LAST)
    lines = "Hi\nGo on\n/reset\nBye\n"
    result = served(tmp_path, script, "chat", "--system", "Be brief.", "--max-tokens", "9", lines=lines)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\none\none\n", "")
    roles = [[(one["role"], one["content"]) for one in body["messages"]] for body in script.bodies]
    start = [("system", "Be brief."), ("user", "Hi")]
    assert roles == [start, [*start, ("assistant", "one"), ("user", "Go on")], [start[0], ("user", "Bye")]]
    assert script.bodies[0]["max_tokens"] == 9


def test_a_turn_that_fails_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    turns = iter([400, 200, 200])
    bodies: list[Any] = []

    def script(exchange: Exchange) -> None:
        while True:
            what, body = exchange.request()
            if answered(exchange, what):
                continue
            bodies.append(body)
            if next(turns) == 400:
                exchange.answer(error("messages: no"), 400)
            else:
                exchange.stream(delta("one"), delta(None, reason="stop"), LAST)

    result = served(tmp_path, script, "chat", lines="Hi\n/rest\nGo on\nBye\n")
    assert (result.exit_code, result.stdout) == (0, "one\none\n")
    assert result.stderr.splitlines() == [
        "error: messages: no", "error: no command '/rest' (did you mean '/reset'?)",
    ]  # fmt: skip
    said = [[one["content"] for one in body["messages"]] for body in bodies]
    assert said == [["Hi"], ["Go on"], ["Go on", "one", "Bye"]]


def test_why_an_answer_ended(tmp_path: Path) -> None:
    length = delta(None, reason="length")
    usage = {**LAST["usage"], "prompt_tokens": ROOM.context - 2}
    for last, words in (
        (LAST, "[stopped at --max-tokens]\n"),
        ({**LAST, "usage": usage}, "[the context is full: /reset]\n"),
    ):
        result = served(tmp_path, Asked(delta("a"), length, last), "chat", lines="Hi\n")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "a\n", words)


def test_a_daemon_that_goes_away_within_an_answer_is_told(tmp_path: Path) -> None:
    def script(exchange: Exchange) -> None:
        while answered(exchange, exchange.request()[0]):
            pass
        exchange.stream(delta("a"), done=False)
        exchange.reset()

    result = served(tmp_path, script, "chat", lines="Hi\n")
    assert (result.exit_code, result.stdout) == (0, "a\n")
    assert "went away in the middle of an answer" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("said", ["a", ""])
def test_ctrl_c_ends_an_answer_and_not_the_conversation(
    tmp_path: Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said of it by then is part of the conversation; an answer that never began is not."""
    written = threading.Event()

    class Watched(TextOutput):
        def write(self, text: str) -> None:
            super().write(text)
            written.set()

    monkeypatch.setattr("edge_runtime.cli.remote.TextOutput", Watched)
    bodies: list[Any] = []
    left: list[bool] = []

    def script(exchange: Exchange) -> None:
        while True:
            what, body = exchange.request()
            if answered(exchange, what):
                continue
            bodies.append(body)
            if len(bodies) > 1:
                exchange.stream(delta("b"), delta(None, reason="stop"), LAST)
                continue
            if said:
                exchange.stream(delta(said), done=False)
                assert written.wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGINT)
            exchange.until_left()
            left.append(True)
            return

    result = served(tmp_path, script, "chat", lines="Hi\nGo on\n")
    assert (result.exit_code, result.stderr) == (0, "[interrupted]\n")
    assert result.stdout == (f"{said}\nb\n" if said else "b\n")
    assert left == [True]
    then = ["Hi", said, "Go on"] if said else ["Go on"]
    assert [[one["content"] for one in body["messages"]] for body in bodies] == [["Hi"], then]


@pytest.mark.parametrize(
    "options", [["--k", "3"], ["--threads", "1"], ["--drafter", "auto"], ["--no-verify"], ["--context", "10"]]
)
def test_options_of_loading_need_a_bundle(tmp_path: Path, options: list[str]) -> None:
    assert_one_line(run("chat", "--socket", str(tmp_path / "s"), *options), options[0], "--bundle")
    assert_one_line(run("chat", "--socket", "s", "--bundle", "b"), "either --bundle or --socket")


# --- with a daemon --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tmp_path = tmp_path_factory.mktemp("daemon")
    engine = {"sessions": 2, "context": 300, "threads": 1, "drafter": "none", "deterministic": True}
    config = write_config(tmp_path / "daemon.yaml", tiny.bundle(), engine=engine)
    with daemon(tmp_path, config) as started:
        started.ready()
        yield started
        assert started.stop() == 0


SAME = ("--max-tokens", "12", "--temperature", "0")
HERE = ("--bundle", str, "--threads", "1", "--drafter", "none", "--deterministic", "--context", "300")


def here() -> list[str]:
    return [str(tiny.bundle()) if part is str else str(part) for part in HERE]


def test_complete_says_what_generate_says(running: Running) -> None:
    there = run("complete", "--socket", str(running.socket_path), "--prompt", "Hello you", *SAME)
    assert there.exit_code == 0, there.output
    assert there.stdout == run("generate", *here(), "--prompt", "Hello you", *SAME).stdout


def test_chat_says_the_same_with_and_without_a_daemon(running: Running) -> None:
    lines = "Hi\nGo on\n/reset\nBye\n"
    there = run("chat", "--socket", str(running.socket_path), *SAME, lines=lines)
    assert there.exit_code == 0, there.output
    alone = run("chat", *here(), *SAME, lines=lines)
    assert (there.stdout, there.stderr) == (alone.stdout, alone.stderr)


def test_a_full_context_is_told(running: Running) -> None:
    result = run("chat", "--socket", str(running.socket_path), "--temperature", "0", lines="Hi\n")
    assert (result.exit_code, result.stderr) == (0, "[the context is full: /reset]\n")


def interrupted(running: Running, command: list[str], started: Callable[[subprocess.Popen[bytes]], None]) -> bytes:
    """stdout of a command that Ctrl-C ends while it writes."""
    environment = {**os.environ, "EDGE_RUNTIME_SOCKET": str(running.socket_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "edge_runtime", *command],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            started(process)
            assert process.stdout is not None
            first = process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            rest, told = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert b"Traceback" not in told
    return first + rest


def test_ctrl_c_stops_the_daemon_too(running: Running) -> None:
    with running.client() as client:
        before = client.status().requests
        interrupted(running, ["complete", "--prompt", "Hi", "--temperature", "1"], lambda process: None)
        client.complete("Hi", max_tokens=2)
        after = settled(client).requests
        assert after.received == before.received + 2


def test_serve_needs_a_configuration() -> None:
    assert_one_line(run("serve"), "--config")
    assert_one_line(run("serve", "--config", "/no/such.yaml"), "/no/such.yaml", "No such file")
