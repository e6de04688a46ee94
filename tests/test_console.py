"""What both command lines have in common: streams that cannot hold a character, packages that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console
from scripted_server import scripted_server
from test_cli_top import FULL, telling

from edge_runtime.cli import main
from edge_runtime.console import OneLineErrors, counted
from edge_runtime.errors import first_line

ROOT = Path(__file__).resolve().parent.parent
PICTURES = "▁▂▃▄▅▆▇█ ▏▎▍▌▋▊▉ 61.5 °C … ± × é 字 \udcff"


@click.group(cls=OneLineErrors)
def _program() -> None:
    pass


@_program.command("echo")
def _echo() -> None:
    click.echo(PICTURES)


@_program.command("greedy")
def _greedy() -> None:
    raise MemoryError


@_program.command("rich")
def _rich() -> None:
    Console(width=200).print(PICTURES)


@_program.command("write")
def _write() -> None:
    sys.stdout.write(PICTURES)


@_program.command("lacking")
@click.argument("name")
def _lacking(name: str) -> None:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_name_in_an_error_does_not_command_the_terminal(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["bench", "--bundle", str(tmp_path / "a\x1b[2J\x9bb")])
    assert done.exit_code == 2 and "a\u241b[2J\ufffdb" in done.stderr and done.stderr.rstrip("\n").isprintable()


def test_what_was_printed_is_not_lost_where_another_file_finds_no_room(tmp_path: Path) -> None:
    """Tables of an hour wait in a buffer while a page is written."""
    code = (
        "import sys, test_console as t\n"
        "@t._program.command('x')\n"
        "def x():\n"
        "    sys.stdout.write('figures')\n"
        "    raise OSError(28, 'No room', 'page.html')\n"
        "t._program(['x'])"
    )
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT / "tests", stdout=out, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "error: page.html: No room\n")
    assert (tmp_path / "out").read_text() == "figures"


def test_one_is_no_plural() -> None:
    told = [counted(number, "minute") for number in (0, 0.5, 1, 1.0, 2, 1200)]
    assert told == ["0 minutes", "0.5 minutes", "1 minute", "1 minute", "2 minutes", "1200 minutes"]


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("way", ["echo", "rich", "write"])
def test_no_locale_is_too_poor_for_what_is_written(way: str, charset: str) -> None:
    done = CliRunner(charset=charset).invoke(_program, [way])
    assert (done.exit_code, done.stderr) == (0, "")
    if charset == "ascii" and way != "echo":  # click takes an ASCII terminal for one that was set up wrongly
        assert done.stdout.rstrip() == "._-=+*## ---=### 61.5 C ~ ~ x ? ? ?"
    assert "61.5" in done.stdout and done.stdout.rstrip()[-1] == "?"


def test_memory_that_is_not_there_is_a_line() -> None:
    done = CliRunner().invoke(_program, ["greedy"])
    assert (done.exit_code, done.stdout, done.stderr) == (1, "", "error: not enough memory\n")


def test_commands_in_a_poor_locale(tmp_path: Path) -> None:
    runner = CliRunner(charset="ascii")
    for arguments in (["simulate", "--minutes", "0.5"], ["simulate", "--plants", "1", "--minutes", "0.5"]):
        done = runner.invoke(main, arguments)
        assert (done.exit_code, done.stderr) == (0, "") and "SIMULATION" in done.stdout
    for arguments in (["status"], ["top", "--once"]):
        with scripted_server(tmp_path / "s", [telling(replace(FULL, reason="naïve"))]):
            done = runner.invoke(main, [*arguments, "--socket", str(tmp_path / "s")])
        assert (done.exit_code, done.stderr) == (0, "")
        assert "61.5 C" in done.stdout and "#####" in done.stdout and "na?ve" in done.stdout


def test_the_program_itself_in_a_poor_locale() -> None:
    command = [sys.executable, "-m", "edge_runtime", "simulate", "--minutes", "0.5"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"die, C" in done.stdout


@pytest.mark.parametrize(("name", "extra"), [("matplotlib.figure", "plot"), ("onnx", "export"), ("torch", "reference")])
def test_a_package_that_is_not_there_is_told_with_what_brings_it(name: str, extra: str) -> None:
    """Nothing of this is in a package index: it is installed from its sources."""
    done = CliRunner().invoke(_program, ["lacking", name])
    where = f"in the directory of edge-runtime's sources: pip install '.[{extra}]'"
    told = f"error: {name} is not installed; it comes with the extra {extra!r}, {where}\n"
    assert (done.exit_code, done.stderr) == (2, told)


def test_a_library_that_says_nothing_is_told_by_its_kind() -> None:
    assert first_line(MemoryError()) == "MemoryError" and first_line(ValueError("\n a\nb")) == "a"
