"""``edge-runtime build`` over a fake TensorRT that is held to the real one's surface: what is built, kept, refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trt as tiny
from click.testing import CliRunner, Result
from fake_cuda import FakeRuntime
from fake_tensorrt import FakeTensorRT, installed

from edge_runtime.bundle import file_sha256, read_manifest
from edge_runtime.cli import main
from edge_runtime.engines import trt_build
from edge_runtime.engines.build_memory import BuildRoom
from edge_runtime.engines.engine_record import RECORD_NAME, EngineMismatch, read_record
from edge_runtime.errors import BundleError, ConfigError, DeviceError
from edge_runtime.resident import MachineMemory

Fakes = tuple[FakeTensorRT, FakeRuntime]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    monkeypatch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
    yield from installed(monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.bundle(), tmp_path / "bundle"))


def build(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["build", *map(str, arguments)])


# --- what is built


def test_every_graph_becomes_a_plan_and_a_line_of_the_record(fakes: Fakes, tmp_path: Path) -> None:
    trt, cuda = fakes
    output = tmp_path / "out"
    record, report = tiny.built(output, tiny.bundle())
    manifest = read_manifest(tiny.bundle())
    assert trt.built == list(tiny.GRAPHS) == list(record.plans)
    assert read_record(output) == record
    digests = {entry.name: entry.sha256 for entry in manifest.files}
    for name, plan in record.plans.items():
        path = output / plan.file
        assert (plan.bytes, plan.sha256) == (path.stat().st_size, file_sha256(path))
        assert plan.graph_sha256 == digests[name] and plan.weights and plan.scratch_bytes == trt.scratch
        assert all(digests[file] == digest for file, digest in plan.weights.items())
    assert (record.machine.tensorrt, record.machine.sm, record.machine.device) == ("10.3.0", "87", "Orin")
    assert (record.machine.cuda, record.machine.driver, record.options) == ("12.6", "12.6", tiny.OPTIONS)
    io = {tensor.name: tensor for tensor in record.plans["target.body.onnx"].io}
    assert io["embeddings"].shape == (1, -1, 64) and io["past_key_0"].direction == "in"
    assert io["new_value_2"].dtype == "float32" and io["positions"].dtype == "int32"
    assert "Timing 3/3" in report.lines and report.lines[0] == "TensorRT 10.3.0"
    assert sorted(path.name for path in output.iterdir()) == sorted(
        [".lock", RECORD_NAME, "timing.cache", *(plan.file for plan in record.plans.values())]
    )
    assert set(cuda.held.values()) == {0}


def test_what_is_complete_is_kept(fakes: Fakes, tmp_path: Path) -> None:
    trt, _ = fakes
    first, _ = tiny.built(tmp_path, tiny.bundle())
    again, report = tiny.built(tmp_path, tiny.bundle())
    assert again == first and len(trt.built) == 4
    assert [line for line in report.lines if line.startswith("kept")] == [f"kept {name}" for name in tiny.GRAPHS]
    # A plan that is not whole is nobody's loss: no --rebuild is asked for.
    (tmp_path / "draft.body.plan").write_bytes(b"half")
    _, report = tiny.built(tmp_path, tiny.bundle())
    assert trt.built[4:] == ["draft.body.onnx"]
    assert "begun draft.body.onnx: draft.body.plan has 4 bytes" in "\n".join(report.lines)


def test_an_interrupted_build_goes_on_where_it_was(fakes: Fakes, tmp_path: Path) -> None:
    trt, cuda = fakes

    def interrupt() -> None:
        if trt.built:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    trt.during_build = interrupt
    with pytest.raises(KeyboardInterrupt):
        tiny.built(tmp_path, tiny.bundle())
    assert signal.getsignal(signal.SIGINT) is before
    assert trt.built == ["target.body.onnx"]
    (tmp_path / "target.head.plan.part").write_bytes(b"what a crash leaves")
    trt.during_build = lambda: None
    record, report = tiny.built(tmp_path, tiny.bundle())
    assert trt.built == list(tiny.GRAPHS) and len(record.plans) == 4
    assert "kept target.body.onnx" in report.lines
    assert not list(tmp_path.glob("*.part")) and set(cuda.held.values()) == {0}


@pytest.mark.parametrize(
    ("version", "facts", "words"),
    [
        ("10.7.0", {}, "built by TensorRT 10.3.0, and here is 10.7.0"),
        ("10.3.0", {"sm": "89", "name": "RTX"}, "built for SM 87 (Orin), and this GPU is SM 89 (RTX)"),
        ("10.3.0", {"multiprocessors": 16}, "8 multiprocessors, and this is Orin with 16"),
    ],
)
def test_engines_of_another_machine_are_refused_and_rebuilt_on_request(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, facts: dict[str, str], words: str
) -> None:
    first, _ = tiny.built(tmp_path, tiny.bundle())
    for trt, _ in installed(monkeypatch, version, **facts):
        with pytest.raises(EngineMismatch) as problem:
            tiny.built(tmp_path, tiny.bundle())
        command = f"edge-runtime build {tiny.bundle()} --output {tmp_path} --rebuild"
        assert words in str(problem.value) and command in str(problem.value)
        assert read_record(tmp_path) == first and trt.built == []
        record, _ = tiny.built(tmp_path, tiny.bundle(), rebuild=True)
        assert trt.built == list(tiny.GRAPHS) and record.machine.tensorrt == version


def test_only_what_is_stale_is_rebuilt(fakes: Fakes, bundle: Path, tmp_path: Path) -> None:
    """Weights and a head that changed, as a new export brings them; then other profiles."""
    trt, _ = fakes
    output = tmp_path / "out"
    tiny.built(output, bundle)
    data = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    changed = bundle / "draft.head.onnx"
    import onnx

    model = onnx.load(changed, load_external_data=False)
    model.doc_string = "another"
    changed.write_bytes(model.SerializeToString())
    for entry in data["files"]:
        if entry["name"] == changed.name:
            entry |= {"bytes": changed.stat().st_size, "sha256": hashlib.sha256(changed.read_bytes()).hexdigest()}
    (bundle / "bundle.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(EngineMismatch, match=r"draft.head.onnx has changed since it was built; run .* --rebuild"):
        tiny.built(output, bundle)
    tiny.built(output, bundle, rebuild=True)
    assert trt.built[4:] == ["draft.head.onnx"]
    longer = replace(tiny.OPTIONS, draft_length=5)
    with pytest.raises(EngineMismatch, match="built for decode of 1 to 4 rows"):
        tiny.built(output, bundle, longer)
    record, _ = tiny.built(output, bundle, longer, rebuild=True)
    assert trt.built[5:] == list(tiny.GRAPHS) and record.options == longer


# --- what is refused


def test_a_graph_that_the_parser_does_not_take_is_told_with_its_node(fakes: Fakes, tmp_path: Path) -> None:
    trt, cuda = fakes
    trt.refuses = {"MatMul"}
    with pytest.raises(BundleError, match=r"TensorRT 10.3.0 does not take it: MatMul .*unsupported by this release"):
        tiny.built(tmp_path, tiny.bundle())
    assert not list(tmp_path.glob("*.p*")) and set(cuda.held.values()) == {0}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("create_network", "create_network: failed"),
        ("create_builder_config", "create_builder_config: failed"),
        ("set_shape", "set_shape: profile decode, embeddings"),
        ("add_optimization_profile", "add_optimization_profile: profile decode refused"),
        ("create_timing_cache", "create_timing_cache: failed"),
        ("set_timing_cache", "set_timing_cache: failed"),
        ("build_serialized_network", "no plan of target.body.onnx: no implementation of a node"),
        ("deserialize_cuda_engine", "target.body.plan.part refused: Serialization assertion failed"),
    ],
)
def test_every_call_that_says_no_is_an_error_with_its_name(
    fakes: Fakes, tmp_path: Path, call: str, words: str
) -> None:
    trt, cuda = fakes
    trt.failures = {call: 0}
    with pytest.raises(DeviceError) as problem:
        tiny.built(tmp_path, tiny.bundle())
    assert words in str(problem.value) and "\n" not in str(problem.value)
    assert read_record(tmp_path) is None and set(cuda.held.values()) == {0}
    trt.failures = {}
    assert len(tiny.built(tmp_path, tiny.bundle())[0].plans) == 4


def test_a_timing_cache_of_another_release_is_begun_anew(fakes: Fakes, tmp_path: Path) -> None:
    (tmp_path / "timing.cache").write_bytes(b"timed by 9.0")
    tiny.built(tmp_path, tiny.bundle())
    assert (tmp_path / "timing.cache").read_bytes().startswith(b"timed by 10.3.0")


def test_memory_is_looked_at_before_anything_is_built(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trt, _ = fakes
    monkeypatch.setattr(trt_build, "machine_memory", lambda: MachineMemory(8 << 30, 1 << 30))
    result = build(tiny.bundle(), "--output", tmp_path)
    assert result.exit_code == 2 and trt.built == []
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: building target.body.onnx may take") and "1.07 GB are available" in line
    monkeypatch.setattr(trt_build, "machine_memory", lambda: None)
    with pytest.raises(ConfigError, match="does not tell this machine's memory"):
        tiny.built(tmp_path, tiny.bundle())


def test_what_the_builder_asks_beyond_the_room_is_refused_to_it(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trt, cuda = fakes
    room = BuildRoom(4 << 30, None, 10 << 30, 0)
    monkeypatch.setattr(trt_build, "build_room", lambda request, cuda: room)
    trt.builder_wants = 5 << 30
    with pytest.raises(DeviceError, match=r"TensorRT asked for 5.37 GB beside 0 MB, and 4.29 GB are its cap; out of"):
        tiny.built(tmp_path, tiny.bundle())
    trt.builder_wants = 1000
    cuda.failures = {"cudaMalloc": (0, "cudaErrorMemoryAllocation")}
    with pytest.raises(DeviceError, match="TensorRT asked for 0 MB"):
        tiny.built(tmp_path, tiny.bundle())


@pytest.mark.parametrize(
    ("version", "facts", "words"),
    [
        ("10.2.0.19", {}, "TensorRT 10.2.0.19 is here, and 10.3 is the oldest"),
        ("8.6.1", {}, "10.3 is the oldest that will do"),
        ("10.3.0", {"sm": "62", "name": "TX2"}, "TX2 is SM 62, and SM 75 is the oldest"),
        ("10.3.0", {"runtime": 13000}, "the driver knows CUDA 12.6, and cuda-python is of CUDA 13.0"),
        ("10.3.0", {"devices": 0}, "cudaErrorNoDevice (100)"),
    ],
)
def test_what_is_too_old_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, facts: dict[str, str], words: str
) -> None:
    for trt, _ in installed(monkeypatch, "10.3.0", **facts):
        trt.__version__ = version
        result = build(tiny.bundle(), "--output", tmp_path / "out")
        assert result.exit_code in (1, 2) and words in result.stderr and result.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_what_is_not_installed_is_told(fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, cuda = fakes
    cuda.no_driver = True
    result = build(tiny.bundle(), "--output", tmp_path / "out")
    assert result.exit_code == 1 and "cudaGetDeviceCount: not available: Failed to dlopen" in result.stderr
    cuda.no_driver = False
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    result = build(tiny.bundle(), "--output", tmp_path / "out")
    assert result.exit_code == 2 and "tensorrt is not installed: on a Jetson it comes with JetPack" in result.stderr
    for name in ("cuda", "cuda.bindings", "cuda.bindings.runtime", "cuda.cudart"):
        monkeypatch.setitem(sys.modules, name, None)
    result = build(tiny.bundle(), "--output", tmp_path / "out")
    assert result.exit_code == 2 and "cuda-python is not installed" in result.stderr
    assert "Traceback" not in result.output


def test_an_altered_bundle_is_not_built(fakes: Fakes, bundle: Path, tmp_path: Path) -> None:
    trt, _ = fakes
    weights = bundle / "target.weights"
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BundleError, match="sha256"):
        tiny.built(tmp_path / "out", bundle)
    assert trt.built == []


def test_one_build_at_a_time(fakes: Fakes, tmp_path: Path) -> None:
    trt, _ = fakes
    told: list[str] = []

    def second() -> None:
        trt.during_build = lambda: None
        with pytest.raises(ConfigError) as problem:
            tiny.built(tmp_path, tiny.bundle())
        told.append(str(problem.value))

    trt.during_build = second
    tiny.built(tmp_path, tiny.bundle())
    assert "another build writes there" in told[0]


# --- the command line


def test_the_command_says_what_it_found_and_built(fakes: Fakes, bundle: Path) -> None:
    trt, _ = fakes
    arguments = (bundle, "--draft-length", 3, "--chunk", 16, "--context", 96, "--workspace", 64)
    result = build(*arguments)
    assert result.exit_code == 0, result.output
    assert "TensorRT 10.3.0, CUDA 12.6 (driver: 12.6), Orin, SM 87, 8 multiprocessors" in result.stderr
    assert "target.body.onnx: not built; building" in result.stderr
    assert result.stdout.startswith(f"{bundle / 'engine'}: 4 engines")
    again = build(*arguments)
    assert again.exit_code == 0 and "target.body.plan: kept" in again.stderr and len(trt.built) == 4
    stale = build(*arguments[:-6], "--draft-length", 5)
    assert stale.exit_code == 2 and stale.stdout == "" and "--rebuild" in stale.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{none}"], "no bundle at"),
        (["{bundle}", "--draft-length", "64"], "--draft-length"),
        (["{bundle}", "--chunk", "0"], "--chunk"),
        (["{bundle}", "--context", "99999999999"], "--context"),
        (["{bundle}", "--workspace", "1"], "--workspace"),
        (["{bundle}", "--output", "/proc/x"], "--output"),
        (["{bundle}", "--output", ""], "it is empty"),
        ([""], "it is empty"),
        ([], "BUNDLE"),
    ],
)
def test_wrong_options_are_one_line(fakes: Fakes, tmp_path: Path, arguments: list[str], words: str) -> None:
    places = {"{none}": str(tmp_path / "none"), "{bundle}": str(tiny.bundle())}
    result = build(*[places.get(one, one) for one in arguments])
    assert result.exit_code == 2 and words in result.stderr and result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1 and fakes[0].built == []


# --- what is in the way


@pytest.mark.parametrize(
    ("name", "more"),
    [("engine.json", ["--rebuild"]), ("timing.cache", []), ("target.body.plan", []), ("engine.json.part", [])],
)
def test_a_directory_in_the_place_of_a_file_is_told_in_one_line(
    fakes: Fakes, tmp_path: Path, name: str, more: list[str]
) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    result = CliRunner().invoke(main, ["build", str(tiny.bundle()), "--output", str(tmp_path / "out"), *more])
    assert result.exit_code == 2, result.output
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith("error: ") and str(tmp_path / "out" / name) in said and "--output" in said


def test_a_full_disk_is_told_and_left_no_fuller(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left on device; make room") as problem:
        tiny.built(tmp_path / "out", tiny.bundle())
    assert "\n" not in str(problem.value) and not list((tmp_path / "out").glob("*.part"))


def test_a_record_cannot_have_a_file_elsewhere_removed(fakes: Fakes, tmp_path: Path) -> None:
    output, victim = tmp_path / "out", tmp_path / "victim"
    tiny.built(output, tiny.bundle())
    victim.write_text("mine")
    record = output / "engine.json"
    record.write_text(record.read_text().replace('"target.body.plan"', '"../victim"'))
    with pytest.raises(EngineMismatch, match="which no build writes"):
        tiny.built(output, tiny.bundle())
    tiny.built(output, tiny.bundle(), rebuild=True)
    assert victim.read_text() == "mine" and "victim" not in record.read_text()
