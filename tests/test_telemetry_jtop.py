"""jtop from our side of its process, and that process with a jtop that fails in every known way.

The real service is in test_telemetry_real_jtop.py.
"""

from __future__ import annotations

import os
import resource
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jtop_lines import (
    FOREVER,
    STATS,
    child_with,
    child_without_jtop,
    in_turn,
    sample_line,
    saying,
    trouble_line,
    until,
)  # fmt: skip

from edge_runtime.boards import board_named
from edge_runtime.telemetry import jtop_child
from edge_runtime.telemetry.jtop import JtopSource, Pace, Trouble, child_command, cleaned
from edge_runtime.telemetry.sample import GpuReading, Rail, Sample, Zone

NANO = board_named("orin-nano-8")
ONCE = Pace(first_wait_s=1000.0)
"""One process, and no other as long as a test runs."""
QUICK = Pace(first_wait_s=0.01, longest_wait_s=0.02)
SAMPLE = Sample(1.5, "jtop", rails=(Rail("VDD_IN", 5000),), zones=(Zone("tj", 52.0),), power_mode="25W")

Listen = Callable[..., JtopSource]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """``listen(command, pace)``; closed afterwards."""
    sources: list[JtopSource] = []

    def opened(command: list[str], pace: Pace = ONCE) -> JtopSource:
        sources.append(JtopSource(command, NANO, pace))
        return sources[-1]

    yield opened
    for source in sources:
        source.close()


def trouble_with(source: JtopSource, *kinds: str) -> Trouble:
    until(lambda: source.problem is not None and source.problem.kind in kinds)
    problem = source.problem
    assert problem is not None
    return problem


# Our side


def test_a_sample_arrives_with_its_total_and_its_time(listen: Listen) -> None:
    source = listen(saying(sample_line(SAMPLE), then=FOREVER))
    until(source.latest)
    assert source.latest() == replace(SAMPLE, power_mw=5000)
    assert source.trouble is None


def test_a_process_with_a_thousand_descriptors_hears_it_too(listen: Listen) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("no process may have so many here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        source = listen(saying(sample_line(SAMPLE), then=FOREVER))
        until(source.latest)
        source.close()


def test_before_anything_came_there_is_none_and_the_reason_says_so(listen: Listen) -> None:
    source = listen(["/bin/sh", "-c", FOREVER])
    assert source.latest() is None
    assert source.problem == Trouble("starting", "jtop: nothing has come yet")


@pytest.mark.parametrize("kind", ["not-installed", "no-service", "no-access", "version", "frozen", "lost"])
def test_what_the_process_says_is_the_reason(kind: str, listen: Listen) -> None:
    problem = trouble_with(listen(saying(trouble_line(kind, f"{kind}: do this"))), kind)
    assert problem.text == f"{kind}: do this"


def test_each_failure_is_a_new_process_and_a_sample_ends_the_trouble(listen: Listen, tmp_path: Path) -> None:
    gone, frozen = saying(trouble_line("no-service", "gone")), saying(trouble_line("frozen", "frozen"))
    source = listen(in_turn(tmp_path, gone, frozen, gone, saying(sample_line(SAMPLE), then=FOREVER)), QUICK)
    until(source.latest)
    assert (tmp_path / "starts").read_text() == "4\n"
    assert source.trouble is None


def test_a_service_that_goes_away_leaves_its_last_sample_and_its_time(listen: Listen, tmp_path: Path) -> None:
    going = saying(sample_line(SAMPLE), trouble_line("lost", "the jtop service is gone"))
    later = replace(SAMPLE, time_s=2.5, power_mode="15W")
    proceed = tmp_path / "proceed"
    then = shlex.join(saying(sample_line(later), then=FOREVER))
    coming = saying(then=f"while ! [ -e {proceed} ]; do sleep 0.01; done; exec {then}")
    source = listen(in_turn(tmp_path, going, coming), QUICK)
    assert trouble_with(source, "lost").text == "the jtop service is gone"
    assert source.latest() == replace(SAMPLE, power_mw=5000)
    proceed.touch()
    until(lambda: source.latest() == replace(later, power_mw=5000))
    assert source.trouble is None


def test_a_process_that_says_nothing_is_ended_and_started_anew(listen: Listen, tmp_path: Path) -> None:
    source = listen(in_turn(tmp_path, saying(then=FOREVER)), replace(QUICK, start_patience_s=0.05))
    assert "nothing has come for 0.05 s" in trouble_with(source, "hung").text
    until(lambda: int((tmp_path / "starts").read_text() or 0) > 1)


def test_a_process_that_falls_silent_is_ended(listen: Listen) -> None:
    source = listen(saying(sample_line(SAMPLE), then=FOREVER), replace(ONCE, patience_s=0.05))
    assert "nothing has come for 0.05 s" in trouble_with(source, "hung").text
    assert source.latest() is not None


def test_a_service_that_reads_seldom_is_waited_for(listen: Listen, tmp_path: Path) -> None:
    """The first client's interval holds for all."""
    connected = '{"connected": {"version": "7.2.2", "interval_s": 1000.0}}'
    later = replace(SAMPLE, time_s=2.5)
    speaking = saying(connected, sample_line(SAMPLE), then=f"sleep 0.3; {saying(sample_line(later), then=FOREVER)[2]}")
    source = listen(in_turn(tmp_path, speaking), replace(QUICK, patience_s=0.02))
    until(lambda: source.latest() == replace(later, power_mw=5000))
    assert (tmp_path / "starts").read_text() == "1\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (saying("Traceback (most recent call last):"), "its reader sent what is no sample"),
        (saying('{"sample": {"time_s": "soon", "source": "jtop"}}'), "its reader sent what is no sample"),
        (saying('{"trouble": {"kind": "novel", "text": ""}}'), "its reader sent what is no sample"),
        (saying(then="printf '\\377\\n'"), "its reader sent what is no sample"),
        (["/bin/sh", "-c", f"head -c 600000 /dev/zero; {FOREVER}"], "its reader sent what is no line"),
        (["/no/such/python"], "cannot start /no/such/python: No such file or directory"),
    ],
    ids=["words", "types", "kind", "bytes", "endless", "missing"],
)
def test_a_process_that_is_none_of_ours_is_told_and_harmless(command: list[str], words: str, listen: Listen) -> None:
    assert words in trouble_with(listen(command), "failed").text


def test_a_process_that_ends_without_a_word_is_told_with_its_code(listen: Listen) -> None:
    assert "with code 7" in trouble_with(listen(["/bin/sh", "-c", "exit 7"]), "ended").text


def test_a_process_that_closes_its_output_and_lives_on_is_ended(listen: Listen) -> None:
    assert "closed its output" in trouble_with(listen(["/bin/sh", "-c", f"exec >&-; {FOREVER}"]), "ended").text


def test_closing_ends_the_process_and_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    source = JtopSource(["/bin/sh", "-c", f"sleep 1000 & echo $! $$ >{note}; wait"])
    until(lambda: note.exists() and note.read_text().endswith("\n"))
    source.close()
    source.close()
    for pid in note.read_text().split():
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_what_comes_is_cleaned() -> None:
    raw = replace(
        SAMPLE,
        time_s=900.0,
        zones=(Zone("CPU", 51.0), Zone("cv0", -256.0), Zone("PMIC", 100.0)),
        rails=(Rail("VDD_SOC", 900),),
    )
    sample = cleaned(raw, NANO, 10.0)
    assert sample.zones == (Zone("cpu", 51.0),)
    assert sample.power_mw is None
    assert sample.time_s == 10.0, "no time to come"
    assert sample.problems == (
        "zone cv0: off, it reads -256 C", "power: VDD_IN cannot be read, so there is no total"
    )  # fmt: skip


# The process's side


def test_jtop_s_values_in_the_runtime_s_words() -> None:
    told = jtop_child.sample(STATS, 12.5)
    assert told == {
        "time_s": 12.5,
        "source": "jtop",
        "rails": [{"name": "VDD_SOC", "power_mw": 1000}, {"name": "VDD_IN", "power_mw": 5000}],
        "zones": [{"name": "cpu", "temperature_c": 51.5}, {"name": "tj", "temperature_c": 52.0}],
        "gpu": {"clock_mhz": 612.0, "max_clock_mhz": 918.0, "load": 0.975},
        "power_mode": "25W",
        "fan": 0.4,
        "problems": [],
    }


def test_the_sum_of_an_agx_is_no_rail_and_is_not_believed() -> None:
    power = {"rail": {"VDD_GPU_SOC": {"power": 2000, "online": True}}, "tot": {"power": 2000, "avg": 2000}}
    assert jtop_child.sample({**STATS, "power": power}, 0.0)["rails"] == [{"name": "VDD_GPU_SOC", "power_mw": 2000}]


@pytest.mark.parametrize(
    ("stats", "expected", "problems"),
    [
        ({"power": {}}, {"rails": []}, []),
        ({"power": {"rail": {"VIN": {"online": False, "power": 3}}, "tot": {}}}, {"rails": []}, ["rail VIN: off"]),
        ({"temperature": {"cv0": {"temp": -256, "online": False}}}, {"zones": []}, ["zone cv0: off"]),
        ({"temperature": {"cv0": {"temp": -256}}}, {"zones": []}, ["zone cv0: off"]),
        ({"temperature": {"nvme Composite": {"temp": 70.0, "max": 80.0, "crit": 85.0}}}, {"zones": []}, []),
        ({"gpu": {}}, {"gpu": {}}, []),
        ({"gpu": {"ga10b": {"freq": {"cur": 0, "max": 918000}, "status": {}}}}, {"gpu": {"max_clock_mhz": 918.0}}, []),
        ({"nvp": None}, {"power_mode": None}, []),
        ({"nvp": {"model": None}}, {"power_mode": None}, []),
        ({"fan": {"pwmfan": {"speed": []}}}, {"fan": None}, []),
    ],
)  # fmt: skip
def test_what_is_off_or_missing_is_left_out(
    stats: dict[str, Any], expected: dict[str, Any], problems: list[str]
) -> None:
    told = jtop_child.sample({**STATS, **stats}, 0.0)
    assert {name: told[name] for name in expected} == expected
    assert told["problems"] == problems


def test_the_time_is_that_of_the_reading() -> None:
    """A little older rather than newer, should the process be held up."""
    uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME) - 1000.0
    latest_s = time.monotonic() - 1000.0
    assert latest_s - 500.0 < jtop_child.read_s(uptime_s) <= latest_s + 1e-6


def test_the_process_hands_on_what_jtop_reads(listen: Listen, tmp_path: Path) -> None:
    source = listen(child_with(tmp_path / "jtop"))
    until(source.latest)
    sample = source.latest()
    assert sample is not None
    assert (sample.power_mw, sample.power_mode, sample.gpu) == (5000, "25W", GpuReading(612.0, 918.0, 0.975))


_NEVER = "return True"
_MISMATCH = 'raise JtopException("Mismatch version jtop service: [4.2.12] and client: [7.2.2]. Please run:\\nsudo x")'


@pytest.mark.parametrize(
    ("start", "ok", "uptime", "kind", "words"),
    [
        ("pass", "return True", "100.0", "frozen", "sent nothing new for"),
        ("pass", "return False", "100.0 + self.asked", "frozen", "sent nothing new for"),
        ("pass", "raise EOFError", "1.0", "lost", "it ends with code 0 when a reading fails"),
        ("pass", "raise BrokenPipeError(32, 'Broken pipe')", "1.0", "lost", "sudo systemctl restart jtop"),
        ("pass", "raise ConnectionResetError", "1.0", "lost", "the jtop service is gone"),
        ("pass", "raise JtopException('Lost connection with jtop server')", "1.0", "lost", "the jtop service is gone"),
        (_MISMATCH, _NEVER, "1.0", "version", "service: [4.2.12] and client: [7.2.2]: install the same"),
        ("raise JtopException('Authentication with jetson-stats server failed')", _NEVER, "1.0", "version", "same"),
        ("raise JtopException('Mismatch of Python versions between library and service')", _NEVER, "1.0", "version",
         "Mismatch of Python versions"),
        ("raise JtopException('The jtop.service is not active. Please run:\\nx')", _NEVER, "1.0", "no-service",
         "nobody answers at"),
        ('raise JtopException("I can\'t access jtop.service.\\nPlease logout.")', _NEVER, "1.0", "no-access",
         "sudo usermod -aG"),
        ("import queue; raise queue.Empty", _NEVER, "1.0", "frozen", "does not answer"),
        ("raise ZeroDivisionError('a bug')", _NEVER, "1.0", "failed", "jtop: ZeroDivisionError: a bug"),
    ],
    ids=["old-values", "not-ok", "eof", "pipe", "reset", "words", "version", "key", "python", "stale-socket", "group",
         "no-answer", "bug"],
)  # fmt: skip
def test_every_way_in_which_jtop_fails(
    start: str, ok: str, uptime: str, kind: str, words: str, listen: Listen, tmp_path: Path
) -> None:
    """The process says which it was, and ends; for our side any of them is another process."""
    source = listen(child_with(tmp_path / "jtop", start, ok, uptime))
    assert words in trouble_with(source, kind).text


def test_a_client_that_hangs_is_ended_from_our_side(listen: Listen, tmp_path: Path) -> None:
    hung = child_with(tmp_path / "jtop", start="time.sleep(1000)")
    assert trouble_with(listen(hung, replace(ONCE, start_patience_s=0.2)), "hung")


def test_jtop_that_is_not_installed_and_a_socket_that_is_not_there(listen: Listen, tmp_path: Path) -> None:
    (tmp_path / "sock").touch()
    missing = trouble_with(listen(child_without_jtop(tmp_path, "sock")), "not-installed")
    assert "jetson-stats is not installed for" in missing.text
    assert "is not there" in trouble_with(listen(child_without_jtop(tmp_path, "none")), "no-service").text


def test_the_process_can_be_started_as_the_program_that_it_is(listen: Listen) -> None:
    """On a machine without a service; -I keeps away what lies beside the program."""
    source = listen(child_command())
    until(lambda: source.latest() is not None or source.problem != Trouble("starting", "jtop: nothing has come yet"))
    assert source.problem is None or source.problem.kind in ("no-service", "no-access")
