"""What engines that are built will take: reckoned from their record, it is what an executor then holds, and it is what
plan, doctor and daemon go by."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trt as tiny
from click.testing import CliRunner
from fake_cuda import FakeRuntime
from fake_tensorrt import _WEIGHTS, FakeTensorRT, installed

from edge_runtime.bundle import DRAFT, Manifest, read_manifest
from edge_runtime.cli import doctor_device, main
from edge_runtime.config import Config, EngineConfig
from edge_runtime.doctor.device import State, Trial
from edge_runtime.doctor.engines import Subject, check_engines
from edge_runtime.doctor.finding import Check
from edge_runtime.doctor.outcome import Accelerator, Outcome, Told
from edge_runtime.engines import trt_build
from edge_runtime.engines.delta import DeltaEngine
from edge_runtime.engines.engine_record import RECORD_NAME, read_record
from edge_runtime.engines.trt import TrtExecutor
from edge_runtime.errors import OutOfBudget
from edge_runtime.loading import LoadSettings, _arena_bytes, load_bundle, load_of
from edge_runtime.memory import Room, plan
from edge_runtime.needs import Load, needs
from edge_runtime.resident import MachineMemory
from edge_runtime.server.preparing import refuse_beyond

GB = 1_000_000_000
OPTIONS = replace(tiny.OPTIONS, draft_length=7)
"""As many draft tokens as a daemon verifies where nothing else is said."""


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeTensorRT, FakeRuntime]]:
    yield from installed(monkeypatch)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
        for _ in installed(patch):
            tiny.built(place, tiny.bundle(), OPTIONS)
    return place


def manifest() -> Manifest:
    return read_manifest(tiny.bundle())


def settings(engines: Path, **given: object) -> LoadSettings:
    keys = {"context": tiny.CAPACITY, "slots": 2, "max_draft_tokens": 7, "engines": engines, **given}
    return LoadSettings(**keys)  # type: ignore[arg-type]


def loaded(engines: Path, **given: object) -> Load:
    return load_of(manifest(), settings(engines, **given), tiny.bundle())


def test_what_is_reckoned_is_what_executors_hold(fakes: object, engines: Path) -> None:
    load = loaded(engines)
    found = needs(manifest(), load)
    record = read_record(engines)
    assert record is not None and load.not_built is None and found.exact
    target, draft = found.models
    assert target.weights == sum(record.plans[name].bytes for name in ("target.body.onnx", "target.head.onnx"))
    assert target.mapped == draft.mapped == 0
    bundle = load_bundle(tiny.bundle(), settings(engines, memory_bytes=found.peak))
    executors = []
    for engine in (bundle.target, bundle.drafting[DRAFT]):
        assert isinstance(engine, DeltaEngine) and isinstance(engine.executor, TrtExecutor)
        executors.append(engine.executor)
    arenas = [executor.layout.arena_bytes for executor in executors]
    assert [one.kv for one in found.models] == arenas
    pinned = sum(executor._pinned._places.size for executor in executors)
    others = sum(one.kv + one.scratch + one.logits for one in found.models) - pinned
    assert executors[0].device.held_bytes == 4 * _WEIGHTS + others
    bundle.close()


def test_a_session_more_is_a_cache_more_and_less_context_is_none(engines: Path) -> None:
    """An engine holds what it was built for."""
    one, two = (needs(manifest(), loaded(engines, slots=n)) for n in (1, 2))
    assert [2 * a.kv for a in one.models] == [b.kv for b in two.models]
    assert needs(manifest(), loaded(engines, context=8)).peak == two.peak
    alone = needs(manifest(), loaded(engines, drafter="none"))
    assert alone.peak < two.peak and alone.models[0].kv == two.models[0].kv


def damage(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda place: change(place / name)


REASONS: list[tuple[dict[str, object], Callable[[Path], object] | None, str]] = [
    ({}, lambda place: shutil.rmtree(place), "no engines are built yet (edge-runtime build "),
    ({}, damage("target.head.plan", Path.unlink), "target.head.plan is missing (edge-runtime build "),
    ({}, damage("draft.body.plan", lambda path: path.write_bytes(b"1")), "draft.body.plan has 1 bytes, and "),
    ({}, damage(RECORD_NAME, lambda path: path.write_text("{")), "engine.json cannot be read"),
    ({"context": 97}, None, "these engines hold 96 (edge-runtime build "),
    ({"max_draft_tokens": 9}, None, "9 draft tokens: these engines verify up to 7 (edge-runtime build "),
]


@pytest.mark.parametrize(("given", "change", "words"), REASONS)
def test_what_does_not_count_is_told_and_the_manifest_is_gone_by(
    engines: Path, tmp_path: Path, given: dict[str, object], change: Callable[[Path], object] | None, words: str
) -> None:
    place = Path(shutil.copytree(engines, tmp_path / "copy"))
    if change is not None:
        change(place)
    load = loaded(place, **given)
    assert load.built is None and load.not_built is not None
    assert words in load.not_built and "\n" not in load.not_built
    assert not needs(manifest(), load).exact
    # A drafter that is not loaded has no say.
    alone = load_of(manifest(), settings(place, drafter="none", **given), place)
    assert (alone.built is not None) == ("draft." in words)


def test_other_engines_ask_for_none() -> None:
    load = load_of(manifest(), LoadSettings(context=64, backend="reference"), tiny.bundle())
    assert load.built is None and load.not_built is None


# --- who goes by it


def test_the_command_says_which(engines: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "a bundle"
    shutil.copytree(tiny.bundle(), bundle)
    run = ["plan", "--bundle", str(bundle), "--board", "orin-nano-8", "--context", str(tiny.CAPACITY)]
    told = CliRunner().invoke(main, run)
    assert told.exit_code == 0, told.output
    guess = "A guess from the manifest, with assumed factors: no engines are built yet (edge-runtime build "
    assert f"{guess}'{bundle}')" in told.stdout
    shutil.copytree(engines, bundle / "engine")
    told = CliRunner().invoke(main, run)
    assert told.exit_code == 0 and "Reckoned from engine.json: engines that were built on Orin (SM 87)" in told.stdout
    data = json.loads(CliRunner().invoke(main, [*run, "--json"]).stdout)
    assert data["load"]["built"]["models"][0]["capacity"] == tiny.CAPACITY and data["load"]["not_built"] is None


def test_the_daemon_starts_on_the_same_numbers(engines: Path) -> None:
    """Counted with the drafter; and what is left of the budget is what the load may take."""
    keys = {"context": tiny.CAPACITY, "sessions": 2, "engines": str(engines), "suffix_tokens": 0}
    config = Config(str(tiny.bundle()), EngineConfig(**keys))  # type: ignore[arg-type]
    found = needs(manifest(), loaded(engines))
    assert [one.role for one in found.models] == ["target", "draft"]
    room = Room("this machine", 64 * GB, 64 * GB, 0, found.peak)
    assert refuse_beyond(manifest(), config, room) == found.peak
    with pytest.raises(OutOfBudget, match="2 sessions of 96 tokens need"):
        refuse_beyond(manifest(), config, replace(room, budget=found.peak - 1))
    # Beside a model that is served the process counts once.
    held = 5 * GB
    beside = replace(room, budget=held + found.beside)
    assert refuse_beyond(manifest(), config, beside, held) == found.peak


def test_the_device_is_held_to_what_the_plan_leaves_it(engines: Path) -> None:
    """Whatever ``device`` says, which is none of TensorRT's business."""
    for device in ("cpu", "cuda"):
        wanted = settings(engines, device=device, memory_bytes=3 * GB)
        load = load_of(manifest(), wanted, tiny.bundle())
        found = needs(manifest(), load)
        cap = _arena_bytes(manifest(), load, wanted)
        assert cap == 3 * GB - found.process - found.tokenizer - found.suffix - sum(one.hidden for one in found.models)


def test_what_would_fit_is_to_be_built_again(engines: Path) -> None:
    load = loaded(engines)
    peak = needs(manifest(), load).peak
    found = plan(manifest(), load, Room("a device", 64 * GB, 64 * GB, 0, peak - 1))
    (context,) = (change for change in found.changes if change.what.startswith("context: "))
    tokens = int(context.what.split(":")[1].split(",")[0])
    assert context.what == f"context: {tokens}, and edge-runtime build --rebuild --context {tokens}" and context.fits
    assert context.peak == needs(manifest(), load.of_context(tokens)).peak
    assert needs(manifest(), replace(load, built=None)).peak != peak


# --- the doctor


def seen(tensorrt: str = "10.3.0", compute: str = "8.7", count: int | None = 8) -> Outcome:
    gpu = Accelerator("Orin", compute, 4 * GB, multiprocessors=count)
    return Outcome("tensorrt", "finished", "end", "", 1.0, told=Told({"tensorrt": tensorrt}, gpu))


def looked(place: Path, outcome: Outcome | None = None, load: Load | None = None) -> Check:
    (found,) = check_engines(Subject(tiny.bundle(), manifest(), place, load), outcome)
    assert found.text.isprintable() and found.name == "TensorRT engines"
    return found


def test_the_doctor_finds_nothing_in_what_fits(engines: Path) -> None:
    right = looked(engines, seen(), loaded(engines))
    assert right.status == "ok" and "4 of " in right.text and "built on Orin (SM 87) by TensorRT 10.3.0" in right.text
    # What a probe does not tell is not held against an engine; without any, only the bundle is compared.
    assert looked(engines, seen(count=None)).status == "ok"
    assert looked(engines).text.endswith("not compared with this machine")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (seen("10.7.0"), "built by TensorRT 10.3.0, and here is 10.7.0"),
        (seen(compute="12.0"), "built for SM 87 (Orin), and this GPU is SM 120 (Orin)"),
        (seen(count=16), "built on Orin with 8 multiprocessors, and this is Orin with 16"),
    ],
)
def test_the_doctor_tells_foreign_engines(engines: Path, outcome: Outcome, words: str) -> None:
    found = looked(engines, outcome)
    assert (found.status, found.text) == ("problem", words)
    assert found.fix == f"edge-runtime build BUNDLE --output {engines} --rebuild"


def test_the_doctor_tells_missing_and_stale_ones(engines: Path, tmp_path: Path) -> None:
    assert looked(tmp_path / "none", seen()).status == "problem" and looked(tmp_path / "none").status == "advice"
    place = Path(shutil.copytree(engines, tmp_path / "copy"))
    (place / "target.head.plan").unlink()
    gone = looked(place, seen())
    assert (gone.status, gone.text) == ("problem", "target.head.onnx: target.head.plan is missing")
    assert gone.fix == f"edge-runtime build BUNDLE --output {place}"
    path = place / RECORD_NAME
    path.write_text(path.read_text().replace(manifest_digest("target.body.onnx"), "0" * 64))
    stale = looked(place, seen())
    assert "target.body.onnx has changed since it was built; target.head.onnx: " in stale.text
    assert stale.fix.endswith("--rebuild")
    path.write_text("[")
    assert "cannot be read" in looked(place, seen()).text


def test_the_doctor_tells_settings_beyond_them(engines: Path) -> None:
    found = looked(engines, seen(), loaded(engines, context=100))
    assert found.status == "problem" and found.text == "context of 100 tokens: these engines hold 96"
    assert found.fix.endswith("--rebuild --context 100")


def test_the_doctor_has_nothing_to_say_of_other_engines() -> None:
    reference = load_of(manifest(), LoadSettings(context=64, backend="reference"))
    assert check_engines(Subject(tiny.bundle(), manifest(), None, reference), None) == ()
    models = {role: replace(model, dialect="ort") for role, model in manifest().models.items()}
    other = replace(manifest(), models=models)
    assert check_engines(Subject(tiny.bundle(), other, None, None), None) == ()


def manifest_digest(name: str) -> str:
    return next(entry.sha256 for entry in manifest().files if entry.name == name)


def test_the_command_looks_at_the_configured_engines(engines: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"bundle: {tiny.bundle()}\nengine: {{engines: {engines}, context: 64}}\n")
    told = json.loads(CliRunner().invoke(main, ["doctor", "--config", str(config), "--json"]).stdout)
    (one,) = (check for check in told["checks"] if check["name"] == "TensorRT engines")
    assert one["status"] == "ok", one


def test_with_device_they_are_held_against_this_machine(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still = State(None, None, None)
    trial = Trial((seen("10.7.0"),), still, still, None, False)
    monkeypatch.setattr(doctor_device, "try_all", lambda *given: trial)
    config = engines.parent / "c.yaml"
    config.write_text(f"bundle: {tiny.bundle()}\nengine: {{engines: {engines}, context: 64}}\n")
    told = json.loads(CliRunner().invoke(main, ["doctor", "--device", "--config", str(config), "--json"]).stdout)
    (one,) = (check for check in told["checks"] if check["name"] == "TensorRT engines")
    assert one["status"] == "problem" and one["text"] == "built by TensorRT 10.3.0, and here is 10.7.0"
    given = CliRunner().invoke(main, ["doctor", "--device", "--bundle", str(tiny.bundle()), "--json"])
    (one,) = (check for check in json.loads(given.stdout)["checks"] if check["name"] == "TensorRT engines")
    assert one["status"] == "problem" and one["text"] == "none are built"
