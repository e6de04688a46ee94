"""``edge-runtime`` as a process: streams, signals, terminals, and how long it takes to say something."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import tiny_bundle as tiny

from edge_runtime import __version__

ROOT = Path(__file__).parent.parent
PROGRAM = (sys.executable, "-m", "edge_runtime")
LONG_TOKENS = 2700
OPTIONS = ("--threads", "1", "--drafter", "none")
LONG = (
    "generate", "--prompt", "Hi", *OPTIONS, "--context", "4096", "--max-tokens", str(LONG_TOKENS),
    "--temperature", "1", "--top-k", "8", "--seed", "3",
)  # fmt: skip
PIPE_BYTES = 4096
"""Less than the long text: who writes it waits for its reader, and cannot be at its end by chance."""
# Buffers as users have them: unbuffered, a missing flush would not show.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
PATIENCE_S = 60.0
"""Only what hangs for good takes that long."""


def command(*arguments: str) -> list[str]:
    name, *rest = arguments
    return [*PROGRAM, name, "--bundle", str(tiny.bundle()), *rest]


@contextmanager
def process(arguments: list[str], **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen(arguments, cwd=ROOT, env=BUFFERED, **given) as running:  # type: ignore[call-overload]
        try:
            if running.stdout is not None:
                fcntl.fcntl(running.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            yield running
        finally:
            running.kill()


def finished(arguments: list[str], **extra: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        arguments, cwd=ROOT, capture_output=True, check=False, timeout=PATIENCE_S, env={**BUFFERED, **extra}
    )


# --- ahead of any model ---------------------------------------------------------------------------

_HELP = """
import sys, time
started = time.perf_counter()
from edge_runtime.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0, end.code
print(time.perf_counter() - started, *sys.modules, file=sys.stderr)
"""


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    done = finished([sys.executable, "-c", _HELP, "--help"])
    assert done.returncode == 0, done.stderr
    seconds, *modules = done.stderr.decode().split()
    assert not {"numpy", "onnxruntime", "rich", "jinja2", "sentencepiece", "msgspec"} & set(modules)
    # A generous bound of what takes 0.03 s: the modules are what counts.
    assert float(seconds) < 3.0
    for name in ("generate", "chat", "demo", "bench"):
        assert re.search(rf"^  {name}  +[A-Z]", done.stdout.decode(), re.MULTILINE)


def test_help_of_a_command_loads_no_engine() -> None:
    done = finished([sys.executable, "-c", _HELP, "generate", "-h"])
    assert done.returncode == 0, done.stderr
    assert not {"onnxruntime", "jinja2", "sentencepiece"} & set(done.stderr.decode().split())
    assert b"--max-tokens" in done.stdout


def test_without_arguments() -> None:
    done = finished([*PROGRAM])
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Usage:" in done.stderr and b"generate" in done.stderr


def test_version() -> None:
    done = finished([*PROGRAM, "--version"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"edge-runtime, version {__version__}\n"


# --- streams --------------------------------------------------------------------------------------


def test_text_streams() -> None:
    with process(command(*LONG)) as running:
        assert running.stdout is not None and running.stderr is not None
        first = os.read(running.stdout.fileno(), 1 << 16)
        assert first and running.poll() is None
        chunks = [first]
        while chunk := os.read(running.stdout.fileno(), 1 << 16):
            chunks.append(chunk)
        assert running.wait(PATIENCE_S) == 0
        assert running.stderr.read() == b""
    assert len(chunks) > 10
    assert len(b"".join(chunks)) > PIPE_BYTES
    assert len(b"".join(chunks).decode()) == LONG_TOKENS + 1  # characters of one token each, and the line feed


def test_a_reader_that_leaves_is_none_of_our_business() -> None:
    with process(command(*LONG)) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.read(5)
        running.stdout.close()
        assert running.wait(PATIENCE_S) == 141
        assert running.stderr.read() == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["plan", "--help"],
        ["plan", "--bundle", "{bundle}", "--board", "orin-nano-8"],
        ["plan", "--bundle", "{bundle}", "--board", "orin-nano-8", "--json"],
        ["doctor"],
        ["simulate", "--minutes", "0.5"],
    ],
    ids=" ".join,
)
def test_every_command_says_the_same_of_a_reader_that_has_left(arguments: list[str]) -> None:
    """Whoever prints: click, rich, or a command by itself. 1 has a meaning of its own for some of them."""
    reading, writing = os.pipe()
    os.close(reading)
    given = [one.format(bundle=tiny.bundle()) for one in arguments]
    try:
        with process([*PROGRAM, *given], stdout=writing) as running:
            assert running.stderr is not None
            assert running.wait(PATIENCE_S) == 141
            assert running.stderr.read() == b""
    finally:
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk() -> None:
    with open("/dev/full", "wb") as full, process(command(*LONG), stdout=full.fileno()) as running:
        assert running.stderr is not None
        assert running.wait(PATIENCE_S) == 1
        assert running.stderr.read() == b"error: No space left on device\n"


def without(streams: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Started with these closed, as a shell writes it."""
    return finished(["sh", "-c", f'exec "$@" {streams}', "sh", *arguments])


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["top", "--help"], command("generate", "--prompt", "Hi", *OPTIONS)]
)
def test_a_closed_stdout(arguments: list[str]) -> None:
    given = arguments if arguments[0] == sys.executable else [*PROGRAM, *arguments]
    done = without(">&-", *given)
    assert (done.returncode, done.stderr) == (1, b"error: stdout is closed\n")
    assert without("<&- >&- 2>&-", *given).returncode == 1


def test_a_closed_stdout_of_a_command_that_fails_before() -> None:
    done = without(">&-", *PROGRAM, "complete", "--socket", "/nowhere.sock", "--prompt", "Hi")
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: no daemon answers at /nowhere.sock") and done.stderr.count(b"\n") == 1


def test_a_closed_stderr() -> None:
    hi = command("generate", "--prompt", "Hi", *OPTIONS, "--max-tokens", "4")
    assert without("2>&-", *hi).stdout == finished(hi).stdout != b""
    for arguments in ([], ["generat"], ["status", "--socket", "/nowhere.sock"]):
        assert without("2>&-", *PROGRAM, *arguments).returncode == 2


def test_a_closed_stdin() -> None:
    done = without("<&-", *command("chat", *OPTIONS))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = without("<&-", *command("generate", "--prompt-file", "-", "--max-tokens", "4", *OPTIONS))
    assert b"Traceback" not in done.stderr


def test_an_interruption_is_one_line() -> None:
    with process(command(*LONG)) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.read(4)
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE_S) == 130
        assert running.stderr.read() == b"error: interrupted\n"
        assert len(running.stdout.read().decode("utf-8", "ignore")) < LONG_TOKENS


@pytest.mark.parametrize("library", ["_multiarray_umath", "onnxruntime"])
def test_an_interruption_while_it_loads_is_quiet(library: str) -> None:
    """As an exception inside a library's import, it came out as an ImportError."""
    with process(command(*LONG)) as running:
        maps = Path(f"/proc/{running.pid}/maps")
        while library not in maps.read_text(errors="replace"):
            time.sleep(0.002)
        running.send_signal(signal.SIGINT)
        output, said = running.communicate(timeout=PATIENCE_S)
        # By the signal itself: a shell shows 130 for both.
        assert (running.returncode, output, said) == (-signal.SIGINT, b"", b"")


def test_an_interruption_of_a_chat_from_a_pipe() -> None:
    """While it waits for a line that no person types: it ends."""
    with process(command("chat", *OPTIONS, "--max-tokens", "20"), stdin=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None and running.stdin is not None
        running.stdin.write(b"Hi\n")
        running.stdin.flush()
        assert len(running.stdout.readline().decode()) == 21
        assert running.stderr.readline() == b"[stopped at --max-tokens]\n"
        # One that comes before it waits ends an answer that has ended.
        for _ in range(int(PATIENCE_S)):
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                running.wait(1.0)
                break
        assert running.wait(PATIENCE_S) == 130
        assert (running.stdout.read(), running.stderr.read()) == (b"", b"error: interrupted\n")


def test_a_locale_without_the_characters() -> None:
    plain = finished(command("generate", "--prompt", "Grüße", *OPTIONS, "--max-tokens", "20"))
    narrow = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = finished(command("generate", "--prompt", "Grüße", *OPTIONS, "--max-tokens", "20"), **narrow)
    assert (done.returncode, done.stderr) == (0, b"")
    # The prompt was understood, and what the locale lacks is a question mark.
    assert done.stdout == plain.stdout.decode().encode("ascii", "replace")
    done = finished(command("chat", "--max-tokens", "2", "--system", "ü"), **narrow)
    assert (done.returncode, done.stderr) == (0, b"")


# --- a terminal -----------------------------------------------------------------------------------


class Terminal:
    """The other end of a pseudo terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, pattern: str, urge: Callable[[], None] = lambda: None) -> str:
        """What came since the last call, up to the pattern. ``urge`` is called first, and whenever nothing comes."""
        end = time.monotonic() + PATIENCE_S
        urge()
        while not (found := re.search(pattern, self._text(), re.DOTALL)):
            assert time.monotonic() < end, f"no {pattern!r} in {self._text()!r}"
            if not self._read(2.0):
                urge()
        whole = self._text()
        self._unread = whole[found.end() :].encode()
        return whole[: found.end()]

    def rest(self) -> str:
        with suppress(OSError):  # a terminal without a program at its other end
            while self._read(0.2):
                pass
        return self._text()

    def _read(self, patience_s: float) -> bool:
        if not select.select([self._descriptor], [], [], patience_s)[0]:
            return False
        self._unread += os.read(self._descriptor, 1 << 16)
        return True

    def _text(self) -> str:
        return self._unread.decode("utf-8", "replace").replace("\r\n", "\n")


@contextmanager
def terminal(arguments: list[str]) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    try:
        with process(arguments, stdin=theirs, stdout=theirs, stderr=theirs) as running:
            os.close(theirs)
            yield Terminal(ours), running
    finally:
        os.close(ours)


def test_chat_in_a_terminal() -> None:
    with terminal(command("chat", *OPTIONS, "--max-tokens", "12")) as (screen, running):
        assert "/reset" in screen.wait_for("> ")
        screen.type("Hi\n")
        answer = screen.wait_for("> ").replace("Hi\n", "")
        assert re.search(r"\S{12}\n\[stopped at --max-tokens\]\n", answer)
        # Nothing at the prompt is lost by Ctrl-C, and it says how to leave.
        # Again where it was lost: Python misses a signal that comes while readline is about to wait.
        screen.wait_for("/quit or Ctrl-D leaves\n.*> ", lambda: running.send_signal(signal.SIGINT))
        screen.type("/rest\n")
        assert "did you mean '/reset'?" in screen.wait_for("error.*> ")
        screen.type("/reset\n")
        screen.wait_for("> ")
        # The conversation begins anew, so the answer is the first one.
        screen.type("Hi\n")
        assert screen.wait_for("> ").replace("Hi\n", "")[-20:] == answer[-20:]
        screen.type("/quit\n")
        assert running.wait(PATIENCE_S) == 0
        assert "Traceback" not in screen.rest()


def test_an_answer_that_is_interrupted_in_a_terminal() -> None:
    with terminal(command("chat", *OPTIONS, "--context", "4096")) as (screen, running):
        screen.wait_for("> ")
        screen.type("Hi\n")
        screen.wait_for(r"Hi\n\S{3}")
        running.send_signal(signal.SIGINT)
        rest = screen.wait_for("> ")
        assert rest.endswith("\n[interrupted]\n> ") and len(rest) < 4000
        screen.type("\x04")
        assert running.wait(PATIENCE_S) == 0


def test_control_characters_do_not_reach_a_terminal() -> None:
    options = ("--threads", "1", "--temperature", "1.5", "--seed", "1", "--max-tokens", "300")
    with terminal(command("generate", "--prompt", "Hi", *options)) as (screen, running):
        assert running.wait(PATIENCE_S) == 0
        text = screen.rest()
    assert re.search("[\u2400-\u2421]", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_no_colours_without_a_terminal() -> None:
    for arguments in (["--help"], ["generate", "--help"], ["nope"]):
        done = finished([*PROGRAM, *arguments], FORCE_COLOR="")
        assert b"\x1b" not in done.stdout + done.stderr
