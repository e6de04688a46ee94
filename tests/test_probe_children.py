"""A probe in a process of its own: whatever it does, it becomes one outcome, in time, and nothing of it is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_runtime.doctor import child
from edge_runtime.doctor.child import Limits, command_of, run_probe
from edge_runtime.doctor.outcome import Outcome, Request

ROOM = Limits(120.0, 1 << 30, 0)
TELL = (
    "import json, os, signal, sys, time\n"
    "tell = lambda **said: os.write(int(sys.argv[2]), (json.dumps(said) + '\\n').encode())\n"
)
LAYER = {"what": "l", "against": "r", "difference": 0.1, "largest": 2.0, "tolerance": 0.1, "of_bundle": False}


def tried(source: str, limits: Limits = ROOM, heard: list[str] | None = None) -> Outcome:
    stages = [] if heard is None else heard
    command = (sys.executable, "-I", "-S", "-c", TELL + source)
    return run_probe("ort-cpu", command, Request(), limits, stages.append)


def test_what_a_probe_tells_arrives() -> None:
    heard: list[str] = []
    source = (
        "tell(stage='import'); tell(versions={'a': '1'}); tell(versions={'b': '2'}); tell(launched_s=0.5)\n"
        f"tell(layer={LAYER}); tell(note='n'); tell(stage='end'); tell(finished=True)"
    )
    outcome = tried(source, heard=heard)
    assert (outcome.ended, outcome.stage, outcome.said, outcome.signal) == ("finished", "end", "", None)
    assert heard == ["import", "end"] and outcome.told.versions == {"a": "1", "b": "2"}
    assert outcome.told.launched_s == 0.5 and outcome.told.notes == ("n",)
    assert outcome.told.layers[0].difference == 0.1


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE"])
def test_a_crash_is_told_by_its_signal_and_keeps_what_was_told_before(name: str) -> None:
    source = f"tell(versions={{'a': '1'}}); tell(stage='first kernel'); os.kill(os.getpid(), signal.{name})"
    outcome = tried(source)
    assert (outcome.ended, outcome.signal, outcome.stage) == ("crashed", name, "first kernel")
    assert outcome.told.versions == {"a": "1"}


def test_an_end_without_a_word_is_a_crash_with_the_last_line_of_stderr() -> None:
    outcome = tried("sys.stderr.write('first\\nthe library gave up\\n   ^^^\\n'); os._exit(3)")
    assert (outcome.ended, outcome.said, outcome.signal) == ("crashed", "the library gave up", None)
    assert tried("raise KeyError('x')").said == "KeyError: 'x'"
    # Even where it says that all is well: it did not come to its end.
    assert tried("os._exit(0)").ended == "crashed"


def test_a_failure_in_its_own_words_comes_with_what_the_library_printed() -> None:
    outcome = tried("print('libcublas.so.12: cannot open', file=sys.stderr); tell(failed='RuntimeError: no provider')")
    assert outcome.ended == "failed"
    assert outcome.said == "RuntimeError: no provider (libcublas.so.12: cannot open)"


def test_a_package_that_is_not_there_is_no_failure() -> None:
    outcome = tried("print('warning', file=sys.stderr); tell(absent='torch')")
    assert (outcome.ended, outcome.said) == ("absent", "torch")


def test_a_crash_after_all_was_told_is_none() -> None:
    assert tried("tell(finished=True); os.kill(os.getpid(), signal.SIGSEGV)").ended == "finished"


@pytest.mark.parametrize(
    "ending", ["while True: pass", "time.sleep(300)", "os.close(int(sys.argv[2])); time.sleep(300)"]
)
def test_a_hang_is_ended(ending: str) -> None:
    began_s = time.monotonic()
    assert tried(ending, Limits(0.3, 1 << 30, 0)).ended == "hung"
    assert time.monotonic() - began_s < 60.0


def test_what_a_probe_has_started_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = (
        f"import subprocess; inner = subprocess.Popen(['sleep', '300']); "
        f"open({str(pids)!r}, 'w').write(str(inner.pid))\nos.kill(os.getpid(), signal.SIGSEGV)"
    )
    assert tried(source).signal == "SIGSEGV"
    inner = Path(f"/proc/{pids.read_text()}/stat")
    end_s = time.monotonic() + 10.0
    # Killed; its new parent may take a moment to notice.
    while inner.exists() and inner.read_text().split(")")[1].split()[0] != "Z" and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not inner.exists() or inner.read_text().split(")")[1].split()[0] == "Z"


def test_memory_past_its_limit_ends_it() -> None:
    outcome = tried("tell(stage='big'); kept = bytearray(200 << 20); time.sleep(300)", Limits(120.0, 100 << 20, 0))
    assert (outcome.ended, outcome.stage, outcome.signal) == ("memory", "big", None)


def test_memory_that_the_machine_lacks_ends_it() -> None:
    assert tried("time.sleep(300)", Limits(120.0, 1 << 40, 1 << 60)).ended == "memory"


def test_who_was_killed_by_the_system_ran_out_of_memory() -> None:
    outcome = tried("os.kill(os.getpid(), signal.SIGKILL)")
    assert (outcome.ended, outcome.signal) == ("memory", "SIGKILL")


@pytest.mark.parametrize(
    "words",
    ["b'no json\\n'", "b'{\"stage\": 3}\\n'", "b'{\"unknown\": 1}\\n'", "b'[' * 60000 + b'\\n'", "b'\\xff\\xfe\\n'"],
)
def test_a_line_that_is_none_is_a_failure(words: str) -> None:
    outcome = tried(f"os.write(int(sys.argv[2]), {words}); tell(finished=True)")
    assert outcome.ended == "failed" and "line" in outcome.said


def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_LONGEST_LINE", 1 << 12)
    source = "for _ in range(40): os.write(int(sys.argv[2]), b'x' * 1000)\ntell(finished=True)"
    assert tried(source).ended == "failed"


def test_one_that_not_even_a_kill_ends_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[subprocess.Popen[bytes]] = []

    def wait(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waited.append(self)
        raise subprocess.TimeoutExpired("probe", timeout or 0.0)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", wait)
        outcome = tried("time.sleep(300)", Limits(0.3, 1 << 30, 0))
    assert outcome.ended == "stuck"
    # It was killed all the same, and only the wait for it was faked.
    os.waitpid(waited[0].pid, 0)


def test_an_interrupted_doctor_leaves_no_probe_behind() -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    command = (sys.executable, "-I", "-S", "-c", TELL + "tell(stage=str(os.getpid())); time.sleep(300)")
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_probe("ort-cpu", command, Request(), ROOM, interrupt)
    assert time.monotonic() - began_s < 60.0


def test_a_program_that_is_not_there_is_told() -> None:
    outcome = run_probe("ort-cpu", (sys.executable, "-m", "no_such_module"), Request(), ROOM)
    assert outcome.ended == "crashed" and "no_such_module" in outcome.said
    assert command_of("ort")[-1] == "edge_runtime.doctor.probes.ort"


def test_the_probes_side_of_it(tmp_path: Path) -> None:
    """Its arguments, its confinement and its end, by the program that is shortest."""
    outcome = run_probe("host", command_of("host"), Request(measure_s=0.01, copy_bytes=1 << 20), ROOM)
    assert outcome.ended == "finished", outcome
    assert [copy.what for copy in outcome.told.copies] == ["processor, 1 thread", "processor, all cores"]
    assert all(0.05 < copy.gb_s < 10_000 for copy in outcome.told.copies)
