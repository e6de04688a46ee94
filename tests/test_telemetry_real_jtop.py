"""The real jtop service and client, unpatched, on a board that is not there: the same values by both ways, and what
fails in the field.

Needs root, mount namespaces, a C compiler and jetson-stats. Where one is missing these are skipped, with the reason;
with ``EDGE_RUNTIME_NO_SKIPS`` set, as CI has it, only root and namespaces may be.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from jtop_lines import until

from edge_runtime.boards import Board, board_named
from edge_runtime.simulator.namespace import BoardNamespace, JtopService, forbidden, lacking
from edge_runtime.simulator.release import JETPACK_6_2, JETPACK_7_2, Release
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.jtop import JtopSource, Pace, child_command
from edge_runtime.telemetry.sample import GpuReading, Sample, Zone
from edge_runtime.telemetry.sysfs import SysfsSource

QUICK = Pace(first_wait_s=0.05, longest_wait_s=0.1)
CHILD = child_command(interval_s=0.25, frozen_s=1.0)


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if (reason := forbidden()) is not None:
        pytest.skip(reason)
    reason = lacking() or (None if find_spec("jtop") else "jetson-stats is not installed")
    if reason is not None and "EDGE_RUNTIME_NO_SKIPS" in os.environ:
        pytest.fail(f"not to be skipped where namespaces are: {reason}")
    if reason is not None:
        pytest.skip(reason)


class Bench:
    """A board, the place in which it is real, and its service."""

    def __init__(self, folder: Path, board: Board, release: Release) -> None:
        self.tree = BoardTree.build(folder / board.name, board, release)
        self.place = BoardNamespace(self.tree)
        self.service = JtopService(self.place)
        self._sources: list[JtopSource] = []

    def listen(self, *prefix: str, pace: Pace = QUICK) -> JtopSource:
        source = JtopSource(self.place.command(*prefix, *CHILD), self.tree.board, pace)
        self._sources.append(source)
        return source

    def restart(self) -> None:
        self.service.kill()
        self.service = JtopService(self.place)

    def end_clients(self) -> None:
        for source in self._sources:
            source.close()
        self._sources.clear()

    def close(self) -> None:
        self.end_clients()
        self.service.kill()
        self.place.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("boards"), board_named("orin-nano-8"), JETPACK_6_2)
    yield bench
    bench.close()


@pytest.fixture
def nano(shared: Bench) -> Iterator[Bench]:
    """Running, and as it was built, for each test, whatever the one before did."""
    if shared.service.ended is not None:
        shared.service = JtopService(shared.place)
    yield shared
    shared.end_clients()
    shared.tree.mend_nvpmodel()
    for rail in shared.tree.board.rails:
        shared.tree.show_rail(rail)
    shared.tree.show(Sample(0.0, "plant", power_mw=4500, zones=(Zone("cv0", 45.0), Zone("tj", 45.0))))


def comes(source: JtopSource, wanted: Callable[[Sample], object]) -> Sample:
    until(lambda: (newest := source.latest()) is not None and wanted(newest))
    newest = source.latest()
    assert newest is not None
    return newest


def falls(source: JtopSource, *kinds: str) -> str:
    """What it says when it is in trouble of one of these kinds."""
    until(lambda: source.problem is not None and source.problem.kind in kinds)
    return source.trouble or ""


def test_both_ways_to_read_a_board_agree(nano: Bench) -> None:
    tree, source = nano.tree, nano.listen()
    shown = Sample(0.0, "plant", power_mw=14_500, zones=(Zone("tj", 78.5),), gpu=GpuReading(408.0, load=0.97))
    tree.show(replace(shown, power_mode="15W", fan=0.8))
    told = comes(source, lambda sample: sample.hottest == Zone("tj", 78.5) and sample.gpu.load == 0.97)
    read = SysfsSource(tree.root).latest()
    assert read is not None
    assert told.power_mw == read.power_mw == 14_500
    assert set(told.rails) == set(read.rails) and set(told.zones) == set(read.zones)
    assert (told.gpu, told.power_mode) == (read.gpu, read.power_mode) == (GpuReading(408.0, 612.0, 0.97), "15W")
    assert told.fan == pytest.approx(read.fan, abs=0.01)
    assert told.time_s <= read.time_s
    assert source.trouble is None


def test_a_zone_that_is_off_and_a_rail_that_vanishes(nano: Bench) -> None:
    source = nano.listen()
    comes(source, lambda sample: sample.power_mw == 4500)
    nano.tree.set_temperature("cv0", -256)
    nano.tree.break_zone("tj")
    nano.tree.hide_rail("VDD_IN")
    told = comes(source, lambda sample: len(sample.problems) == 3)
    assert told.power_mw is None and len(told.rails) == 2
    assert not {"cv0", "tj"} & {zone.name for zone in told.zones}
    assert set(told.problems) == {
        "zone cv0: off", "zone tj: off", "power: VDD_IN cannot be read, so there is no total"
    }  # fmt: skip


def outside() -> tuple[str, bool, list[str]]:
    """What a board that is simulated must leave as it was."""
    etc = sorted(os.listdir("/etc"))
    return Path("/proc/self/mounts").read_text(), Path("/run/jtop.sock").exists(), etc


def test_an_agx_under_jetpack_7_which_is_seen_by_nobody_else(tmp_path: Path) -> None:
    before = outside()
    bench = Bench(tmp_path, board_named("agx-orin-64"), JETPACK_7_2)
    try:
        source = bench.listen()
        bench.tree.show(Sample(0.0, "plant", power_mw=31_000))
        read = SysfsSource(bench.tree.root).latest()
        assert read is not None and read.power_mw == pytest.approx(31_000, abs=40)
        told = comes(source, lambda sample: sample.power_mw == read.power_mw)
        assert told.power_mode == "MODE_30W"
        bench.tree.hide_rail("VDD_CPU_CV")
        assert comes(source, lambda sample: len(sample.rails) == 3).power_mw is None
        assert outside() == before
    finally:
        bench.close()
    assert outside() == before
    assert bench.service.ended is not None


def test_no_right_to_the_socket(nano: Bench) -> None:
    """A root without its capabilities is anybody, and the socket is somebody else's."""
    os.chown(nano.service.socket, 1, 1)
    source = nano.listen("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    try:
        assert re.search(r"no right to /run/jtop.sock: sudo usermod -aG \w+ \w+", falls(source, "no-access"))
    finally:
        os.chown(nano.service.socket, 0, 0)
    comes(source, lambda sample: sample.power_mw == 4500)


def test_a_service_of_another_version(nano: Bench, tmp_path: Path) -> None:
    found = find_spec("jtop")
    assert found is not None and found.submodule_search_locations is not None
    copy = tmp_path / "jtop"
    shutil.copytree(found.submodule_search_locations[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "__init__.py").read_text()
    (copy / "__init__.py").write_text(re.sub(r'__version__ = "[\d.]+"', '__version__ = "4.2.12"', text))
    nano.service.kill()
    other = JtopService(nano.place, PYTHONPATH=str(tmp_path))
    try:
        assert "service: [4.2.12] and client: [" in falls(nano.listen(), "version")
    finally:
        other.kill()
        nano.restart()


def test_a_service_whose_nvpmodel_fails_freezes_ends_with_code_0_and_is_found_again(nano: Bench) -> None:
    """As in the field at high load: systemd does not restart what ends with 0."""
    source = nano.listen()
    before = comes(source, lambda sample: sample.power_mw == 4500)
    nano.tree.break_nvpmodel()
    assert "sudo systemctl restart jtop" in falls(source, "frozen")
    until(lambda: nano.service.ended is not None)
    assert nano.service.ended == 0
    assert "sudo systemctl restart jtop" in falls(source, "no-service")
    old = source.latest()
    assert old is not None and old.time_s >= before.time_s
    nano.tree.mend_nvpmodel()
    nano.service = JtopService(nano.place)
    comes(source, lambda sample: sample.time_s > old.time_s)
    until(lambda: source.trouble is None)


def test_a_service_that_is_killed_is_lost_and_found_again(nano: Bench) -> None:
    source = nano.listen(pace=replace(QUICK, first_wait_s=0.5))
    comes(source, lambda sample: sample.power_mw == 4500)
    nano.service.kill()
    # A client that waits for its next values may be handed "none in time" before "no connection".
    assert "sudo systemctl restart jtop" in falls(source, "lost", "frozen")
    assert "nobody answers" in falls(source, "no-service"), "its socket is still there"
    nano.restart()
    until(lambda: source.trouble is None)


def test_a_service_that_hangs_is_told_and_found_again(nano: Bench) -> None:
    source = nano.listen(pace=replace(QUICK, start_patience_s=2.0))
    comes(source, lambda sample: sample.power_mw == 4500)
    nano.service.freeze()
    falls(source, "frozen")
    falls(source, "hung")
    nano.service.thaw()
    until(lambda: source.trouble is None)
