"""The kernel's own files, on trees as a board has them: all values, and every way in which some are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_runtime.boards import AGX_RAILS, BOARDS, Board, board_named
from edge_runtime.simulator.release import JETPACK_6_2, JETPACK_7_2, Release
from edge_runtime.simulator.tree import BoardTree, as_shown
from edge_runtime.telemetry.identity import identify
from edge_runtime.telemetry.layout import is_of_the_chip, zone_name
from edge_runtime.telemetry.power import total_power
from edge_runtime.telemetry.sample import CoolingDevice, GpuReading, MemoryReading, Rail, Sample, Throttling, Zone
from edge_runtime.telemetry.sysfs import SysfsSource
from edge_runtime.testing import ManualClock


@pytest.fixture
def nano(tmp_path: Path) -> BoardTree:
    return BoardTree.build(tmp_path / "board", board_named("orin-nano-8"))


def read(tree: BoardTree) -> Sample:
    sample = SysfsSource(tree.root, lambda: 12.0).latest()
    assert sample is not None
    return sample


def under_load(board: Board) -> Sample:
    names = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj")
    return Sample(
        12.0,
        "sysfs",
        rails=tuple(Rail(name, 1000 * index + 2345) for index, name in enumerate(board.rails)),
        zones=tuple(Zone(name, 60.25 + index) for index, name in enumerate(names)),
        gpu=GpuReading(408.0, board.modes[1].gpu_mhz, 0.973),
        memory=MemoryReading(board.ram_bytes, board.ram_bytes - (3 << 30), 4 << 30, 1 << 30, 17),
        throttling=Throttling((("oc1", 1), ("oc2", 22), ("oc3", 4096)), (CoolingDevice("gpu-throttle-alert", 1, 1),)),
        power_mode=board.modes[1].name,
        fan=0.4,
    )


@pytest.mark.parametrize("release", [JETPACK_6_2, JETPACK_7_2], ids=lambda release: release.jetpack)
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_is_known_and_reads_what_its_tree_shows(board: Board, release: Release, tmp_path: Path) -> None:
    tree = BoardTree.build(tmp_path / "board", board, release)
    shown = under_load(board)
    tree.show(shown)
    sample, expected = read(tree), as_shown(tree, shown)
    assert sample.problems == ()
    assert sample == replace(expected, power_mw=sample.power_mw, throttling=sample.throttling, fan=sample.fan)
    total = expected.rails[0].power_mw if "VDD_IN" in board.rails else sum(rail.power_mw for rail in expected.rails)
    assert sample.power_mw == total
    assert sample.throttling.over_current_events == shown.throttling.over_current_events
    assert shown.throttling.cooling[0] in sample.throttling.cooling
    assert (sample.throttling.passive_trip_c, sample.throttling.critical_trip_c) == (99.0, 104.5)
    assert sample.fan == pytest.approx(shown.fan, abs=1 / 255)
    assert sample.hottest == Zone("tj", 68.25)
    found = identify(tree.root)
    assert (found.board, found.tegra, found.l4t) == (board, True, release.l4t)
    assert found.jetpack is not None and found.jetpack.version == release.jetpack
    assert release.kernel.startswith(found.jetpack.kernel)
    tree.show(Sample(0.0, "plant", power_mw=14_500))  # a total alone is spread over the rails
    assert read(tree).power_mw == pytest.approx(14_500, abs=40)


def test_a_machine_that_is_no_jetson_is_told_so(tmp_path: Path) -> None:
    found = identify(tmp_path)
    assert (found.tegra, found.board, found.title) == (False, None, "no Jetson")
    source = SysfsSource(tmp_path)
    assert source.latest() is None
    assert source.trouble is not None and "no sensor of a Jetson" in source.trouble


# -256, and what else is no temperature


def test_a_zone_that_is_off_is_left_out_and_told(nano: BoardTree) -> None:
    nano.set_temperature("cv0", -256)
    nano.break_zone("cv1")
    nano.set_temperature("tj", 71.5)
    nano.set_temperature("cpu", 250.0)
    sample = read(nano)
    assert {zone.name for zone in sample.zones} == {"gpu", "cv2", "soc0", "soc1", "soc2", "tj"}
    assert sample.hottest == Zone("tj", 71.5)
    assert set(sample.problems) == {
        "zone cpu: off, it reads 250 C", "zone cv0: off, it reads -256 C", "zone cv1: cannot be read"
    }  # fmt: skip


def test_with_no_zone_left_there_is_no_hottest(nano: BoardTree) -> None:
    for zone in ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj"):
        nano.set_temperature(zone, -256)
    assert read(nano).hottest is None


@pytest.mark.parametrize(
    ("text", "name"),
    [("cpu-thermal", "cpu"), ("CPU-therm", "cpu"), ("tj-thermal", "tj"), ("SOC0-therm\n", "soc0"),
     ("Tboard_tegra", "tboard"), ("gpu", "gpu")],
)  # fmt: skip
def test_zones_of_all_releases_have_one_name(text: str, name: str) -> None:
    assert zone_name(text) == name


def test_a_constant_and_a_card_are_no_zones_of_the_chip() -> None:
    assert not any(is_of_the_chip(zone_name(name)) for name in ("PMIC-Die", "iwlwifi_1", "nvme"))


# Rails


@pytest.mark.parametrize("fault", ["hide", "break"])
@pytest.mark.parametrize("name", ["orin-nano-8", "agx-orin-64"])
def test_a_rail_that_vanishes_takes_the_total_with_it(name: str, fault: str, tmp_path: Path) -> None:
    """It must not fall: 20 W would read as 3 W."""
    board = board_named(name)
    tree = BoardTree.build(tmp_path / "board", board)
    tree.show(Sample(0.0, "plant", power_mw=20_000))
    for rail in board.total_rails:
        assert read(tree).power_mw == pytest.approx(20_000, abs=40)
        (tree.hide_rail if fault == "hide" else tree.break_rail)(rail)
        sample = read(tree)
        assert sample.power_mw is None
        assert rail not in {one.name for one in sample.rails}
        assert f"power: {rail} cannot be read, so there is no total" in sample.problems
        tree.show_rail(rail)
        tree.show(Sample(0.0, "plant", power_mw=20_000))


def test_a_rail_that_is_no_part_of_the_total_is_only_told(nano: BoardTree) -> None:
    nano.hide_rail("VDD_SOC")
    sample = read(nano)
    assert sample.power_mw == 4500
    assert sample.problems == ("rail VDD_SOC: cannot be read",)


@pytest.mark.parametrize("power_mw", [0, -500, 655_350])
def test_a_board_that_draws_what_none_does_is_a_sensor_that_is_broken(power_mw: int, nano: BoardTree) -> None:
    nano.set_rail("VDD_IN", power_mw)
    sample = read(nano)
    assert sample.power_mw is None
    assert sample.problems == (f"power: VDD_IN reads {max(0, power_mw)} mW",)


def test_less_than_nothing_on_one_rail_is_nothing(nano: BoardTree) -> None:
    nano.set_rail("VDD_SOC", -15)
    assert read(nano).rails[2] == Rail("VDD_SOC", 0)


def test_rails_tell_an_unknown_board_s_kind_and_no_part_of_them_is_a_total() -> None:
    agx = [Rail(name, 1000) for name in AGX_RAILS]
    assert total_power([Rail("VDD_IN", 5000), Rail("VDD_SOC", 900)], None).power_mw == 5000
    assert total_power([Rail("VDD_CPU_GPU_CV", 2000), Rail("VDD_SOC", 900)], None).power_mw is None
    assert total_power(agx, None).power_mw == 4000
    assert all(total_power(agx[:at] + agx[at + 1 :], None).power_mw is None for at in range(4))
    assert total_power([Rail("SOMETHING", 900)], None).problem == "power: no rail is known to be the whole board's"
    assert total_power([], None).problem == "power: no sensor"


# The rest


def test_a_clock_that_reads_nothing_is_none(nano: BoardTree) -> None:
    nano.set_gpu(GpuReading(0.0))
    sample = read(nano)
    assert sample.gpu.clock_mhz is None and sample.gpu.max_clock_mhz == 918.0
    assert sample.problems == ("gpu: its clock reads 0",)


def test_a_gpu_that_comes_up_late_is_found(nano: BoardTree) -> None:
    clock = ManualClock()
    nano.hide_gpu()
    source = SysfsSource(nano.root, clock)
    nano.show_gpu()
    first = source.latest()
    clock.advance(10.0)
    source.latest()
    later = source.latest()
    assert first is not None and first.gpu == GpuReading() and first.problems == ("gpu: its clock is not there",)
    assert later is not None and later.gpu.clock_mhz == 306.0 and later.problems == ()


def test_sensors_that_come_up_late_are_found(tmp_path: Path) -> None:
    clock = ManualClock()
    source = SysfsSource(tmp_path / "board", clock)
    assert source.latest() is None
    BoardTree.build(tmp_path / "board", board_named("orin-nx-16"))
    clock.advance(10.0)
    sample = source.latest()
    assert sample is not None and sample.power_mw == 4500 and source.trouble is None
    assert source.identity.board is board_named("orin-nx-16")


def test_a_driver_that_comes_back_under_another_number_is_found(nano: BoardTree) -> None:
    clock = ManualClock()
    source = SysfsSource(nano.root, clock)
    link = nano.root / "sys/class/hwmon/hwmon1"
    link.rename(link.with_name("hwmon9"))
    lost = source.latest()
    clock.advance(10.0)
    found = source.latest()
    assert lost is not None and lost.power_mw is None
    assert found is not None and found.power_mw == 4500


def test_a_power_mode_lowers_the_clock_and_never_raises_it(nano: BoardTree) -> None:
    nano.set_gpu(GpuReading(918.0))
    nano.set_power_mode("15W")
    assert (read(nano).power_mode, read(nano).gpu) == ("15W", GpuReading(612.0, 612.0, 0.0))
    nano.set_power_mode("MAXN_SUPER")
    assert (read(nano).power_mode, read(nano).gpu) == ("MAXN_SUPER", GpuReading(612.0, 1020.0, 0.0))


def test_a_mode_that_nobody_ever_set_is_none(nano: BoardTree) -> None:
    (nano.root / "var/lib/nvpmodel/status").unlink()
    assert read(nano).power_mode is None


def test_memory_that_cannot_be_read_is_none_and_told(nano: BoardTree) -> None:
    (nano.root / "proc/meminfo").unlink()
    sample = read(nano)
    assert sample.memory is None and sample.problems == ("memory: cannot be read",)


def test_free_blocks_of_all_zones_count(nano: BoardTree) -> None:
    rows = ("Node 0, zone      DMA  10   8   6   4  3  2  2  1 1 1 120\n"
            "Node 0, zone   Normal 500 300 200 100 60 40 20 10 8 5 300\n")  # fmt: skip
    (nano.root / "proc/buddyinfo").write_text(rows)
    memory = read(nano).memory
    assert memory is not None and memory.free_blocks_4mb == 420


def test_a_tree_is_opened_again(nano: BoardTree) -> None:
    again = BoardTree.at(nano.root)
    again.set_rail("VDD_IN", 9_000)
    assert (again.board, again.release, read(nano).power_mw) == (nano.board, nano.release, 9_000)


def test_a_value_that_is_read_while_it_changes_is_the_old_or_the_new_one(nano: BoardTree) -> None:
    """A long one is followed by a short one: the file keeps its length."""
    path = nano.root / "sys/class/thermal/thermal_zone8/temp"
    nano.set_temperature("tj", 104.5)
    length = path.stat().st_size
    nano.set_temperature("tj", 5.0)
    assert path.stat().st_size == length
    assert int(path.read_text()) == 5000
