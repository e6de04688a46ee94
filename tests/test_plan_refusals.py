"""What a plan says of a bundle whose files are not what its manifest says, and of settings that leave no room."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from memory_plans import shaped

from edge_runtime.bundle import DRAFT, MANIFEST_NAME, read_manifest
from edge_runtime.cli import main
from edge_runtime.config import Config, EngineConfig
from edge_runtime.errors import OutOfBudget
from edge_runtime.memory import Plan, Room, plan
from edge_runtime.needs import Load, needs
from edge_runtime.server.preparing import refuse_beyond

GB = 1_000_000_000
NINE = shaped("gemma-2-9b", "gemma-2-2b")
LOAD = Load(2048, 2, (DRAFT,), suffix_tokens=1 << 16)
PEAK = needs(NINE, LOAD).peak


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


# --- files -----------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda place: cut(place / "target.weights"), "target.weights: 1000 bytes, but the manifest says"),
    (lambda place: (place / "target.weights").unlink(), "target.weights: missing"),
    (lambda place: (place / "tokenizer.model").unlink(), "tokenizer.model: missing"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_files_that_are_not_what_the_manifest_says(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    """The plan is shown, since it is right all the same; that it fits is not said."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    damage(place)
    result = run("--bundle", str(place), "--board", "orin-nano-8")
    assert result.exit_code == 2, result.output
    assert "peak in all" in result.stdout and "It fits" not in result.stdout
    assert words in result.stderr and result.stderr.count("\n") == 1
    told = run("--bundle", str(place), "--board", "orin-nano-8", "--json")
    assert told.exit_code == 2 and words in json.loads(told.stdout)["problems"][0]


def test_a_manifest_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes((tiny.bundle() / MANIFEST_NAME).read_bytes())
    result = run("--bundle", str(tmp_path), "--board", "orin-nano-8")
    assert result.exit_code == 0 and "It fits." in result.stdout


@pytest.mark.parametrize("text", [None, "no JSON\n", ""])
def test_a_recording_that_the_daemon_could_not_read(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "r.ndjson").write_text(text)
    config = tmp_path / "c.yaml"
    config.write_text(f"bundle: {tiny.bundle()}\nbudget: {{telemetry: replay, recording: r.ndjson}}\n")
    result = run("--config", str(config), "--board", "orin-nano-8")
    assert (result.exit_code, result.stdout) == (2, "") and "recording" in result.stderr


# --- measuring -------------------------------------------------------------------------------------


def test_what_cannot_be_measured_here_is_planned_and_told_in_one_line() -> None:
    """1 would say that it does not fit."""
    bundle = str(tiny.bundle_without_draft())
    result = run("--bundle", bundle, "--board", "agx-orin-64", "--device", "cuda", "--measure")
    if result.exit_code == 0:
        pytest.skip("this machine has a CUDA provider")
    assert result.exit_code == 2, result.output
    assert "peak in all" in result.stdout and "It fits." in result.stdout
    assert result.stderr.startswith("error: loading ") and result.stderr.count("\n") == 1
    assert "cuda" in result.stderr and "edge_runtime.errors" not in result.stderr


# --- settings --------------------------------------------------------------------------------------


def advice(found: Plan) -> list[str]:
    return [change.what for change in found.changes if change.fits]


def test_a_setting_that_leaves_no_room_is_named() -> None:
    wide = Room("a device", 64 * GB, 60 * GB)
    assert advice(plan(NINE, LOAD, replace(wide, budget=GB // 10)))[0].startswith("budget.memory_gb: ")
    assert advice(plan(NINE, LOAD, replace(wide, reserve=1000 * GB)))[0].startswith("budget.reserve_gb: ")
    both = advice(plan(NINE, LOAD, replace(wide, budget=GB // 10, reserve=1000 * GB)))[0]
    assert "budget.memory_gb: " in both and "budget.reserve_gb: " in both
    busy = advice(plan(NINE, LOAD, Room("a device", 64 * GB, 2 * GB)))[0]
    assert busy.startswith("free memory: 2.00 GB of 64.00 GB available")
    small = plan(NINE, LOAD, Room("a device", 8 * GB, 7 * GB)).changes
    assert not any("budget." in change.what or "free memory" in change.what for change in small)


@given(
    available=st.integers(0, 40 * GB), above=st.integers(0, 8 * GB), reserve=st.integers(0, 50 * GB),
    budget=st.one_of(st.none(), st.integers(GB // 10, 40 * GB)),
)  # fmt: skip
def test_what_is_advised_of_settings_holds(available: int, above: int, reserve: int, budget: int | None) -> None:
    """Done as told, it fits; and no less than the default reserve is advised."""
    room = Room("a device", available + above, available, reserve, budget)
    for what in (what for what in advice(plan(NINE, LOAD, room)) if "budget." in what or "free memory" in what):
        mended = replace(room, available=room.most) if "free memory" in what else room
        for part in what.split(" and "):
            key, _, value = part.partition(": ")
            if key == "budget.memory_gb":
                mended = replace(mended, budget=int(float(value.split()[0]) * GB))
            if key == "budget.reserve_gb":
                mended = replace(mended, reserve=int(float(value.split()[0]) * GB))
                assert mended.reserve >= 800_000_000 or mended.reserve >= reserve
        assert mended.allowed >= PEAK, (what, mended)


def test_the_daemon_names_the_setting_too() -> None:
    manifest, config = read_manifest(tiny.bundle()), Config(str(tiny.bundle()), EngineConfig(context=64, sessions=1))
    with pytest.raises(OutOfBudget, match=r"what would fit: budget\.memory_gb: 0\.\d or more"):
        refuse_beyond(manifest, config, Room("this machine", 64 * GB, 60 * GB, budget=50_000_000))
    with pytest.raises(OutOfBudget, match=r"what would fit: budget\.reserve_gb: "):
        refuse_beyond(manifest, config, Room("this machine", 64 * GB, 60 * GB, 1000 * GB))
    with pytest.raises(OutOfBudget, match="what would fit: a smaller model, or a larger board"):
        refuse_beyond(manifest, config, Room("this machine", GB // 10, GB // 10))


def test_the_words_beside_a_number_that_misleads(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"bundle: {tiny.bundle()}\nbudget: {{memory_gb: 0.1}}\n")
    result = run("--config", str(config), "--board", "agx-orin-64")
    assert result.exit_code == 1 and "left to the system, were it loaded" in result.stdout
    assert "too much for budget.memory_gb, though Jetson AGX Orin 64GB has the room" in result.stdout
    assert "  budget.memory_gb: " in result.stdout
