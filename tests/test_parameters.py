"""What options of both command lines take, of all commands: no number that is none, no empty path, no file that turns
out to be unwritable behind an hour of work.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from click.types import FloatParamType

from edge_runtime.cli import main as runtime
from edge_runtime.errors import ConfigError
from edge_runtime.files import check_directory_writable, check_replaceable, check_writable, read_at_most, replace_text
from edge_runtime.parameters import Finite, Kept, Place, Whole, Word, Written, WrittenDirectory, refuse_useless
from export.__main__ import main as export

NO_NUMBERS = ("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "-1e999", "")


def commands() -> Iterator[tuple[str, click.Command]]:
    for program, group in (("edge-runtime", runtime), ("edge-export", export)):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            assert not isinstance(command, click.Group), "look into it here too"
            yield f"{program} {name}", command


PARAMETERS = [(f"{name} {param.opts[0]}", param) for name, command in commands() for param in command.params]


def typed(kind: type[click.ParamType]) -> list[click.Parameter]:
    return [pytest.param(param, id=name) for name, param in PARAMETERS if isinstance(param.type, kind)]  # type: ignore[misc]


def refused(param: click.Parameter, value: str) -> str:
    with pytest.raises(click.BadParameter) as caught:
        param.type.convert(value, param, None)
    message = caught.value.format_message()
    assert "\n" not in message and param.opts[0].strip("-") in message.lower()
    return message


def test_there_are_commands_to_look_at() -> None:
    assert len(list(commands())) > 20 and len(typed(Finite)) > 12 and len(typed(Written)) > 6


@pytest.mark.parametrize("param", typed(FloatParamType))
def test_no_option_takes_a_number_that_is_none(param: click.Parameter) -> None:
    assert isinstance(param.type, Finite), "use edge_runtime.parameters.Finite: click's own floats let NaN through"
    for value in NO_NUMBERS:
        refused(param, value)


BOUNDED_BY_WHAT_THEY_ARE_FOR = {
    "--context": "the bundle", "--temperature": "the law", "--top-k": "the law", "--top-p": "the law",
    "--min-p": "the law", "--accuracy-level": "the recipe", "--block-size": "the recipe", "--max-context": "the recipe",
    "--lanes": "the recipe", "--layers": "the recipe", "--vocab-rows": "the recipe",
}  # fmt: skip


@pytest.mark.parametrize("param", [*typed(click.types.IntParamType), *typed(FloatParamType)])
def test_a_number_has_a_bound(param: click.Parameter) -> None:
    """A zero too many is told at once, and not by a machine that is out of memory."""
    if param.opts[0] not in BOUNDED_BY_WHAT_THEY_ARE_FOR:
        assert isinstance(param.type, Whole | Finite) and param.type.max is not None


@pytest.mark.parametrize("param", typed(click.IntRange))
def test_no_option_takes_an_integer_range(param: click.Parameter) -> None:
    """Neither in its help nor in a refusal: it takes one of them."""
    assert isinstance(param.type, Whole), "use edge_runtime.parameters.Whole"
    assert "is not a valid integer." in refused(param, "1e9")


def test_what_an_option_takes_reads_as_one_word() -> None:
    shown = [param.make_metavar(click.Context(runtime)) for _, param in PARAMETERS if isinstance(param, click.Option)]
    assert [one for one in shown if "RANGE" in one] == []


@pytest.mark.parametrize("param", typed(click.Path))
def test_no_option_takes_an_empty_word_for_a_place(param: click.Parameter) -> None:
    assert isinstance(param.type, Place), "use edge_runtime.parameters.Place: an empty path is the current directory"
    assert "is empty" in refused(param, "")
    assert "null character" in refused(param, "a\0b")


@pytest.mark.parametrize("param", typed(click.Path))
def test_a_name_that_no_file_can_have_is_a_wrong_option(param: click.Parameter) -> None:
    for name in ("x" * 256, "ü" * 128, "x/" * 2048 + "x"):
        assert "name too long" in refused(param, name)


def test_no_option_opens_a_file_by_itself() -> None:
    assert not typed(click.File), "use edge_runtime.parameters.Place or Written"


@pytest.mark.parametrize("param", [*typed(Written), *typed(WrittenDirectory)])
def test_what_cannot_be_written_is_told_before_the_work(param: click.Parameter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "cannot be written" in refused(param, str(tmp_path / "file" / "below"))
    assert "File name too long" in refused(param, str(tmp_path / ("x" * 300)))
    other = tmp_path if isinstance(param.type, Written) else tmp_path / "file"
    assert "cannot be written" in refused(param, str(other))
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["json_path", "plot_path"])
def test_every_file_of_figures_is_one_of_those(name: str) -> None:
    found = [param for _, param in PARAMETERS if param.name == name]
    assert found and all(isinstance(param.type, Written) for param in found)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Finite(0.0, 1.0), "1.5", "1.5 is not from 0 to 1."),
        (Finite(0.0, 1.0), "-0.5", "-0.5 is not from 0 to 1."),
        (Finite(1.0, 200.0, "watts"), "60000", "60000 is not from 1 to 200 watts."),
        (Finite(0.0, above=True), "0", "0 is not above 0."),
        (Finite(0.0, 1.0, above=True), "0", "0 is not above 0 and at most 1."),
        (Finite(low=2.0), "1", "1 is not at least 2."),
        (Finite(high=2.0), "3", "3 is not at most 2."),
        (Finite(), "nan", "'nan' is not a finite number."),
        (Finite(), "warm", "'warm' is not a valid float."),
        (Word(), "", "it is empty."),
    ],
)
def test_words_of_a_refusal(kind: click.ParamType, given: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(given, None, None)
    assert words in caught.value.format_message()


def test_what_is_a_number_or_a_place_is_taken(tmp_path: Path) -> None:
    assert [Finite(0.0, 1.0).convert(value, None, None) for value in ("0", "1", "1e-3", 0.5)] == [0.0, 1.0, 0.001, 0.5]
    assert Place().convert("a/b", None, None) == Path("a/b")
    assert Word().convert("x", None, None) == "x"


# Files


def test_a_file_that_can_be_written_is_not_touched(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    os.utime(there, (1.0, 1.0))
    for path in (there, tmp_path / "new", tmp_path / "not" / "yet" / "new", Path("/dev/null"), Path("/dev/stdout")):
        check_writable(path)
    for path in (tmp_path, tmp_path / "new", tmp_path / "not" / "yet"):
        check_directory_writable(path)
    assert os.listdir(tmp_path) == ["there"] and there.stat().st_mtime == 1.0 and there.read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "not" / "yet")
    check_writable(tmp_path / "link")
    (tmp_path / "wrong").symlink_to("/proc/nowhere.json")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name in ("wrong", "loop", "loop/below", "socket"):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_writable(tmp_path / name)


@pytest.mark.parametrize("path", ["/proc/edge-runtime.json", "/proc/version/x", "/proc/nowhere/deep/x.json"])
def test_where_even_root_cannot_write(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(Path(path))
    with pytest.raises(ConfigError, match="cannot be written"):
        check_directory_writable(Path(path))


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(ConfigError, match="/dev/zero: more than 1 MiB"):
        read_at_most(Path("/dev/zero"), 1 << 20, "")


def test_a_file_whose_name_another_one_takes_is_an_ordinary_one(tmp_path: Path) -> None:
    """As root, a rename over /dev/full takes the device away from the whole machine."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), Path("/dev/full")):
        with pytest.raises(ConfigError, match="no ordinary file"):
            check_replaceable(path)
    (tmp_path / "there").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "not" / "yet")
    for name in ("there", "new", "nowhere"):
        check_replaceable(tmp_path / name)


@pytest.mark.parametrize("stream", ["/dev/stdout", "/dev/stderr"])
def test_what_is_printed_to_a_file_is_not_lost_under_its_figures(tmp_path: Path, stream: str) -> None:
    """``bench --json /dev/stdout > FILE``: the tables would go to a file that has lost its name."""
    command = [sys.executable, "-c", f"from edge_runtime.files import *; check_replaceable(Path('{stream}'))"]
    with (tmp_path / "printed").open("w") as printed, (tmp_path / "errors").open("w") as errors:
        done = subprocess.run(command, stdout=printed, stderr=errors, timeout=60)
    assert done.returncode == 1
    assert f"{stream} cannot be written: it is where this command prints to" in (tmp_path / "errors").read_text()


def test_what_is_replaced_stays_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "file")
    for text in ("one", "two"):
        replace_text(tmp_path / "link", text)
        replace_text(tmp_path / "new" / "plain", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "file").read_text() == text
    assert os.listdir(tmp_path / "far") == ["file"] and os.listdir(tmp_path / "new") == ["plain"]
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_text(tmp_path / "pipe", "through")
        assert os.read(reader, 99) == b"through" and (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)


def test_a_name_that_is_too_long_only_while_it_is_written_is_told_before_the_work(tmp_path: Path) -> None:
    for size, ok in ((250, True), (251, False), (255, False)):
        path = tmp_path / ("x" * size)
        if ok:
            check_writable(path)
            replace_text(path, "text")
        else:
            with pytest.raises(ConfigError, match="File name too long"):
                check_writable(path)


def test_nothing_is_left_beside_what_could_not_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UnicodeEncodeError):
        replace_text(tmp_path / "file", "half \ud800")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_what_is_written_again_and_again_says_so_of_itself() -> None:
    kept = {name for name, param in PARAMETERS if isinstance(param.type, Kept)}
    assert kept == {"edge-runtime soak --record"} | {
        f"edge-runtime {command} --{name}" for command in ("bench", "compare") for name in ("json", "resume")
    }


# What has no effect


@click.command()
@click.option("--much", type=Finite(), default=1.0)
@click.option("--many/--few", default=True)
@click.option("--other", "another", is_flag=True)
@click.pass_context
def _command(said: click.Context, /, **given: object) -> None:
    refuse_useless(said, "today", ("much", "many"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], ""), (["--other"], ""), (["--much", "1"], "today: not with --much"), (["--few"], "today: not with --many")],
)
def test_what_was_said_in_vain_is_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(_command, arguments)
    assert done.exit_code == (2 if words else 0) and words in done.output
