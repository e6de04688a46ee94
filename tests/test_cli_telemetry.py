"""``edge-runtime telemetry`` on trees of boards and on recordings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_runtime.boards import board_named
from edge_runtime.cli import main
from edge_runtime.simulator.release import JETPACK_7_2
from edge_runtime.simulator.tree import BoardTree
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
    recorded = read_recording(path)
    assert [sample.power_mw for sample in recorded] == [14_500] * 3
    assert "power      14.50 W\n" in run("--replay", path).stdout
    assert run("--replay", path, "--follow").stdout.count(" 14.50 W ") == 3
    assert run("--replay", path, "--json", "--follow").stdout == path.read_text()


def test_a_machine_without_a_source_is_told_in_a_line(tmp_path: Path) -> None:
    result = run("--root", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: this machine is no Jetson: nothing is measured\n"
    result = run("--root", tmp_path, "--source", "sysfs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"error: no sensor of a Jetson below {tmp_path}/sys\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--source", "none"], "--source"),
        (["--interval", "0"], "--interval"),
        (["--count", "0"], "--count"),
        (["--replay", "/nowhere/at/all"], "recording /nowhere/at/all: No such file"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and words in result.stderr
