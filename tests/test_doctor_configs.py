"""The doctor beside a configuration: what keeps the daemon from starting or holds it down is told, with a fix that
mends it; and a shipped configuration on its own board is never advised against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result
from memory_plans import PAIRS, shaped

from edge_runtime.boards import BOARDS, Board, board_named
from edge_runtime.cli import main
from edge_runtime.config import BudgetConfig, Config, EngineConfig, ServerConfig, read_config
from edge_runtime.doctor.checks import check
from edge_runtime.doctor.finding import Check
from edge_runtime.doctor.machine import Jtop, Machine, User, read_machine
from edge_runtime.errors import ConfigError
from edge_runtime.loading import load_of
from edge_runtime.memory import Plan, plan
from edge_runtime.server.preparing import machine_room, settings_of
from edge_runtime.server.sockets import UnixListener
from edge_runtime.simulator import devices
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.recording import line_of
from edge_runtime.telemetry.sample import GpuReading, MemoryReading, Sample, Zone

GB = 1_000_000_000
CONFIGS = Path(__file__).parent.parent / "configs"
ANSWERS = Jtop("answers")
ROOT_USER = User("root", True, frozenset({0}))
NAMES = [board.name for board in BOARDS]


def built(place: Path, board: Board) -> BoardTree:
    """With nothing on it that would be in the way."""
    tree = BoardTree.build(place / "board", board)
    (tree.root / "dev").mkdir()
    (tree.root / "dev/nvmap").touch()
    (tree.root / "proc/swaps").unlink()
    tree.set_memory(MemoryReading(board.ram_bytes, board.ram_bytes - GB // 2, 4 * GB, 0, 5000))
    return tree


def machine(tree: BoardTree, jtop: Jtop | None = ANSWERS) -> Machine:
    read = read_machine(tree.root, user=ROOT_USER, jtop=jtop)
    groups = {**read.groups, "edge-runtime": 990}
    return replace(read, engines={"onnxruntime-gpu": "1.24.0"}, disk_free_bytes=50 * GB, groups=groups)


def shipped(name: str) -> tuple[Config, str]:
    """And the mode that its comment says it is meant for."""
    path = CONFIGS / f"{name}gb.yaml"
    text = path.read_text(encoding="utf-8")
    (mode,) = (mode.name for mode in board_named(name).modes if f"power mode {mode.name}\n" in text)
    return read_config(path), mode


def planned(name: str, config: Config, tree: BoardTree) -> Plan:
    manifest = shaped(*PAIRS[name])
    room = machine_room(config.budget, tree.root)
    assert room is not None
    return plan(manifest, load_of(manifest, settings_of(config.engine)), room)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_configuration_is_not_advised_against_on_its_own_board(tmp_path: Path, name: str) -> None:
    config, mode = shipped(name)
    tree = built(tmp_path, board_named(name))
    tree.set_power_mode(mode)
    checks = check(machine(tree), config, planned(name, config, tree))
    assert [one for one in checks if one.status != "ok"] == []


@pytest.mark.parametrize("name", NAMES)
def test_in_every_other_mode_there_is_one_advice_and_it_leads_to_where_all_is_well(tmp_path: Path, name: str) -> None:
    config, _ = shipped(name)
    board = board_named(name)
    tree = built(tmp_path, board)
    for mode in board.modes:
        tree.set_power_mode(mode.name)
        advised = [one for one in check(machine(tree), config) if one.status != "ok"]
        assert len(advised) <= 1, advised
        for one in advised:
            (wanted,) = (other for other in board.modes if f"nvpmodel -m {other.id}  ({other.name})" in one.fix)
            tree.set_power_mode(wanted.name)
            assert [again for again in check(machine(tree), config) if again.status != "ok"] == []


@pytest.mark.parametrize("name", NAMES)
def test_where_others_hold_the_memory_they_are_what_is_told(tmp_path: Path, name: str) -> None:
    """The pair fits the board; it is no smaller model that is needed."""
    config, _ = shipped(name)
    tree = built(tmp_path, board_named(name))
    tree.set_memory(MemoryReading(tree.board.ram_bytes, 12 * GB // 10, 4 * GB, 0, 5000))
    (one,) = (one for one in check(machine(tree), config, planned(name, config, tree)) if one.name == "memory")
    assert one.status == "problem" and one.fix.startswith("free memory: 1.20 GB of ")
    assert "close the desktop" in one.fix and "smaller model" not in one.fix


# --- limits ----------------------------------------------------------------------------------------


def limited(telemetry: str = "auto", **budget: object) -> Config:
    given = BudgetConfig(telemetry=telemetry, **budget)  # type: ignore[arg-type]
    return Config("b", EngineConfig(device="cuda"), budget=given)


def found(machine: Machine, config: Config, name: str, recorded: tuple[Sample, ...] = ()) -> list[Check]:
    return [one for one in check(machine, config, None, recorded) if one.name == name]


@pytest.fixture
def tree(tmp_path: Path) -> BoardTree:
    return built(tmp_path, board_named("orin-nano-8"))


def no_zones(tree: BoardTree) -> None:
    for zone in devices.ZONES:
        tree.break_zone(zone)


@pytest.mark.parametrize("jtop", [None, Jtop("not-installed", "why")])
@pytest.mark.parametrize(
    ("fault", "config", "name"),
    [
        (lambda tree: tree.hide_rail("VDD_IN"), limited(power_mw=15_000), "power limit"),
        (no_zones, limited(temperature_c=85.0), "temperature limit"),
    ],
)
def test_a_limit_that_nothing_can_hold_is_told(
    tree: BoardTree, fault: Callable[[BoardTree], object], config: Config, name: str, jtop: Jtop | None
) -> None:
    assert found(machine(tree), config, name) == []
    fault(tree)
    (one,) = found(machine(tree, jtop), config, name)
    assert one.status == "problem" and "K <= 2" in one.text and "50%" in one.text and "budget." in one.fix
    # It may know what the files do not tell.
    assert found(machine(tree), config, name) == []


def test_a_limit_on_a_machine_that_is_no_jetson(tmp_path: Path) -> None:
    other = read_machine(tmp_path, user=ROOT_USER)
    (one,) = found(other, limited(power_mw=15_000), "power limit")
    assert one.status == "problem"
    (one,) = found(other, limited(temperature_c=85.0), "temperature limit")
    assert one.status == "problem"
    assert found(other, limited(), "power limit") == []


def test_limits_are_held_by_what_is_replayed(tree: BoardTree) -> None:
    tree.hide_rail("VDD_IN")
    config = limited("replay", recording="r", power_mw=15_000, temperature_c=85.0)
    with_power = Sample(0.0, "sysfs", 9000, zones=(Zone("tj", 50.0),))
    assert found(machine(tree), config, "power limit", (with_power,)) == []
    (one,) = found(machine(tree), config, "power limit", (replace(with_power, power_mw=None),))
    assert one.status == "problem"


def test_no_zone_is_told_without_a_limit(tree: BoardTree) -> None:
    no_zones(tree)
    (one,) = found(machine(tree), limited(), "temperature")
    assert one.status == "problem" and "thermal_zone" in one.fix


@pytest.mark.parametrize(
    ("config", "name", "status", "words", "fix"),
    [
        (limited(temperature_c=104.0), "temperature limit", "advice", "by itself at 99", "budget.temperature_c: 94 or"),
        (limited(temperature_c=99.0), "temperature limit", "advice", "by itself at 99", "budget.temperature_c: 94 or"),
        (limited(temperature_c=40.0), "temperature limit", "problem", "45.0 without work", "cooling"),
        (limited(power_mw=4000), "power limit", "problem", "without work", "budget.power_mw: 7000 or more"),
    ],
)
def test_a_limit_that_binds_always_or_never_is_told(
    tree: BoardTree, config: Config, name: str, status: str, words: str, fix: str
) -> None:
    (one,) = found(machine(tree), config, name)
    assert (one.status, words in one.text, fix in one.fix) == (status, True, True), one


def test_a_board_at_work_says_nothing_of_what_it_has_without(tree: BoardTree) -> None:
    tree.show(Sample(0.0, "plant", 14_000, zones=(Zone("tj", 84.9),), gpu=GpuReading(612.0, load=0.9)))
    config = limited(power_mw=13_000, temperature_c=84.0)
    assert found(machine(tree), config, "power limit") == found(machine(tree), config, "temperature limit") == []


# --- what the daemon would not start with ----------------------------------------------------------


def doctor(tree: BoardTree, tmp_path: Path, text: str) -> Result:
    config = tmp_path / "c.yaml"
    config.write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["doctor", "--root", str(tree.root), "--config", str(config)])


def told(result: Result, name: str) -> tuple[str, str]:
    """Its line, and that of the fix."""
    lines = result.stdout.splitlines()
    (at,) = (index for index, line in enumerate(lines) if line[9:].startswith(f"{name}: "))
    return lines[at], lines[at + 1].strip() if at + 1 < len(lines) else ""


def test_a_group_that_is_not_there(tree: BoardTree) -> None:
    config = replace(limited(), server=ServerConfig(group="edge-runtime"))
    read = machine(tree)
    assert [one.status for one in found(read, config, "socket group")] == ["ok"]
    without = {name: gid for name, gid in read.groups.items() if name != "edge-runtime"}
    (one,) = found(replace(read, groups=without), config, "socket group")
    assert one.status == "problem" and "sudo groupadd --system edge-runtime" in one.fix and "server.group" in one.fix


def test_the_daemon_names_the_fix_of_a_missing_group_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sudo groupadd --system no-such-group, or name another in server\.group"):
        UnixListener(tmp_path / "s.sock", 0o660, "no-such-group")


@pytest.mark.parametrize("name", ["target.weights", "tokenizer.model"])
@pytest.mark.parametrize("cut", [True, False])
def test_files_of_the_bundle_that_are_not_whole(tree: BoardTree, tmp_path: Path, name: str, cut: bool) -> None:
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    text = f"bundle: {place}\n"
    assert told(doctor(tree, tmp_path, text), "bundle")[0].startswith("ok")
    if cut:
        (place / name).write_bytes((place / name).read_bytes()[:1000])
    else:
        (place / name).unlink()
    result = doctor(tree, tmp_path, text)
    line, fix = told(result, "bundle")
    assert result.exit_code == 1 and line.startswith("problem") and name in line and "copy it again" in fix


@pytest.mark.parametrize(
    ("engine", "words", "fix"),
    [
        ("context: 99999", "context of 99999 tokens", "engine.context: 4096 or less"),
        ("drafter: mtp", "drafter mtp", "another engine.drafter"),
        ("strategy: best", "strategy: 'best'", "another engine.strategy"),
    ],
)
def test_settings_beyond_the_bundle_are_mended_in_the_settings(
    tree: BoardTree, tmp_path: Path, engine: str, words: str, fix: str
) -> None:
    result = doctor(tree, tmp_path, f"bundle: {tiny.bundle()}\nengine: {{{engine}}}\n")
    line, told_fix = told(result, "engine settings")
    assert result.exit_code == 1 and words in line and fix in told_fix and "edge-export" not in told_fix


@pytest.mark.parametrize(
    ("budget", "fix"), [("memory_gb: 0.1", "budget.memory_gb: "), ("reserve_gb: 1000", "budget.reserve_gb: ")]
)
def test_settings_that_leave_no_memory(tree: BoardTree, tmp_path: Path, budget: str, fix: str) -> None:
    line, told_fix = told(doctor(tree, tmp_path, f"bundle: {tiny.bundle()}\nbudget: {{{budget}}}\n"), "memory")
    assert line.startswith("problem") and fix in told_fix and "smaller model" not in told_fix


def test_recordings(tree: BoardTree, tmp_path: Path) -> None:
    text = f"bundle: {tiny.bundle()}\nbudget: {{telemetry: replay, recording: r.ndjson}}\n"
    line, fix = told(doctor(tree, tmp_path, text), "recording")
    assert line.startswith("problem") and "r.ndjson" in line and "edge-runtime telemetry" in fix
    (tmp_path / "r.ndjson").write_text("no JSON\n")
    assert told(doctor(tree, tmp_path, text), "recording")[0].startswith("problem")
    (tmp_path / "r.ndjson").write_text(f"{line_of(Sample(0.0, 'sysfs', 9000))}\n")
    assert told(doctor(tree, tmp_path, text), "recording")[0].startswith("ok")
