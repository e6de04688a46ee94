"""``edge-runtime telemetry`` on trees of boards and on recordings."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jtop_lines import saying, trouble_line

from edge_runtime.boards import board_named
from edge_runtime.cli import main
from edge_runtime.simulator.release import JETPACK_7_2
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry import opening
from edge_runtime.telemetry.recording import read_recording
from edge_runtime.telemetry.sample import GpuReading, Rail, Sample, Throttling, Zone


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["telemetry", *map(str, arguments)])


@pytest.fixture
def nano(tmp_path: Path) -> BoardTree:
    tree = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"), JETPACK_7_2)
    shown = Sample(0.0, "plant", rails=(Rail("VDD_IN", 14_500),), zones=(Zone("tj", 78.5),))
    tree.show(replace(shown, gpu=GpuReading(612.0, load=0.97), throttling=Throttling((("oc3", 4),))))
    return tree


def test_a_page_shows_the_board_and_where_it_is_from(nano: BoardTree) -> None:
    nano.set_temperature("cv0", -256)
    page = run("--root", nano.root).stdout
    for words in (
        "source     sysfs of Jetson Orin Nano 8GB: it has all that jtop tells\n",
        "power      14.50 W\n",
        "           VDD_SOC 0.90 W\n",
        "mode       25W\n",
        "soc2 45.0 C, tj 78.5 C\n",
        "throttles  at 99.0 C, off at 104.5 C\n",
        "gpu        612 of 918 MHz, load 97%\n",
        "events     oc1 0, oc2 0, oc3 4\n",
        "problem    zone cv0: off, it reads -256 C\n",
    ):
        assert words in page
    assert page.count("\n") == 16


def test_lines_stand_under_each_other(nano: BoardTree) -> None:
    head, *lines = run("--root", nano.root, "--count", 2, "--interval", 0.02).stdout.splitlines()
    assert head == "# sysfs of Jetson Orin Nano 8GB: it has all that jtop tells"
    assert [line.split(" s  ")[1] for line in lines] == 2 * [
        " 14.50 W   78.5 C tj      612 MHz  97%    5.83 GB free  25W         oc 4, throttle 0"
    ]


def test_json_is_a_recording(nano: BoardTree, tmp_path: Path) -> None:
    path = tmp_path / "board.ndjson"
    path.write_text(run("--root", nano.root, "--source", "sysfs", "--json", "--count", 3, "--interval", 0.02).stdout)
    recorded = read_recording(path).samples
    assert [sample.power_mw for sample in recorded] == [14_500] * 3
    assert "power      14.50 W\n" in run("--replay", path).stdout
    assert run("--replay", path, "--follow").stdout.count(" 14.50 W ") == 3
    assert run("--replay", path, "--json", "--follow").stdout == path.read_text()


def test_a_machine_without_a_source_is_told_in_a_line(tmp_path: Path) -> None:
    result = run("--root", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path} holds no Jetson's files: nothing is measured\n"
    result = run("--root", tmp_path, "--source", "sysfs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: no sensor of a Jetson below {tmp_path}/sys\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--source", "none"], "--source"),
        (["--interval", "0"], "--interval"),
        (["--count", "0"], "--count"),
        (["--count", "99999999999999999999"], "--count"),
        (["--interval", "nan", "--count", "2"], "'nan' is not a finite number"),
        (["--interval", "5"], "not with --interval"),
        (["--follow", "--count", "2"], "give either --follow, which has no end, or --count"),
        (["--root", "/nowhere/at/all"], "'/nowhere/at/all' does not exist"),
        (["--root", "/etc/passwd"], "'/etc/passwd' is a file"),
        (["--root", ""], "it is empty"),
        (["--source", "jtop", "--root", "/tmp"], "not with --root"),
        (["--replay", "/nowhere/at/all"], "recording /nowhere/at/all: No such file"),
        (["--replay", "/dev/zero"], "/dev/zero: it is no regular file"),
        (["--replay", "/tmp"], "/tmp: Is a directory"),
        (["--replay", "x", "--source", "jtop"], "--replay shows a file, as fast as it can: not with --source"),
        (["--replay", "x", "--root", "/"], "not with --root"),
        (["--replay", "x", "--interval", "2", "--follow"], "not with --interval"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and words in result.stderr


def test_a_pipe_that_nobody_writes_to_is_no_recording_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = run("--replay", tmp_path / "pipe")
    assert result.exit_code == 2 and "it is no regular file" in result.stderr


def test_a_recording_that_was_cut_off_is_shown_as_far_as_it_goes(nano: BoardTree, tmp_path: Path) -> None:
    path = tmp_path / "board.ndjson"
    whole = run("--root", nano.root, "--json", "--count", 2, "--interval", 0.02).stdout
    for cut in (whole[:-2], whole[:-40], whole + '{"', whole.encode() + b'{"source": "\xc3'):
        path.write_bytes(cut if isinstance(cut, bytes) else cut.encode())
        result = run("--replay", path, "--follow")
        lines = 1 if len(cut) < len(whole) else 2
        assert result.exit_code == 0 and result.stdout.count(" 14.50 W ") == lines
        words = f"{path}: line {lines + 1} was cut off while it was written, and is left out"
        assert result.stderr == words + "\n"


def test_a_service_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known as soon as the process that asks has started."""
    says = saying(trouble_line("no-service", "/run/jtop.sock is not there: the jtop service does not run"))
    monkeypatch.setattr(opening, "find_jtop", lambda: opening.Jtop(tuple(says), True))
    began_s = time.monotonic()
    result = run("--source", "jtop")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: /run/jtop.sock is not there: the jtop service does not run\n"
    assert time.monotonic() - began_s < 25.0
