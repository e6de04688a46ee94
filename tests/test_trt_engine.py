"""The TensorRT executor over fakes held to the real bindings' surface: it must decode as the reference does, tell every
failure by name, and leave nothing behind."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny_trt as tiny
from fake_cuda import FakeRuntime
from fake_tensorrt import FakeTensorRT, installed

from edge_runtime.bundle import read_manifest
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.engines import trt_build
from edge_runtime.engines.delta import DeltaEngine
from edge_runtime.engines.engine_record import EngineMismatch
from edge_runtime.engines.opening import Backend, BuiltEngines, GraphMode, open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine, HeadOutput, HeadRequest, Ids, StepInput
from edge_runtime.engines.trt import TrtExecutor
from edge_runtime.errors import ConfigError, DeviceError, OutOfBudget
from edge_runtime.loading import DrafterName, LoadSettings, load_bundle
from edge_runtime.resident import MachineMemory
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session

Fakes = tuple[FakeTensorRT, FakeRuntime]
SETTINGS = OrtSettings(capacity=tiny.CAPACITY, slots=2, max_rows=tiny.CHUNK, max_head_rows=tiny.K + 1, threads=1,
                       gpu_memory_bytes=1 << 30)  # fmt: skip
TEXT: Ids = (np.arange(40) * 37 % 400 + 20).astype(np.int64)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    yield from installed(monkeypatch)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, for all to read: plans of the fake are files."""
    place = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
        for _ in installed(patch):
            tiny.built(place, tiny.bundle())
    return place


def opened(
    engines: Path, graphs: GraphMode = "none", role: str = "target", target: Engine | None = None, **given: object
) -> DeltaEngine:
    settings = OrtSettings(**{name: getattr(SETTINGS, name) for name in SETTINGS.__slots__} | given)
    manifest = read_manifest(tiny.bundle())
    found = open_engine(tiny.bundle(), manifest, role, "tensorrt", settings, target, BuiltEngines(engines, graphs))
    assert isinstance(found, DeltaEngine)
    return found


def reference(role: str = "target") -> Engine:
    return open_engine(tiny.bundle(), read_manifest(tiny.bundle()), role, "reference", SETTINGS)


def executor_of(engine: DeltaEngine) -> TrtExecutor:
    assert isinstance(engine.executor, TrtExecutor)
    return engine.executor


def nothing_is_left(cuda: FakeRuntime) -> None:
    if any(cuda.held.values()):
        gc.collect()  # what an error's frames still hold, in a circle
    assert set(cuda.held.values()) == {0}, cuda.held


def everything(engine: Engine, say: Callable[[str, object], None]) -> None:
    """What an engine is asked in its life: chunks, verifications, rollbacks, two slots, parts of a head."""

    def told(what: str, head: HeadOutput | None) -> None:
        assert head is not None
        for name in ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"):
            say(f"{what}.{name}", getattr(head, name))

    first = engine.forward(StepInput(0, TEXT[:16], 0, None))
    say("prefill", first.hidden)
    step = engine.forward(StepInput(0, TEXT[16:19], 16, HeadRequest(2, 3, 0.7, TEXT[:1])))
    told("after the prompt", step.head)
    say("row", engine.logits(0))
    engine.forward(StepInput(1, TEXT[5:15], 0, None))
    verified = engine.forward(StepInput(0, TEXT[19:23], 19, HeadRequest(0, 4)))
    told("verified", verified.head)
    told("part", engine.head(HeadRequest(1, 3, 2.0)))
    say("a row of the part", engine.logits(1))
    again = engine.forward(StepInput(0, TEXT[30:32], 20, HeadRequest(0, 2)))
    told("rolled back", again.head)
    engine.copy_prefix(0, 1, 18)
    told("copied", engine.forward(StepInput(1, TEXT[18:19], 18, HeadRequest(0, 1))).head)
    engine.forward(StepInput(0, TEXT[:4], 22, None))
    engine.keep_path(0, 22, np.array([0, 2, 3]))
    told("moved", engine.forward(StepInput(0, TEXT[4:5], 25, HeadRequest(0, 1))).head)
    engine.forget(1)
    told("forgotten", engine.forward(StepInput(1, TEXT[:3], 0, HeadRequest(2, 3))).head)
    for k in range(3):
        told(f"again {k}", engine.forward(StepInput(0, TEXT[k : k + 4], 26 + k, HeadRequest(0, 4))).head)


def answers(engine: Engine) -> dict[str, object]:
    found: dict[str, object] = {}
    everything(engine, lambda what, value: found.__setitem__(what, None if value is None else np.array(value)))
    return found


@pytest.mark.parametrize("graphs", ["none", "captured"])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_it_says_what_the_reference_says(fakes: Fakes, engines: Path, graphs: GraphMode, role: str) -> None:
    target = opened(engines, graphs)
    engine = target if role == "target" else opened(engines, graphs, role, target)
    wanted, found = answers(reference(role)), answers(engine)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert np.array_equal(found[name], value), name  # type: ignore[arg-type]
    assert executor_of(engine).graph_problem is None
    engine.close()
    target.close()
    target.close()
    del engine, target
    nothing_is_left(fakes[1])


def test_four_bits_and_half_caches_run_as_the_reference_does(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundle = tiny.bundle("int4", draft_layers=1)
    monkeypatch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
    tiny.built(tmp_path, bundle)
    manifest = read_manifest(bundle)
    engine = open_engine(bundle, manifest, "target", "tensorrt", SETTINGS, built=BuiltEngines(tmp_path))
    other = open_engine(bundle, manifest, "target", "reference", SETTINGS)
    wanted, found = answers(other), answers(engine)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)  # type: ignore[arg-type]


def test_graphs_are_captured_once_for_each_shape_and_slot(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    engine = opened(engines, "captured")
    for turn in range(3):
        for slot in (0, 1):
            engine.forward(StepInput(slot, TEXT[:2], turn, HeadRequest(turn % 2, 2)))
    # Two slots of one body; a head for one row and for two, wherever they begin.
    assert len(cuda.executables) == 4 and cuda.calls.count("cudaGraphLaunch") == 8
    assert len(cuda.graphs) == 0
    engine.close()
    assert not cuda.executables


def test_what_cannot_be_captured_runs_without(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    engine = opened(engines, "captured")
    cuda.failures = {"cudaGraphInstantiate": (0, "cudaErrorInvalidValue")}
    wanted, found = answers(reference()), answers(engine)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)  # type: ignore[arg-type]
    assert "cudaGraphInstantiate: cudaErrorInvalidValue (1)" in (executor_of(engine).graph_problem or "")
    assert not cuda.executables and not cuda.graphs


def test_graphs_are_captured_anew_where_the_scratch_moves(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    engine = opened(engines, "captured")
    step = StepInput(0, TEXT[:2], 0, HeadRequest(0, 2))
    before = [engine.forward(step).hidden.copy() for _ in range(2)]
    executor_of(engine).device._grow(1 << 16)
    after = [engine.forward(step).hidden.copy() for _ in range(2)]
    assert all(np.array_equal(one, before[0]) for one in before + after)
    assert len(cuda.executables) == 2 and executor_of(engine).graph_problem is None


def test_draft_and_target_share_stream_and_scratch(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    target = opened(engines)
    before = len(cuda.device)
    draft = opened(engines, role="draft", target=target)
    device = executor_of(target).device
    assert executor_of(draft).device is device and len(cuda.streams) == 1
    # Two plans and one block for its caches and buffers; no second scratch.
    assert len(cuda.device) == before + 3
    assert device.held_bytes == sum(block.size for block in cuda.device.values())
    draft.close()
    assert target.forward(StepInput(0, TEXT[:2], 0, None)).hidden.any()
    target.close()
    del draft, target, device
    nothing_is_left(cuda)


def test_a_plan_may_want_no_scratch(fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trt, cuda = fakes
    trt.scratch = 0
    monkeypatch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
    tiny.built(tmp_path, tiny.bundle())
    engine = opened(tmp_path)
    assert engine.forward(StepInput(0, TEXT[:2], 0, HeadRequest(0, 2))).hidden.any()
    engine.close()
    del engine
    nothing_is_left(cuda)


def test_buffers_begin_where_tensorrt_wants_them(fakes: Fakes, engines: Path) -> None:
    executor = executor_of(opened(engines))
    for rows in (1, 3, 7):
        for name, address in executor._bind_body(1, rows).addresses:
            assert address % 256 == 0, (name, rows)


def test_a_host_array_outlives_its_engine(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    engine = opened(engines)
    hidden = engine.forward(StepInput(0, TEXT[:2], 0, None)).hidden
    seen = hidden.copy()
    engine.close()
    del engine
    gc.collect()
    assert np.array_equal(hidden, seen) and len(cuda.pinned) == 1
    del hidden
    nothing_is_left(cuda)


# --- a whole bundle


def test_a_loaded_bundle_writes_the_same_text_with_drafts(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes

    bundle = tiny.bundle()
    plain, _ = written(bundle, engines, "reference", "none", 0)
    assert len(plain) == 24
    assert written(bundle, engines, "tensorrt", "none", 0) == (plain, 0)
    # And as many drafts are accepted: a broken draft does not show in the text.
    drafted = written(bundle, engines, "auto", "draft", tiny.K)
    assert drafted == (plain, written(bundle, engines, "reference", "draft", tiny.K)[1])
    nothing_is_left(cuda)


def test_a_self_draft_writes_into_its_targets_caches(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, cuda = fakes
    bundle = tiny.bundle("fp32", 0, 2)
    monkeypatch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
    record, _ = tiny.built(tmp_path, bundle)
    assert [profile.name for profile in record.plans["self.body.onnx"].profiles] == ["decode"]
    wanted = written(bundle, tmp_path, "reference", "self", tiny.K)
    assert written(bundle, tmp_path, "tensorrt", "self", tiny.K) == wanted and wanted[1] > 0
    nothing_is_left(cuda)


def written(bundle: Path, engines: Path, backend: Backend, drafter: DrafterName, k: int) -> tuple[list[int], int]:
    """A greedy text of a loaded bundle, and how many drafts were accepted."""
    given = LoadSettings(context=tiny.CAPACITY, max_draft_tokens=tiny.K, drafter=drafter, backend=backend,
                         engines=engines, threads=1)  # fmt: skip
    loaded = load_bundle(bundle, given)
    try:
        return text_of(loaded.decoder(drafter, FixedLength(k)))
    finally:
        loaded.close()


def text_of(decoder: Decoder) -> tuple[list[int], int]:
    session = Session(decoder.target.info, TEXT[:20], SamplingParams(temperature=0.0), max_tokens=24)
    tokens: list[int] = []
    accepted = 0
    while session.finish_reason is None:
        step = decoder.step(session)
        tokens += step.tokens
        accepted += step.accepted
    return tokens, accepted


# --- what fails

_AT_OPENING = ["deserialize_cuda_engine"]
_AT_RUNNING = ["create_execution_context", "set_optimization_profile_async", "set_input_shape", "set_tensor_address",
               "infer_shapes", "execute_async_v3"]  # fmt: skip


@pytest.mark.parametrize("call", _AT_OPENING + _AT_RUNNING)
@pytest.mark.parametrize("after", [0, 1])
def test_every_no_of_tensorrt_is_an_error_with_its_name(fakes: Fakes, engines: Path, call: str, after: int) -> None:
    trt, cuda = fakes
    trt.failures = {call: after}
    with pytest.raises(DeviceError) as problem:
        a_few_steps(engines)
    assert problem.value.call == call and str(problem.value).startswith(f"{call}: ") and problem.value.code is None
    del problem
    nothing_is_left(cuda)


def a_few_steps(engines: Path) -> None:
    """In both profiles, with heads."""
    engine = opened(engines)
    try:
        engine.forward(StepInput(0, TEXT[:6], 0, None))
        engine.forward(StepInput(0, TEXT[:2], 6, HeadRequest(0, 2)))
        engine.forward(StepInput(0, TEXT[:3], 8, HeadRequest(0, 2)))
    finally:
        engine.close()


_CUDA = ["cudaMalloc", "cudaMemsetAsync", "cudaHostAlloc", "cudaEventCreateWithFlags", "cudaStreamCreateWithFlags",
         "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaEventRecord", "cudaEventSynchronize",
         "cudaStreamSynchronize"]  # fmt: skip


@pytest.mark.parametrize("call", _CUDA)
@pytest.mark.parametrize("after", [0, 2])
def test_every_status_of_cuda_is_an_error_with_name_and_number(
    fakes: Fakes, engines: Path, call: str, after: int
) -> None:
    _, cuda = fakes
    cuda.failures = {call: (after, "cudaErrorLaunchFailure")}
    failed: list[tuple[str, str, int | None]] = []
    engine: DeltaEngine | None = None
    try:
        engine = opened(engines)
        for position in range(0, 12, 2):
            engine.forward(StepInput(0, TEXT[:2], position, HeadRequest(0, 2)))
    except DeviceError as problem:
        failed.append((problem.call, problem.name, problem.code))
    cuda.failures = {}
    if engine is not None:
        engine.close()
    # Some of them are asked for fewer times than that; memory may be TensorRT's own request, which then says no.
    assert failed or cuda.calls.count(call) <= after
    if call != "cudaMalloc":
        assert all(told == (call, "cudaErrorLaunchFailure", 719) for told in failed)
    del engine
    nothing_is_left(cuda)


def test_a_failed_step_does_not_spoil_the_next(fakes: Fakes, engines: Path) -> None:
    trt, _ = fakes
    engine, other = opened(engines), reference()
    trt.failures = {"execute_async_v3": 0}
    with pytest.raises(DeviceError, match="execute_async_v3: failed: a kernel failed"):
        engine.forward(StepInput(0, TEXT[:6], 0, None))
    trt.failures = {}
    wanted, found = answers(other), answers(engine)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)  # type: ignore[arg-type]


def test_the_cap_holds_for_plans_buffers_and_scratch(fakes: Fakes, engines: Path) -> None:
    _, cuda = fakes
    for cap, error, words in (
        (5_000, DeviceError, "TensorRT asked for 0 MB beside 0 MB"),
        (12_000, OutOfBudget, "scratch takes"),
        (40_000, OutOfBudget, "the target model's caches and buffers takes"),
    ):
        with pytest.raises(error, match=words) as problem:
            opened(engines, gpu_memory_bytes=cap)
        assert "\n" not in str(problem.value)
        del problem
        nothing_is_left(cuda)


def test_engines_that_do_not_fit_are_told_with_what_to_run(
    fakes: Fakes, engines: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = f"no engines are built; on the board run edge-runtime build {tiny.bundle()}"
    with pytest.raises(EngineMismatch, match=told):
        opened(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"context of 97 tokens: these engines hold 96; run .* --context 97"):
        opened(engines, capacity=97)
    with pytest.raises(ConfigError, match=r"7 draft tokens: these engines verify up to 3; run .* --draft-length 7"):
        opened(engines, max_head_rows=8)
    for _ in installed(monkeypatch, "10.7.0"):
        with pytest.raises(EngineMismatch, match=r"built by TensorRT 10.3.0, and here is 10.7.0; run .* --rebuild"):
            opened(engines)
    for trt, _ in installed(monkeypatch):
        engines = Path(shutil.copytree(engines, tmp_path / "copy"))
        plan = engines / "target.head.plan"
        data = plan.read_bytes()
        plan.write_bytes(data[:-1] + b" ")
        with pytest.raises(EngineMismatch, match="its sha256 differs"):
            opened(engines)
        plan.unlink()
        with pytest.raises(EngineMismatch, match=r"target.head.plan is missing"):
            opened(engines)
        assert "deserialize_cuda_engine" not in trt.calls
