"""Faults around the whole process: killed, stopped in every phase, beside another one, its bundle written to, its log
that nobody reads.

The manager is this test. Texts are compared with the undisturbed one; what was sent is always a prefix of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from daemon_runs import PATIENCE_S, ROOT, Gate, Running, daemon, write_config

from edge_runtime.bundle import read_manifest
from edge_runtime.client import Client, EdgeRuntimeError
from edge_runtime.intact import Intact
from edge_runtime.loading import LoadSettings, load_bundle

ASKED: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0}
PROMPT = "Hi there"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "daemon.yaml", tiny.bundle())


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Gate]]:
    made: list[Gate] = []
    yield made
    for gate in made:
        gate.close()


def gate(tmp_path: Path, gates: list[Gate]) -> Gate:
    folder = tmp_path / f"gate-{len(gates)}"
    folder.mkdir()
    gates.append(Gate(folder / "gate"))
    return gates[-1]


class Answer(threading.Thread):
    """One client that streams: what it was sent, and how that ended."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self.text, self.error, self.complete = "", "", False
        self.first = threading.Event()
        self._running = running

    def run(self) -> None:
        try:
            with self._running.client() as client, client.stream_complete(PROMPT, **ASKED) as chunks:
                for chunk in chunks:
                    self.text += chunk.text
                    self.first.set()
                self.complete = chunks.completion().finish_reason is not None
        except EdgeRuntimeError as problem:
            self.error = f"{type(problem).__name__}: {problem}"

    def begun(self) -> Answer:
        self.start()
        assert self.first.wait(PATIENCE_S)
        return self

    def ended(self, whole: str) -> Answer:
        """A typed error or the full answer, and nothing wrong of either."""
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert whole.startswith(self.text)
        assert (self.text == whole) if self.complete else self.error
        return self


def test_killed_restarted_beside_another_and_stopped_in_the_prefill(
    tmp_path: Path, config: Path, gates: list[Gate]
) -> None:
    verify = gate(tmp_path, gates)
    with daemon(tmp_path, config, gate=verify) as first:
        first.ready()
        with first.client() as client:
            whole = client.complete(PROMPT, **ASKED).text
        answer = Answer(first).begun()
        verify.hold()
        # A second one while the first serves: refused, and nobody notices.
        command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (2, f"error: another daemon answers at {first.socket_path}\n")
        first.signal(signal.SIGKILL)
        assert first.ends() == -signal.SIGKILL and first.socket_path.exists()
        assert "ConnectionLost" in answer.ended(whole).error
    prefill = gate(tmp_path, gates)
    with daemon(tmp_path, config, gate=prefill) as second:
        second.ready()  # over the socket that was left
        with second.client() as client:
            assert client.complete(PROMPT, **ASKED).text == whole
        prefill.shut()
        answer = Answer(second)
        answer.start()
        prefill.reached()
        second.signal(signal.SIGTERM)
        second.until("STOPPING")
        prefill.open()
        assert answer.ended(whole).complete
        assert second.ends() == 0 and not second.socket_path.exists()
        assert second.log_lines("drained complete=True")


def _flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        (byte,) = file.read(1)
        file.seek(5000)
        file.write(bytes([byte ^ 1]))


def _cut(path: Path) -> None:
    os.truncate(path, 1000)


def test_damaged_and_stopped_in_a_reload(tmp_path: Path, config: Path, gates: list[Gate]) -> None:
    """What is being loaded is dropped, and what runs ends."""
    reload = gate(tmp_path, gates)
    with daemon(tmp_path, config, gate=reload) as running:
        running.ready()
        with running.client() as client:
            whole = client.complete(PROMPT, **ASKED).text
        # One bit of what is to be loaded, and then some bytes less: what is served goes on, and says why.
        damaged = tiny.copy_of(tiny.bundle_without_draft(), tmp_path)
        write_config(config, damaged)
        for damage, words in ((_flip, "target.weights: sha256"), (_cut, "target.weights: 1000 bytes")):
            damage(damaged / "target.weights")
            answer = Answer(running).begun()
            running.signal(signal.SIGHUP)
            running.until("RELOADING")
            assert words in running.until("READY")["STATUS"]
            assert answer.ended(whole).complete
            with running.client() as client:
                assert client.complete(PROMPT, **ASKED).text == whole
                status = client.status()
            assert status.state == "ready" and words in status.reason and running.log_lines(words)
        answer = Answer(running).begun()
        write_config(config, tiny.bundle_without_draft())
        reload.shut()
        running.signal(signal.SIGHUP)
        running.until("RELOADING")
        reload.reached()
        running.signal(signal.SIGTERM)
        running.until("STOPPING")
        reload.open()
        answer.ended(whole)
        assert running.ends() == 0 and not running.socket_path.exists()


def _blocked_writer(path: Path) -> subprocess.Popen[bytes]:
    """As ``cp new old``: it cuts the file off before the first byte."""
    return subprocess.Popen(["sh", "-c", 'echo x >"$1"', "sh", str(path)])


def _leases(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError:
            return False
    return True


def test_weights_that_are_written_to_under_a_daemon(tmp_path: Path, gates: list[Gate]) -> None:
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    if not _leases(place / "target.weights"):
        pytest.skip("this file system knows no leases: what is cut off ends the process")
    config = write_config(tmp_path / "daemon.yaml", place)
    step = gate(tmp_path, gates)
    with daemon(tmp_path, config, gate=step) as running:
        running.ready()
        with running.client() as client:
            whole = client.complete(PROMPT, **ASKED).text
        os.utime(place / "target.weights")  # touched is not altered
        with running.client() as client:
            assert client.complete(PROMPT, **ASKED).text == whole
        answer = Answer(running).begun()
        step.hold()
        with _blocked_writer(place / "target.weights") as writer:
            time.sleep(0.2)
            step.open()
            told = answer.ended(whole)
            assert not told.complete and "target.weights" in told.error and "never write into a bundle" in told.error
            assert running.ends() == 1
            assert writer.wait(PATIENCE_S) == 0
        assert running.log_lines("the model cannot be served any more")
        assert running.log_lines("error: the engine's thread ended: ")
    # Supervised, it is started anew, and says what is wrong.
    with daemon(tmp_path, config) as again:
        assert again.ends() == 2
        assert "target.weights: 2 bytes, but the manifest says" in again.log()


def test_weights_that_are_written_to_while_nobody_asks(tmp_path: Path) -> None:
    """A manager is to see it now, and not the first client of the morning."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    with daemon(tmp_path, write_config(tmp_path / "daemon.yaml", place)) as running:
        running.ready()
        with _blocked_writer(place / "target.weights"):
            assert running.ends() == 1
        assert running.log_lines("never write into a bundle")


def test_a_log_that_nobody_reads_stops_no_answer(tmp_path: Path, config: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=writing) as process:
        try:
            with Client(tmp_path / "api.sock", patience_s=PATIENCE_S) as client:
                assert client.complete(PROMPT, max_tokens=3).text
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    os.close(reading)
    os.close(writing)


# --- files that are served, without a process --------------------------------------------------------


@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("how", ["cut", "cut, its time put back", "flipped", "grown", "touched", "replaced", "removed"])
def test_what_was_altered_is_told_from_what_was_touched_or_replaced(tmp_path: Path, how: str, hashes: bool) -> None:
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    path = place / "target.weights"
    entry = next(one for one in read_manifest(place).files if one.name == path.name)
    intact = Intact(place, [entry], hashes=hashes)
    assert intact.problem() == ""
    if how == "cut":
        _cut(path)
    elif how == "cut, its time put back":
        found = path.stat()
        _cut(path)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    elif how == "flipped":
        _flip(path)
    elif how == "grown":
        with path.open("ab") as file:
            file.write(b"x")
    elif how == "touched":
        os.utime(path, (1.0, 1.0))
    elif how == "replaced":
        (place / "new").write_bytes(b"another")
        (place / "new").rename(path)
    else:
        path.unlink()
    altered = how.startswith(("cut", "flipped", "grown")) or (how == "touched" and not hashes)
    assert (path.name in intact.problem()) == altered == bool(intact.problem())
    intact.close()
    intact.close()


def test_what_was_altered_stays_so(tmp_path: Path) -> None:
    """What was computed since may have come of it."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    path = place / "target.weights"
    intact = Intact(place, [one for one in read_manifest(place).files if one.name == path.name])
    right = path.read_bytes()
    _flip(path)
    told = intact.problem()
    path.write_bytes(right)
    assert told and intact.problem() == told
    intact.close()


_UNHANDLED = """
import sys
from pathlib import Path
from edge_runtime.bundle import read_manifest
from edge_runtime.intact import Intact

place = Path(sys.argv[1])
intact = Intact(place, [one for one in read_manifest(place).files if one.name == "target.weights"])
intact.guard()
print("guarded", flush=True)
sys.stdin.read()
"""


def test_who_handles_no_signal_is_not_ended_by_one(tmp_path: Path) -> None:
    """The system tells of writers by SIGIO, which ends a process that has no handler for it: a program of somebody
    else's, that only uses this package."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    command = [sys.executable, "-c", _UNHANDLED, str(place)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "guarded\n"
        with (place / "target.weights").open("r+b"):
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_the_weights_of_a_draft_are_looked_at_too(tmp_path: Path) -> None:
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    loaded = load_bundle(place, LoadSettings(context=128, threads=1, drafter="draft"))
    assert loaded.intact.problem() == ""
    _flip(place / "draft.weights")
    assert "draft.weights was written to" in loaded.intact.problem()
    loaded.close()


def test_what_was_touched_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not around every step from then on."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    entry = next(one for one in read_manifest(place).files if one.name == "target.weights")
    hashed: list[int] = []

    def hashes(descriptor: int) -> str:
        hashed.append(descriptor)
        return entry.sha256

    monkeypatch.setattr("edge_runtime.intact.descriptor_sha256", hashes)
    served = Intact(place, [entry])
    for touched_s in (1.0, 2.0):
        os.utime(place / entry.name, (touched_s, touched_s))
        assert [served.problem() for _ in range(3)] == ["", "", ""]
    assert len(hashed) == 2
    served.close()


def test_a_disk_that_fails_while_it_is_hashed_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_runtime.bundle import file_problems

    def fails(descriptor: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    place = tiny.copy_of(tiny.bundle(), tmp_path)
    entry = next(one for one in read_manifest(place).files if one.name == "target.weights")
    served = Intact(place, [entry])
    os.utime(place / entry.name, (1.0, 1.0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fails)
        problems = list(file_problems(place, read_manifest(place)))
        assert served.problem() == "target.weights cannot be read any more: Input/output error"
    served.close()
    assert len(problems) == len(read_manifest(place).files)
    assert all(problem.endswith(": Input/output error") for problem in problems)
