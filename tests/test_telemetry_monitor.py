"""Energy, the monitor, recordings, two sources in one, and which source a machine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jtop_lines import sample_line, saying, trouble_line, until

from edge_runtime.boards import BOARDS, Board, board_named
from edge_runtime.errors import ConfigError
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry import opening
from edge_runtime.telemetry.combined import CombinedSource, filled
from edge_runtime.telemetry.energy import Energy
from edge_runtime.telemetry.jtop import JtopSource
from edge_runtime.telemetry.monitor import Monitor
from edge_runtime.telemetry.opening import Jtop, find_jtop, is_starting, lacking, open_source
from edge_runtime.telemetry.recording import Recording, ReplaySource, line_of, new_samples, read_recording, record
from edge_runtime.telemetry.sample import (
    CoolingDevice,
    GpuReading,
    MemoryReading,
    Rail,
    Sample,
    Throttling,
    Zone,
)
from edge_runtime.telemetry.source import TelemetrySource
from edge_runtime.telemetry.sysfs import SysfsSource
from edge_runtime.testing import ManualClock


class ScriptedSource:
    """One answer each time it is asked, the last one for ever; an exception is raised."""

    def __init__(self, *answers: Sample | Exception | None, name: str = "scripted", trouble: str | None = None) -> None:
        self.name = name
        self.trouble = trouble
        self.closed = 0
        self._answers = list(answers)

    def latest(self) -> Sample | None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def sample(time_s: float, power_mw: int | None = 5000, source: str = "near") -> Sample:
    return Sample(time_s, source, power_mw)


# Energy


def energy_of(readings: Sequence[tuple[float, int | None]], longest_gap_s: float = 3.0) -> Energy:
    energy = Energy(longest_gap_s)
    for time_s, power_mw in readings:
        energy = energy.after(time_s, power_mw)
    return energy


def test_energy_is_power_over_time() -> None:
    energy = energy_of([(10.0, 4000), (11.0, 6000), (13.0, 6000)])
    assert (energy.joules, energy.measured_s, energy.unmeasured_s) == (5.0 + 12.0, 3.0, 0.0)
    assert energy.mean_w == pytest.approx(17.0 / 3.0)


def test_nothing_measured_is_no_mean() -> None:
    assert Energy(3.0).mean_w is None and energy_of([(1.0, 4000)]).mean_w is None


def test_a_gap_is_not_counted_and_is_told() -> None:
    energy = energy_of([(0.0, 4000), (1.0, 4000), (10.0, 4000), (11.0, 4000)])
    assert (energy.joules, energy.measured_s, energy.unmeasured_s) == (8.0, 2.0, 9.0)


def test_a_reading_without_power_is_not_counted_and_is_told() -> None:
    energy = energy_of([(0.0, 4000), (1.0, None), (2.0, 4000), (3.0, 4000)])
    assert (energy.joules, energy.measured_s, energy.unmeasured_s) == (4.0, 1.0, 2.0)


def test_an_old_reading_changes_nothing() -> None:
    energy = energy_of([(0.0, 4000), (1.0, 4000)])
    assert energy.after(1.0, 90_000) == energy == energy.after(0.5, 90_000)


def test_between_readings_the_last_power_holds_and_not_for_ever() -> None:
    energy = energy_of([(0.0, 4000), (1.0, 6000)])
    assert energy.at(1.5).joules == pytest.approx(5.0 + 3.0)
    assert energy.at(9.0).joules == 5.0 and energy.at(9.0).unmeasured_s == 8.0
    assert energy_of([(0.0, None)]).at(1.0).joules == 0.0
    assert Energy(3.0).at(5.0).joules == 0.0


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.none() | st.integers(1, 60_000)), min_size=1, max_size=30))
def test_all_time_is_either_measured_or_not(steps: list[tuple[float, int | None]]) -> None:
    times, now_s = [], 100.0
    for gap_s, power_mw in steps:
        times.append((now_s, power_mw))
        now_s += gap_s
    energy = energy_of(times)
    assert energy.measured_s + energy.unmeasured_s == pytest.approx(times[-1][0] - 100.0)
    powers = [power_mw / 1e3 for _, power_mw in times if power_mw is not None]
    assert energy.joules <= max(powers, default=0.0) * energy.measured_s * (1.0 + 1e-9)
    assert energy.joules >= min(powers, default=0.0) * energy.measured_s * (1.0 - 1e-9)


# The monitor


def test_the_monitor_keeps_the_newest_sample_and_the_energy() -> None:
    clock = ManualClock()
    monitor = Monitor(ScriptedSource(sample(1.0), sample(2.0), sample(2.0), None, trouble=None), clock=clock)
    assert monitor.latest is None and monitor.watched.age_s(5.0) is None
    ages = []
    for now_s in (1.0, 2.0, 2.5, 3.0):
        clock.advance(now_s - clock())
        ages.append(monitor.poll().age_s(now_s))
    assert ages == [0.0, 0.0, 0.5, 1.0]
    assert monitor.latest == sample(2.0)
    assert monitor.watched.energy.joules == 5.0
    assert monitor.energy().joules == 10.0


def test_a_source_with_a_bug_is_told_and_polled_again() -> None:
    monitor = Monitor(ScriptedSource(sample(1.0), ZeroDivisionError("its bug"), sample(2.0)))
    monitor.poll()
    watched = monitor.poll()
    assert watched.trouble == "scripted: ZeroDivisionError: its bug" and watched.sample == sample(1.0)
    assert monitor.poll().sample == sample(2.0) and monitor.watched.trouble is None


def test_what_is_wrong_with_the_source_is_passed_on() -> None:
    assert Monitor(ScriptedSource(None, trouble="no sensor")).poll().trouble == "no sensor"


def test_the_monitor_polls_by_itself_and_closes_its_source() -> None:
    source = ScriptedSource(*(sample(float(index)) for index in range(4)))
    with Monitor(source, interval_s=0.001) as monitor:
        until(lambda: monitor.latest == sample(3.0))
        assert monitor.watched.energy.joules == 15.0
    assert source.closed == 1
    Monitor(source).close()


# Recordings

WHOLE = Sample(
    7.25, "sysfs", 9000, (Rail("VDD_IN", 9000),), (Zone("tj", 61.5),), GpuReading(612.0, 918.0, 0.5),
    MemoryReading(8 << 30, 4 << 30, 4 << 30, 0, 300),
    Throttling((("oc3", 2),), (CoolingDevice("pwm-fan", 1, 3),), 99.0, 104.5), "25W", 0.25, ("zone cv0: off",),
)  # fmt: skip


def test_a_recording_holds_all_of_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "board.ndjson"
    with path.open("w") as stream:
        record([WHOLE, Sample(8.0, "jtop")], stream.write)
    assert read_recording(path) == Recording((WHOLE, Sample(8.0, "jtop")))


def test_a_recording_is_played_in_its_own_time() -> None:
    clock = ManualClock()
    clock.advance(1000.0)
    replay = ReplaySource([replace(WHOLE, time_s=time_s) for time_s in (50.0, 51.0, 53.0)], speed=2.0, clock=clock)
    seen = []
    for _ in range(5):
        newest = replay.latest()
        seen.append((clock() - 1000.0, newest and newest.time_s - 1000.0, replay.trouble))
        clock.advance(0.5)
    over = "replay: the recording is over"
    assert seen == [(0.0, 0.0, None), (0.5, 0.5, None), (1.0, 0.5, None), (1.5, 1.5, None), (2.0, 1.5, over)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is no sample in it"),
        ("{", "no sample in it; line 1 was cut off"),
        ("{\n", "line 1: it is no JSON; take it out"),
        ("[" * 100_000 + "\n", "line 1: it is no JSON"),
        ("x" * 300_000, "line 1: longer than 256 KiB"),
        ('{"time_s": 1.0, "source": "x"}\n{"time_s": "soon", "source": "x"}', "line 2: time_s: expected float"),
        ('{"time_s": 1.0, "source": "x", "powr_mw": 3}', r"line 1: unknown key 'powr_mw' \(did you mean 'power_mw'"),
        ('{"time_s": 2.0, "source": "x"}\n{"time_s": 1.0, "source": "x"}', "line 2: its times run backwards"),
        (b"\xff\xfe\n", "line 1: it is no JSON"),
        (b'{"time_s": 1.0, "source": "\xff"}\n', "line 1: it is no JSON"),
        ('{"time_s": 1.0, "source": "x"}\n\n{"time_s": 2.0, "so\n{"time_s": 3.0}', "line 3: it is no JSON"),
        ('{"time_s": 1' + "0" * 5000 + "}", "cut off"),
    ],
)
def test_a_recording_that_is_none_is_told_in_a_line(text: str | bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "board.ndjson"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=words) as caught:
        read_recording(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Sample(0.0, "x", 10**30), "power_mw must be from 0 to 199999, not 1000000000000000000000000000000"),
        (Sample(0.0, "x", -(10**9)), "power_mw must be from 0 to 199999, not -1000000000"),
        (Sample(0.0, "x", 10**100), r"power_mw must be from 0 to 199999, not 10000000000000000000\.+ \(101 digits\)"),
        (Sample(1e300, "x"), "time_s must be from -10000000000 to 10000000000, not 1e[+]300"),
        (Sample(0.0, "x", rails=(Rail("VDD_IN", -1),)), "rail VDD_IN: power_mw must be"),
        (Sample(0.0, "x", zones=(Zone("tj", 1e308),)), "zone tj: temperature_c must be from -50 to 150, not 1e[+]308"),
        (Sample(0.0, "x", zones=(Zone("tj", -1e9),)), "zone tj: temperature_c must be"),
        (Sample(0.0, "x", gpu=GpuReading(-1.0)), "gpu.clock_mhz must be"),
        (Sample(0.0, "x", gpu=GpuReading(max_clock_mhz=1e9)), "gpu.max_clock_mhz must be"),
        (Sample(0.0, "x", gpu=GpuReading(load=1.5)), "gpu.load must be from 0 to 1, not 1.5"),
        (Sample(0.0, "x", fan=-0.1), "fan must be from 0 to 1"),
        (Sample(0.0, "x", memory=MemoryReading(8 << 30, -1)), "memory.available_bytes must be"),
        (Sample(0.0, "x", memory=MemoryReading(-8, 1)), "memory.total_bytes must be"),
        (Sample(0.0, "x", memory=MemoryReading(8, 1, free_blocks_4mb=-3)), "memory.free_blocks_4mb must be"),
        (Sample(0.0, "x", throttling=Throttling((("oc3", -2),))), "over-current events oc3 must be"),
        (Sample(0.0, "x", throttling=Throttling((), (CoolingDevice("fan", -1, 3),))), "cooling fan: state must be"),
        (Sample(0.0, "x", throttling=Throttling(passive_trip_c=-1e6)), "passive_trip_c must be"),
    ],
)
def test_what_no_board_says_is_refused_by_line_and_field(sample: Sample, words: str, tmp_path: Path) -> None:
    """Sources clean what they read; a file can hold anything."""
    path = tmp_path / "board.ndjson"
    path.write_text(f"{line_of(WHOLE)}\n{line_of(replace(sample, time_s=max(sample.time_s, 8.0)))}\n")
    with pytest.raises(ConfigError, match=f"board.ndjson, line 2: {words}"):
        read_recording(path)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_what_a_source_says_can_be_played(board: Board, tmp_path: Path) -> None:
    """Whatever its sensors do."""
    tree = BoardTree.build(tmp_path / "board", board)
    tree.set_rail(board.rails[0], 655_350)
    for name, celsius in (("cpu", 250.0), ("gpu", -256.0)):
        tree.set_temperature(name, celsius)
    read = SysfsSource(tree.root).latest()
    assert read is not None and read.problems
    (tmp_path / "board.ndjson").write_text(f"{line_of(read)}\n")
    assert read_recording(tmp_path / "board.ndjson").samples == (read,)


def test_a_recording_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"board\.ndjson: No such file"):
        read_recording(tmp_path / "board.ndjson")


def test_new_samples_come_once_each() -> None:
    source = ScriptedSource(None, sample(1.0), sample(1.0), None, sample(2.0), sample(2.0), sample(3.0))
    waited: list[float] = []
    taken = list(islice(new_samples(source, 0.5, waited.append), 3))
    assert [one.time_s for one in taken] == [1.0, 2.0, 3.0]
    assert waited == [0.5] * 6
    assert line_of(taken[0]).startswith('{"time_s":1.0,"source":"near","power_mw":5000')


# Two sources in one


def test_what_the_near_source_has_is_not_taken_from_the_far_one() -> None:
    far = replace(WHOLE, source="jtop", time_s=1.0, power_mode="15W", fan=0.9)
    assert filled(WHOLE, far) is WHOLE


def test_what_the_near_source_lacks_is_filled_and_as_old_as_it_is() -> None:
    near = Sample(7.0, "sysfs", zones=(Zone("tj", 60.0),), gpu=GpuReading(load=0.25), problems=("power: no sensor",))
    whole = filled(near, replace(WHOLE, source="jtop", time_s=6.5))
    assert (whole.source, whole.time_s) == ("sysfs+jtop", 6.5)
    assert (whole.power_mw, whole.rails, whole.power_mode, whole.fan) == (9000, WHOLE.rails, "25W", 0.25)
    assert whole.gpu == GpuReading(612.0, 918.0, 0.25)
    assert whole.zones == near.zones
    assert whole.problems == ()


def test_a_power_mode_of_the_far_source_makes_no_reading_older() -> None:
    """The near one is read four times a second and the far one once: energy and limits go by the former."""
    near = replace(WHOLE, time_s=7.0, power_mode=None, fan=None)
    whole = filled(near, replace(WHOLE, source="jtop", time_s=5.5))
    assert (whole.time_s, whole.power_mode, whole.fan) == (7.0, "25W", 0.25)


def test_values_that_are_old_fill_nothing() -> None:
    far = ScriptedSource(replace(WHOLE, time_s=1.0), name="jtop")
    assert CombinedSource(ScriptedSource(sample(3.9)), far).latest() != sample(3.9)
    assert CombinedSource(ScriptedSource(sample(4.1)), far).latest() == sample(4.1)


def test_either_source_alone_will_do() -> None:
    one, none = ScriptedSource(WHOLE), ScriptedSource(None, trouble="nothing here")
    assert CombinedSource(one, none).latest() == WHOLE == CombinedSource(none, one).latest()
    assert CombinedSource(none, ScriptedSource(None, trouble="no service")).latest() is None


def test_trouble_is_that_of_both() -> None:
    well, near, far = ScriptedSource(WHOLE), ScriptedSource(None, trouble="near"), ScriptedSource(None, trouble="far")
    assert CombinedSource(near, far).trouble == "near; far"
    assert CombinedSource(well, far).trouble is None and CombinedSource(near, well).trouble is None


def test_both_are_closed() -> None:
    sources = (ScriptedSource(None), ScriptedSource(None))
    CombinedSource(*sources).close()
    assert [source.closed for source in sources] == [1, 1]


# Which source


@pytest.fixture
def nano(tmp_path: Path) -> BoardTree:
    return BoardTree.build(tmp_path / "board", board_named("orin-nano-8"))


ABSENT = Jtop(("/bin/false",), False)


@pytest.fixture
def there() -> Jtop:
    """One that says something new all the time."""
    line = sample_line(replace(WHOLE, source="jtop", time_s=1e9))
    return Jtop(tuple(saying(then=f"while printf '%s\\n' '{line}'; do sleep 0.05; done")), True)


def close(source: TelemetrySource | None) -> None:
    assert source is not None
    source.close()


def test_a_board_whose_files_tell_all_needs_no_jtop(nano: BoardTree, there: Jtop) -> None:
    opened = open_source(root=nano.root, jtop=there)
    assert opened.source is not None and opened.source.name == "sysfs"
    assert opened.reason == "sysfs of Jetson Orin Nano 8GB: it has all that jtop tells"


def test_what_files_do_not_tell_is_asked_of_jtop(nano: BoardTree, there: Jtop) -> None:
    (nano.root / "var/lib/nvpmodel/status").unlink()
    opened = open_source(root=nano.root, jtop=there)
    source = opened.source
    assert source is not None and source.name == "sysfs+jtop"
    assert opened.reason == "sysfs of Jetson Orin Nano 8GB, jtop for the power mode"
    until(lambda: (newest := source.latest()) and newest.power_mode == "25W")
    close(source)


def test_without_jtop_the_reason_says_what_is_missing(nano: BoardTree) -> None:
    (nano.root / "var/lib/nvpmodel/status").unlink()
    nano.hide_rail("VDD_IN")
    opened = open_source(root=nano.root, jtop=ABSENT)
    assert opened.source is not None and opened.source.name == "sysfs"
    assert opened.reason == "sysfs of Jetson Orin Nano 8GB; no jtop for power, the power mode"


def test_a_container_without_the_board_s_files_has_jtop_alone(nano: BoardTree, there: Jtop) -> None:
    (nano.root / "sys/class").rename(nano.root / "sys/hidden")
    opened = open_source(root=nano.root, jtop=there)
    source = opened.source
    assert source is not None
    assert opened.reason.startswith("jtop of Jetson Orin Nano 8GB: no sensor of a Jetson below ")
    until(lambda: (newest := source.latest()) and newest.source == "jtop")
    close(source)


def test_a_jetson_that_shows_nothing_yet_is_looked_at_again(nano: BoardTree) -> None:
    (nano.root / "sys/class").rename(nano.root / "sys/hidden")
    opened = open_source(root=nano.root, jtop=ABSENT)
    assert opened.source is not None and opened.source.latest() is None
    assert "and jtop is not there" in opened.reason


def test_a_machine_that_is_no_jetson_has_no_source(tmp_path: Path, there: Jtop) -> None:
    opened = open_source(root=tmp_path, jtop=there)
    assert (opened.source, opened.reason) == (None, f"{tmp_path} holds no Jetson's files: nothing is measured")
    assert open_source(root=tmp_path).source is None


def test_a_tree_of_files_has_no_service(nano: BoardTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of this machine says nothing of it."""
    monkeypatch.setattr(opening, "find_jtop", lambda: pytest.fail("it was looked for"))
    (nano.root / "var/lib/nvpmodel/status").unlink()
    opened = open_source(root=nano.root)
    assert opened.source is not None and opened.source.name == "sysfs" and "no jtop for" in opened.reason


def test_what_has_gone_wrong_is_not_waited_for(nano: BoardTree, there: Jtop) -> None:
    assert not is_starting(ScriptedSource(None))
    slow = JtopSource(saying(then="sleep 60"))
    assert is_starting(slow) and is_starting(CombinedSource(ScriptedSource(None), slow))
    slow.close()
    gone = JtopSource(saying(trouble_line("no-service", "it does not run")))
    until(lambda: not is_starting(gone))
    assert gone.latest() is None
    gone.close()
    telling = open_source("jtop", nano.root, there).source
    assert telling is not None
    until(lambda: not is_starting(telling))
    assert telling.latest() is not None
    telling.close()


def test_a_source_that_is_configured_is_taken(tmp_path: Path, nano: BoardTree, there: Jtop) -> None:
    assert open_source("none", nano.root).source is None
    named = [open_source("sysfs", tmp_path).source, open_source("jtop", nano.root, there).source]
    assert [source and source.name for source in named] == ["sysfs", "jtop"]
    for source in named:
        close(source)


def test_jtop_is_looked_for_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "sock").touch()
    found = find_jtop(tmp_path / "sock")
    assert found.is_there
    assert found.command[1] == "-I" and found.command[2].endswith("jtop_child.py")


def test_what_jtop_might_tell_besides() -> None:
    assert lacking(WHOLE) == []
    assert lacking(Sample(0.0, "sysfs")) == ["power", "temperatures", "the GPU's clock", "the power mode"]
