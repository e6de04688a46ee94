"""Long work tells how far it is where nobody watches too: a line now and then on stderr, and none of what is short."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from server_runs import Puppet, running, tiny_model

from edge_runtime import console
from edge_runtime.bench.load import run_fairness
from edge_runtime.cli import main
from edge_runtime.cli.progress import long_progress, nested_progress
from edge_runtime.client import EdgeRuntimeError
from edge_runtime.console import SlowLines
from edge_runtime.errors import QueueFull
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from export.progress import progress_bars


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()

    class Timed(SlowLines):
        def __init__(self) -> None:
            super().__init__(clock=made)

    for module in ("edge_runtime.cli.progress", "export.progress"):
        monkeypatch.setattr(f"{module}.SlowLines", Timed)
    return made


def test_a_line_now_and_then_and_none_of_short_work(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with long_progress("seconds", 100) as told, progress_bars() as bars:
        for second in range(100):
            clock.now_s += 0.1
            told(second)
            bars("hash", second, 100)
        assert capsys.readouterr().err == ""
        for second in range(100):
            clock.now_s += 0.5
            told(second)
        assert re.fullmatch(r"(seconds: \d+ of 100, some \d+ s to go\n){2}", capsys.readouterr().err)
        bars("hash: \x1b[2J", 50, 200)
        assert capsys.readouterr().err == "hash: \u241b[2J: 25%\n"


def test_the_first_of_all_and_each_of_the_whole_are_told_at_once(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with nested_progress("domains") as report:
        for domain in range(3):
            report("domains", domain, 3)
            for part in range(9):
                report(f"part {part}", part, 9)
        assert capsys.readouterr().err == "domains: 0 of 3\ndomains: 1 of 3\ndomains: 2 of 3\n"
        clock.now_s += 30.0
        report("part 5", 5, 9)
        report("part 6", 6, 9)
        assert capsys.readouterr().err == "part 5: 5 of 9\n"
    with nested_progress() as report:
        report("rounds", -1, 9)
        report("rounds", 1, 9)
        assert capsys.readouterr().err == "rounds: 0 of 9\n"


def test_load_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LINE_EVERY_S", 0.0)
    model = tiny_model(tmp_path, capacity=4096)
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    try:
        with running(model, scheduler, tmp_path) as run:
            arguments = ["load", "--socket", run.path, "--clients", "2", "--minutes", "0.06", "--json"]
            done = CliRunner().invoke(main, [*arguments, str(tmp_path / "load.json")])
    finally:
        scheduler.close()
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("fairness: a short answer beside a long one\n")
    assert re.search(r"^load, 2 clients, seconds: \d of 4, some \d+ s to go$", done.stderr, re.MULTILINE)
    assert json.loads((tmp_path / "load.json").read_text())["load"]["lost"] == 0


def test_a_daemon_that_refuses_the_long_one_is_an_error_and_no_wait_without_end(tmp_path: Path) -> None:
    model, puppet = tiny_model(tmp_path, capacity=4096), Puppet()

    puppet.refusal = QueueFull("the queue is full")
    with running(model, puppet, tmp_path) as run:

        async def within() -> None:
            await asyncio.wait_for(run_fairness(Path(run.path), "Hi"), 60.0)

        with pytest.raises(EdgeRuntimeError, match="the queue is full"):
            asyncio.run(within())
