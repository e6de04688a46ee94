"""A log that nobody takes, and files that find no room: what a full disk does to whatever is written."""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from edge_runtime.bench.records import write_record
from edge_runtime.cli import main
from edge_runtime.files import whole
from edge_runtime.server.logs import OneLine, Stderr
from export.training.checkpoint import write_tensors
from export.training.features import open_part

ROOT = Path(__file__).resolve().parent.parent


def _handler(descriptor: int) -> Stderr:
    handler = Stderr(descriptor)
    handler.setFormatter(OneLine(journal=True))
    return handler


def _log(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.LogRecord("edge_runtime", logging.INFO, "file.py", 1, text, (), None))


def _drained(reading: int) -> bytes:
    data = b""
    while select.select([reading], [], [], 0)[0]:
        data += os.read(reading, 1 << 20)
    return data


def test_a_reader_that_stops_holds_nobody_and_finds_what_it_missed() -> None:
    reading, writing = os.pipe()
    handler = _handler(writing)
    for count in range(300):
        _log(handler, f"line {count} " + "x" * 1000)
    first = _drained(reading).splitlines()
    handler.flush()
    for _ in range(20):
        first += _drained(reading).splitlines()
        handler.flush()
    assert [line.split()[1] for line in first] == [str(count).encode() for count in range(300)]
    # Much more than is kept: the oldest go, and their number is told.
    for count in range(5000):
        _log(handler, f"line {count} " + "x" * 50)
    told = b""
    for _ in range(20):
        told += _drained(reading)
        handler.flush()
    lines = told.splitlines()
    assert lines[-1].startswith(b"<6>line 4999 ")
    (lost,) = [int(line.split()[0]) for line in lines if b"were lost" in line]
    assert lost + len(lines) - 1 == 5000
    os.close(reading)
    _log(handler, "nobody is there")
    os.close(writing)
    _log(handler, "and not even a pipe")


def test_a_log_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    place = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    handler = _handler(full)
    _log(handler, "first")
    os.dup2(place, full)
    _log(handler, "second " + "y" * 9000)
    first, second = (tmp_path / "log").read_bytes().splitlines()
    assert first == b"<6>first" and second.startswith(b"<6>second y") and len(second) <= 4000
    os.close(full)
    os.close(place)


@pytest.mark.parametrize("full", [">/dev/full", ">&-"], ids=["full", "closed"])
def test_an_exit_code_says_it_where_stderr_takes_nothing(full: str) -> None:
    command = ["sh", "-c", f'exec "$@" 2{full}', "sh", sys.executable, "-m", "edge_runtime", "plan", "/none"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


# --- files ----------------------------------------------------------------------------------------


@contextmanager
def little_room(most_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond: as on a disk that is full, in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _record(path: Path, size: int) -> None:
    write_record(path, {"texts": ["x" * size]})


def _tensors(path: Path, size: int) -> None:
    write_tensors(path, {"head": np.ones((size, 1), np.float32)})


def _archive(path: Path, size: int) -> None:
    with whole(path) as partial:
        np.savez(partial, rows=np.ones(size))


@pytest.mark.parametrize(("name", "write"), [("a.json", _record), ("b.safetensors", _tensors), ("c.npz", _archive)])
def test_a_full_disk_leaves_what_was_there_and_names_the_file(
    tmp_path: Path, name: str, write: Callable[[Path, int], None]
) -> None:
    path = tmp_path / name
    write(path, 10)
    before = path.read_bytes()
    with little_room(40_000), pytest.raises(OSError, match="File too large") as caught:
        write(path, 50_000)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    write(path, 50_000)
    assert path.stat().st_size > 40_000


@pytest.mark.parametrize("arguments", [
    ["simulate", "--minutes", "0.5", "--json"], ["simulate", "--minutes", "0.5", "--plants", "1", "--json"],
])  # fmt: skip
def test_a_command_that_finds_no_room_for_its_figures_is_one_line_and_leaves_those_of_before(
    tmp_path: Path, arguments: list[str]
) -> None:
    path = tmp_path / "figures.json"
    path.write_text("those of before")
    with little_room(64):
        done = CliRunner().invoke(main, [*arguments, str(path)])
    assert done.exit_code == 1 and done.stderr.endswith(f"error: {path}: File too large\n"), done.stderr
    assert path.read_text() == "those of before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["cli", "bench/compare", "simulator/plot.py"])
def test_what_a_command_writes_goes_through_one_door(name: str) -> None:
    """``files.replacing``: a figure is there whole, or the one of before is."""
    place = ROOT / "edge_runtime" / name
    for source in [place] if place.is_file() else sorted(place.glob("*.py")):
        found = re.findall(r"\.write_(?:text|bytes)\(|savefig\(path\b|open\([^)]*[\"'][wax]b?[\"']", source.read_text())
        assert found == [], source


def test_features_find_room_before_they_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file on a full disk: a write into its mapping would end the process."""
    part = open_part(tmp_path / "part", 64, 8, 256, {"target": "x"}, held=False)
    rows = np.ones((4, 8), np.int32), np.ones((4, 8, 256), np.float16)
    part.append(*rows)


    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left") as caught:
            part.append(*rows)
    assert caught.value.filename.endswith("tokens.npy") and part.done == 4
    part.append(*rows)
    assert part.done == 8 and (part.hidden[:8] == 1).all()


def test_a_state_of_training_on_a_full_disk_is_a_line(tmp_path: Path) -> None:
    trainer = pytest.importorskip("export.training.trainer")
    made = object.__new__(trainer.Trainer)
    made.directory, made.params, made.average, made._optimiser = tmp_path, {}, {"x": np.ones(100_000)}, {}
    made.start = SimpleNamespace(token_ids=[])
    cursor = SimpleNamespace(epoch=0, index=0)
    made.progress = SimpleNamespace(step=1, tokens=2, elapsed_s=3.0, cursor=cursor, history=[])
    made._save()
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    with little_room(40_000), pytest.raises(OSError, match="File too large") as caught:
        made._save()
    assert caught.value.filename == str(path) and path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
