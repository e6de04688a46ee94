"""``edge-runtime top`` and ``status``: the picture in any room, and the keys."""

from __future__ import annotations

import os
import pty
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len
from scripted_server import Exchange, Script, scripted_server
from test_client import STATUS, error

from edge_runtime.cli import main
from edge_runtime.cli.view import lines
from edge_runtime.schema import plain
from edge_runtime.status import (
    BoardStatus,
    BudgetStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SlotStatus,
    SourceStatus,
    SpeculationStatus,
    SpeedStatus,
    Status,
)

FULL = replace(
    STATUS,
    uptime_s=100_000.0,
    model=ModelStatus("gemma-3-270m", "gemma3", "/b", 413_000_000, 2048, "draft_model", 1.5),
    requests=RequestStatus(2, 1, 64, 130, 123, 1, 2, 3),
    slots=(SlotStatus(0, True, 1024, None), SlotStatus(1, False, 2048, 75.0), SlotStatus(2, False, 0, None)),
    speculation=SpeculationStatus(True, "K=2: 1.2x", 2.3, 1, 2, 3, 0.712, 2.4, (0.81, 0.6, 0.25)),
    speed=SpeedStatus(123.44, 45.12, 120.9, 8.1, None, 50_000, 7000, 6000),
    memory=MemoryStatus(900_000_000, 812_000_000, 3, 3_000_000_000),
    board=BoardStatus(7400, 61.5, 612, "none", 0.4),
)


def texts(status: Status, width: int = 80, height: int | None = None, notice: str = "") -> list[str]:
    return [line.plain for line in lines(status, width, height, notice)]


def test_what_is_shown() -> None:
    shown = "\n".join(texts(FULL))
    for words in (
        "ready  up 1 d 3 h", "gemma-3-270m (gemma3), context 2048, bundle 413 MB", "123.4 tok/s", "ttft 45.1/121 ms",
        "tpot 8.1/- ms", "2 running, 1 of 64 waiting", "finished 123  failed 1  cancelled 2  refused 3",
        "812 MB of 3.00 GB, peak 900 MB", "temperature 61.5 °C  power 7.4 W  clock 612 MHz  state none",
        "draft_model, on, K 2.3, acceptance 71%, length 2.40", "K=2: 1.2x", "1024 tokens, busy",
        "2048 tokens, idle 1 min 15 s", "0 tokens, free",
    ):  # fmt: skip
        assert words in shown, f"{words!r} not in\n{shown}"


def test_bars_are_as_long_as_what_they_show() -> None:
    shown, none = texts(FULL), replace(FULL.speculation, acceptance_by_position=())
    heading = shown.index("accepted   by position in the draft")
    bars = {line.split()[0]: line.count("█") for line in shown[heading + 1 : heading + 4]}
    assert bars == {"1st": 19, "2nd": 14, "3rd": 6}  # of 24
    assert not any(line.startswith("accepted") for line in texts(replace(FULL, speculation=none)))
    slots = [line.count("█") for line in texts(FULL) if line.startswith("  slot")]
    assert slots == [12, 24, 0]


def test_a_long_name_of_a_source_keeps_its_distance() -> None:
    names = ("prompt_lookup", "suffix", "draft_model", "multi_token", "parallel_heads")
    sources = tuple(SourceStatus(name, 4, 10, 7) for name in names)
    told = texts(replace(FULL, speculation=replace(FULL.speculation, sources=sources)))
    rows = [line for line in told if line.endswith("  10 drafted, 70% kept")]
    assert [row.split()[0] for row in rows] == list(names)
    assert len({row.index("10 drafted") for row in rows}) == 1
    # As all that stands behind a label does.
    assert all(line[10] == " " for line in told[1:])


def test_in_a_critical_state_nothing_is_allowed() -> None:
    board = replace(FULL.board, throttle_state="critical")
    told = replace(FULL, board=board, budget=BudgetStatus(None, 0.0, False, "power: the cap is 5 W", 5000))
    shown = "\n".join(texts(told))
    assert "allowed    nothing: no step runs, no request is admitted" in shown and "any K" not in shown
    warm = replace(FULL, board=replace(board, throttle_state="warm"), budget=replace(told.budget, admit=True))
    assert "allowed    any K, 5.0 W" in "\n".join(texts(warm))


def test_positions_are_counted_as_people_do() -> None:
    far = replace(FULL, speculation=replace(FULL.speculation, acceptance_by_position=(0.5,) * 23))
    labels = [line.split()[0] for line in texts(far)]
    for label in ("4th", "10th", "11th", "12th", "13th", "21st", "22nd", "23rd"):
        assert label in labels


def test_what_is_not_known_is_a_dash() -> None:
    shown = "\n".join(texts(STATUS))
    assert "temperature -  power -  clock -  state -" in shown and "0 MB of -" in shown
    loading = replace(STATUS, state="loading", reason="the model is being loaded", model=None, slots=())
    shown = "\n".join(texts(loading))
    assert "loading" in shown and "the model is being loaded" in shown and "model  " not in shown


@pytest.mark.parametrize("width", [80, 60, 40, 25, 12, 1])
@pytest.mark.parametrize("height", [24, 10, 3, 1])
def test_it_fits_into_any_window(width: int, height: int) -> None:
    many = replace(FULL, slots=FULL.slots * 20)
    shown = texts(many, width, height, notice="no daemon answers at /run/edge-runtime/api.sock")
    assert len(shown) <= height
    assert all(cell_len(line) <= width for line in shown)


def test_at_80_by_24_nothing_of_a_usual_daemon_is_cut() -> None:
    shown = texts(FULL, 80, 23)
    assert len(shown) < 23 and not any("…" in line for line in shown)


def test_what_a_daemon_says_is_shown_and_not_obeyed() -> None:
    assert FULL.model is not None
    hostile = replace(FULL, reason="a\x1b[2Jb\nc", model=replace(FULL.model, name="[red]\x07m[/red]"))
    shown = "\n".join(texts(hostile, 200))
    assert "\x1b" not in shown and "\x07" not in shown and "a␛[2Jb c" in shown and "[red]␇m[/red]" in shown


# --- the commands ---------------------------------------------------------------------------------


def telling(status: Status) -> Script:
    def script(exchange: Exchange) -> None:
        while True:
            exchange.request()
            exchange.answer(plain(status))

    return script


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("command", [["top", "--once"], ["top"], ["status"]])
def test_one_frame(tmp_path: Path, command: list[str]) -> None:
    with scripted_server(tmp_path / "s", [telling(FULL)]):
        result = run(*command, "--socket", str(tmp_path / "s"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.rstrip() for line in result.stdout.splitlines()] == [line.rstrip() for line in texts(FULL)]


@pytest.mark.parametrize("command", [["top", "--once"], ["top"], ["status"]])
@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_long_reason_is_whole_in_a_log(
    tmp_path: Path, command: list[str], columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut off there is the cause."""
    monkeypatch.setenv("COLUMNS", columns)
    reason = "reload failed: " + "very " * 60 + "long"
    with scripted_server(tmp_path / "s", [telling(replace(FULL, reason=reason))]):
        result = run(*command, "--socket", str(tmp_path / "s"))
    assert result.exit_code == 0 and reason in result.stdout.splitlines()


@pytest.mark.parametrize("command", [["top", "--once"], ["top"], ["status"], ["status", "--json"]])
def test_no_daemon(tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--socket", str(tmp_path / "s"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: no daemon answers at {tmp_path / 's'}") and result.stderr.count("\n") == 1
    assert "edge-runtime serve --config" in result.stderr


PROGRAM = (sys.executable, "-m", "edge_runtime", "top", "--interval", "0.1", "--socket")
PATIENCE_S = 60.0


class Terminal:
    """A child in a terminal of 80 by 24, and all that it has written."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process, self._master = process, master
        self.written = ""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                self.written += data.decode(errors="replace")
                self._changed.notify_all()

    def until(self, words: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.written.count(words) >= times, PATIENCE_S), self.written

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ends(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def terminal(path: Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        [*PROGRAM, str(path)], stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        try:
            yield Terminal(process, master)
        finally:
            process.kill()
            process.wait()
            os.close(master)


@pytest.mark.parametrize("way", ["q", "ctrl-c"])
def test_it_goes_on_until_it_is_left(tmp_path: Path, way: str) -> None:
    with scripted_server(tmp_path / "s", [telling(FULL)]), terminal(tmp_path / "s") as top:
        top.until("123.4 tok/s", 3)
        if way == "q":
            top.type(b"q")
        else:
            top.process.send_signal(signal.SIGINT)
        assert top.ends() == 0
        assert "Traceback" not in top.written
        assert top.written.rindex("\x1b[?1049l") > top.written.rindex("tok/s")  # the screen is as it was


def test_a_daemon_that_goes_away_may_come_back(tmp_path: Path) -> None:
    with scripted_server(tmp_path / "s", [telling(FULL)]):
        pass
    refused = error("draining: the daemon stops")
    asked = threading.Event()

    def gone(exchange: Exchange) -> None:
        exchange.request()
        exchange.answer(plain(FULL))
        while not asked.is_set():
            exchange.request()
            exchange.answer(refused, 503)

    back = replace(FULL, speed=replace(FULL.speed, tokens_per_s=77.7))
    with scripted_server(tmp_path / "s", [gone, telling(back)]), terminal(tmp_path / "s") as top:
        top.until("draining: the daemon stops")
        asked.set()
        top.until("77.7 tok/s")
        top.type(b"q")
        assert top.ends() == 0
