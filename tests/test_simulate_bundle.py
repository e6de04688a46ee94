"""``simulate --bundle`` where it cannot be: told at once, in one line, with what to do; and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result

import edge_runtime.bench.live as live
import edge_runtime.simulator.namespace as namespace
from edge_runtime.cli import main
from edge_runtime.console import ends_tidily
from edge_runtime.errors import EdgeError, InputError

PATIENCE_S = 60.0


def simulate(bundle: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "--bundle", str(bundle), *options])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


BAD: list[tuple[Callable[[Path], object], str]] = [
    (lambda place: (place / "bundle.json").unlink(), "is not a bundle"),
    (lambda place: (place / "bundle.json").write_text("{"), "cannot be read"),
    (lambda place: cut(place / "target.weights"), "target.weights: 1000 bytes, but the manifest says"),
    (lambda place: (place / "tokenizer.model").unlink(), "tokenizer.model: missing"),
]


@pytest.mark.parametrize(("damage", "words"), BAD)
def test_a_bundle_that_is_none_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object], words: str
) -> None:
    def started(*given: object, **more: object) -> None:
        raise AssertionError("a board was built for it")

    monkeypatch.setattr("edge_runtime.cli.simulate_live.run_live", started)
    place = tiny.copy_of(tiny.bundle_without_draft(), tmp_path)
    damage(place)
    result = simulate(place)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr and result.stderr.count("\n") == 1


def test_what_is_missing_is_told_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "forbidden", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("cc", "nsenter") else f"/bin/{name}")
    result = simulate(tiny.bundle_without_draft())
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "nsenter, cc not found: sudo apt-get install gcc libc6-dev util-linux" in result.stderr


def test_without_root_it_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = simulate(tiny.bundle_without_draft())
    assert result.exit_code == 1 and "sudo" in result.stderr and result.stderr.count("\n") == 1


def test_without_jetson_stats_it_is_told_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Place:
        python = sys.executable

    monkeypatch.setattr(namespace, "find_spec", lambda name: None)
    with pytest.raises(namespace.NamespaceUnavailable, match="pip install 'jetson-stats"):
        namespace.JtopService(Place())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("event one\nerror: not enough memory\n", "not enough memory"),
        ("event one\nerror: the first\nevent two\nerror: the second\n", "the second"),
        ("Traceback (most recent call last):\n  File x\nValueError: y\n\n", "ValueError: y"),
        ("", "it says nothing"),
        (f"error: {'x' * 9000}\n", "x" * 500),
    ],
)
def test_of_a_daemon_that_does_not_come_up_one_line_is_told(tmp_path: Path, said: str, told: str) -> None:
    log = tmp_path / "serve.log"
    log.write_text(said)
    for code, kind in ((2, InputError), (1, EdgeError)):
        with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as process:
            process.wait()
            with live.Client(tmp_path / "no.sock", patience_s=0.0) as client, pytest.raises(kind) as caught:
                live._until_ready(client, process, log)
        assert str(caught.value) == f"the daemon does not come up: {told}"


# --- the end ---------------------------------------------------------------------------------------

_TIDY = """
import pathlib, sys, tempfile, time
from edge_runtime.console import ends_tidily
with ends_tidily(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _TIDY, str(tmp_path)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        running.send_signal(number)
        assert running.wait(PATIENCE_S) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_signals_are_as_they_were_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ends_tidily():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, ignored)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
