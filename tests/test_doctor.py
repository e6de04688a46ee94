"""The doctor on boards that are trees of files: each thing that can be wrong is found, told and given its fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from memory_plans import shaped

from edge_runtime.boards import board_named
from edge_runtime.cli import main
from edge_runtime.config import BudgetConfig, Config, EngineConfig
from edge_runtime.doctor.checks import Check, check
from edge_runtime.doctor.machine import Jtop, Machine, User, read_machine
from edge_runtime.memory import Room, plan
from edge_runtime.needs import Load
from edge_runtime.simulator.release import JETPACK_6_2, JETPACK_7_2
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.sample import MemoryReading

GB = 1_000_000_000
ADA = User("ada", False, frozenset({44, 104, 1000}))
"""In video and render."""
CUDA = Config("b", EngineConfig(device="cuda"))
ANSWERS = Jtop("answers")
ENGINES = {"onnxruntime-gpu": "1.24.0"}


@pytest.fixture
def tree(tmp_path: Path) -> BoardTree:
    made = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"), JETPACK_6_2)
    nvmap = made.root / "dev/nvmap"
    nvmap.parent.mkdir()
    nvmap.touch()
    (made.root / "proc/swaps").unlink()
    memory = MemoryReading(made.board.ram_bytes, 6 * GB, 4 * GB, 0, 800)
    made.set_memory(memory)
    return made


def machine(tree: BoardTree, user: User = ADA, jtop: Jtop = ANSWERS) -> Machine:
    return replace(read_machine(tree.root, user=user, jtop=jtop), engines=ENGINES, disk_free_bytes=50 * GB)


def found(machine: Machine, name: str, config: Config | None = CUDA) -> Check:
    (one,) = (one for one in check(machine, config) if one.name == name)
    return one


@pytest.mark.parametrize("release", [JETPACK_6_2, JETPACK_7_2], ids=lambda release: release.jetpack)
@pytest.mark.parametrize("name", ["orin-nano-8", "orin-nx-16", "agx-orin-32", "agx-orin-64"])
def test_a_board_as_it_should_be_has_no_problem(tmp_path: Path, name: str, release: object) -> None:
    tree = BoardTree.build(tmp_path / "board", board_named(name), release)  # type: ignore[arg-type]
    (tree.root / "dev").mkdir()
    (tree.root / "dev/nvmap").touch()
    tree.set_memory(MemoryReading(tree.board.ram_bytes, tree.board.ram_bytes - GB, 4 * GB, 0, 5000))
    checks = check(machine(tree), CUDA)
    assert [one for one in checks if one.status == "problem"] == []
    assert checks[0].text.startswith(tree.board.title)
    assert tree.release.jetpack in checks[1].text and tree.release.l4t in checks[1].text


def no_mode(tree: BoardTree) -> None:
    (tree.root / "var/lib/nvpmodel/status").unlink()


def maxn_that_trips(tree: BoardTree) -> None:
    tree.set_power_mode("MAXN_SUPER")
    tree.set_over_current({"oc3": 4})


def capped_clock(tree: BoardTree) -> None:
    (folder,) = (tree.root / "sys/class/devfreq").iterdir()
    (folder / "max_freq").write_text("408000000\n")


def old_system(tree: BoardTree) -> None:
    (tree.root / "etc/nv_tegra_release").write_text("# R32 (release), REVISION: 7.1, GCID: 1\n")


FAULTS: list[tuple[Callable[[BoardTree], object], str, str, str, str]] = [
    (old_system, "system", "problem", "32.7.1", "JetPack 6.2"),
    (lambda tree: (tree.root / "etc/nv_tegra_release").unlink(), "system", "advice", "container", "nv_tegra_release"),
    (no_mode, "power mode", "problem", "no power mode", "nvpmodel"),
    (maxn_that_trips, "power mode", "problem", "oc3 4 times", "nvpmodel -m 1  (25W)"),
    (lambda tree: tree.set_power_mode("MAXN_SUPER"), "power mode", "advice", "no cap", "nvpmodel -m 1  (25W)"),
    (lambda tree: tree.set_power_mode("7W"), "power mode", "advice", "408", "nvpmodel -m 1  (25W)"),
    (capped_clock, "clocks", "problem", "408", "nvpmodel -m 1"),
    (lambda tree: tree.hide_gpu(), "clocks", "problem", "driver", "reboot"),
    (lambda tree: tree.set_over_current({"oc1": 2}), "throttling", "problem", "oc1 2 times", "power supply"),
    (lambda tree: tree.set_cooling("gpu-throttle-alert", 1), "throttling", "problem", "gpu-throttle", "cooling"),
    (lambda tree: tree.set_temperature("tj", 95.0), "temperature", "problem", "95.0", "fan"),
    (lambda tree: tree.hide_rail("VDD_IN"), "sensors", "problem", "power", "ina3221"),
    (lambda tree: (tree.root / "dev/nvmap").unlink(), "/dev/nvmap", "problem", "container", "--runtime nvidia"),
    (lambda tree: tree.set_memory(MemoryReading(8 * GB, 6 * GB, 4 * GB, 3 * GB, 800)),
     "swap", "problem", "in use", "free -h"),
    (lambda tree: tree.set_memory(MemoryReading(8 * GB, 6 * GB, 0, 0, 800)), "swap", "advice", "none", "mkswap"),
    (lambda tree: (tree.root / "proc/swaps").write_text("Filename Type\n/dev/zram0 partition 1 0 5\n"),
     "swap", "advice", "zram", "nvzramconfig"),
    (lambda tree: tree.set_memory(MemoryReading(8 * GB, 6 * GB, 4 * GB, 0, 10)),
     "large blocks", "problem", "10 free blocks", "compact_memory"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "name", "status", "words", "fix"), FAULTS, ids=lambda value: str(value)[:24])
def test_each_fault_is_told_with_its_fix(
    tree: BoardTree, fault: Callable[[BoardTree], object], name: str, status: str, words: str, fix: str
) -> None:
    assert found(machine(tree), name if name != "sensors" else "temperature").status == "ok"
    fault(tree)
    one = found(machine(tree), name)
    assert (one.status, words in one.text, fix in one.fix) == (status, True, True), one


@pytest.mark.parametrize(
    ("kind", "telemetry", "status", "fix"),
    [
        ("not-installed", "auto", "advice", "pip install jetson-stats"),
        ("not-installed", "jtop", "problem", "pip install jetson-stats"),
        ("no-service", "auto", "problem", "systemctl restart jtop"),
        ("no-access", "auto", "problem", "usermod -aG jtop ada"),
        ("version", "auto", "problem", "same version"),
        ("frozen", "auto", "problem", "systemctl restart jtop"),
        ("lost", "auto", "problem", "systemctl restart jtop"),
        ("failed", "auto", "problem", "journalctl"),
    ],
)
def test_whatever_jtop_lacks_is_told(tree: BoardTree, kind: str, telemetry: str, status: str, fix: str) -> None:
    config = replace(CUDA, budget=BudgetConfig(telemetry=telemetry))  # type: ignore[arg-type]
    one = found(machine(tree, jtop=Jtop(kind, "why")), "jtop", config)
    assert (one.status, one.text.startswith("why"), fix in one.fix) == (status, True, True)


def test_groups(tree: BoardTree) -> None:
    outside = found(machine(tree, User("eve", False, frozenset({1000, 104}))), "groups")
    assert outside.status == "problem" and "usermod -aG video eve" in outside.fix
    assert found(machine(tree, User("root", True, frozenset({0}))), "groups").status == "ok"
    assert found(machine(tree), "groups").status == "ok"


@pytest.mark.parametrize(
    ("engines", "config", "words"),
    [
        ({}, CUDA, "not installed"),
        ({"onnxruntime": "1.24.0", "onnxruntime-gpu": "1.24.0"}, None, "both installed"),
        ({"onnxruntime": "1.22.1"}, None, "needs 1.23"),
        ({"onnxruntime": "1.24.0"}, CUDA, "processor alone"),
    ],
)
def test_the_engine(tree: BoardTree, engines: dict[str, str], config: Config | None, words: str) -> None:
    one = found(replace(machine(tree), engines=engines), "engine", config)
    assert one.status == "problem" and words in one.text and "pip" in one.fix
    assert found(replace(machine(tree), engines={"onnxruntime": "1.23.0"}), "engine", None).status == "ok"


def test_disk_memory_and_power_limit(tree: BoardTree) -> None:
    assert found(replace(machine(tree), disk_free_bytes=GB // 2), "disk").status == "problem"
    over = replace(CUDA, budget=BudgetConfig(power_mw=30_000))
    assert "25 W" in found(machine(tree), "power limit", over).text
    manifest = shaped("gemma-3-4b")
    for allowed, status in ((20 * GB, "ok"), (5 * GB, "problem")):
        planned = plan(manifest, Load(4096, 8), Room("b", allowed, allowed, 0))
        (one,) = (one for one in check(machine(tree), CUDA, planned) if one.name == "memory")
        assert one.status == status
    assert "context: " in one.fix


def test_an_unknown_board_and_no_board(tree: BoardTree, tmp_path: Path) -> None:
    base = tree.root / "sys/firmware/devicetree/base"
    (base / "compatible").write_bytes(b"nvidia,p9999-0000\0nvidia,tegra264\0")
    unknown = found(machine(tree), "board")
    assert unknown.status == "advice" and "budget" in unknown.fix
    (tmp_path / "empty").mkdir()
    checks = check(read_machine(tmp_path / "empty", user=ADA))
    assert checks[0].text.startswith("no Jetson") and {one.name for one in checks} == {"board", "engine", "disk"}


# --- the command -----------------------------------------------------------------------------------


def run(*arguments: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_the_command_prints_each_check_and_counts_problems(tree: BoardTree) -> None:
    (tree.root / "dev/nvmap").unlink()
    result = run("--root", str(tree.root))
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if "/dev/nvmap" in line)
    assert lines[at].startswith("problem") and lines[at + 1].strip().startswith("fix: ")
    told = json.loads(run("--root", str(tree.root), "--json").stdout)
    assert told["problems"] == sum(one["status"] == "problem" for one in told["checks"]) >= 1


def test_the_command_looks_at_the_configured_bundle(tree: BoardTree, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("bundle: nowhere\n")
    result = run("--root", str(tree.root), "--config", str(config))
    assert result.exit_code == 1 and "bundle: no bundle at" in result.stdout


@pytest.mark.parametrize(("option", "value"), [("--config", "/nowhere.yaml"), ("--root", "/nowhere")])
def test_what_is_wrong_is_one_line(option: str, value: str) -> None:
    result = run(option, value)
    assert (result.exit_code, result.stdout) == (2, "") and result.stderr.count("\n") == 1
