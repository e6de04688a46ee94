"""What of engines is decided without TensorRT: which shapes, whether a record still holds, whether a build fits."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_trt as tiny

from edge_runtime.bundle import KvLayer, Manifest, Tensor, read_manifest
from edge_runtime.engines.build_memory import (
    PROCESS_BYTES,
    WEIGHTS_FACTOR,
    BuildNeeds,
    BuildRoom,
    allocation_cap,
    build_needs,
    refuse_beyond_room,
)
from edge_runtime.engines.engine_record import (
    RECORD_NAME,
    RECORD_VERSION,
    BuildOptions,
    EngineMismatch,
    EngineRecord,
    EngineTensor,
    MachineFacts,
    PlanRecord,
    Shapes,
    Wanted,
    foreign,
    read_record,
    why_not,
    with_plan,
    without_plans,
    write_record,
)
from edge_runtime.engines.engine_shapes import capacity_of, io_problem, profiles, roles_of, wanted
from edge_runtime.errors import BundleError, OutOfBudget

ORIN = MachineFacts("10.3.0", "87", "Orin", 8, "12.6", "12.6")
OPTIONS = BuildOptions(draft_length=7, chunk=64, context=2048, workspace_bytes=1 << 30)


def manifest() -> Manifest:
    return read_manifest(tiny.bundle())


def wanted_body(options: BuildOptions = OPTIONS) -> Wanted:
    return next(one for one in wanted(manifest(), options) if one.graph == "target.body.onnx")


def record(place: Path, of: Wanted) -> EngineRecord:
    (place / of.file).write_bytes(b"12345")
    plan = PlanRecord(of.graph, of.graph_sha256, of.weights, of.file, 5, "", (), of.profiles, 10, 1.5)
    return EngineRecord(RECORD_VERSION, "tiny", "edge-runtime 0", ORIN, OPTIONS, {of.graph: plan})


# --- shapes


def test_a_body_is_built_for_verifications_and_for_chunks() -> None:
    model = manifest().model("target")
    decode, prefill = profiles(model, "body", OPTIONS, "target")
    assert (decode.name, decode.least_rows, decode.most_rows) == ("decode", 1, 8)
    assert (prefill.name, prefill.least_rows, prefill.most_rows) == ("prefill", 9, 64)
    assert decode.inputs["embeddings"] == Shapes((1, 1, 64), (1, 8, 64), (1, 8, 64))
    assert prefill.inputs["positions"] == Shapes((9,), (64,), (64,))
    # One capacity for the life of the plan, and never more than the bundle's tables hold.
    assert decode.inputs["past_key_0"] == Shapes(*[(1, 2, tiny.CONTEXT, 32)] * 3)
    (head,) = profiles(model, "head", OPTIONS, "target")
    assert head.inputs["hidden"] == Shapes((1, 64), (8, 64), (8, 64)) and "inverse_temperature" not in head.inputs


def test_every_number_of_rows_has_one_profile() -> None:
    model = manifest().model("target")
    for k, chunk in ((0, 1), (0, 64), (7, 8), (7, 4), (63, 64), (3, 100)):
        found = profiles(model, "body", replace(OPTIONS, draft_length=k, chunk=chunk), "target")
        rows = [n for one in found for n in range(one.least_rows, one.most_rows + 1)]
        assert rows == list(range(1, chunk + 1)), (k, chunk)


def test_a_drafter_is_tuned_for_one_token_after_the_other() -> None:
    model = manifest().model("draft")
    decode, prefill = profiles(model, "body", OPTIONS, "draft")
    assert decode.inputs["positions"].usual == (1,) and prefill.most_rows == 64
    alone = profiles(replace(model, shares=(0,), layers=model.layers[:1]), "body", OPTIONS, "draft")
    assert [one.name for one in alone] == ["decode"]  # nobody feeds it chunks
    (head,) = profiles(replace(model, fan_out=9), "head", OPTIONS, "heads")
    assert (head.least_rows, head.most_rows) == (1, 9)


def test_sizes_that_no_plan_knows_are_refused() -> None:
    of = manifest()
    model = of.model("target")
    odd = Tensor("body", "in", "positions", "int32", ("lines",))
    strange = replace(model, io=tuple(odd if line.name == "positions" else line for line in model.io))
    with pytest.raises(BundleError, match="positions has the size 'lines'"):
        wanted(replace(of, models={"target": strange}), OPTIONS)
    with pytest.raises(BundleError, match="engine: tensorrt"):
        roles_of(replace(of, models={"target": replace(model, dialect="ort")}))


def test_inputs_and_outputs_are_those_of_the_manifest() -> None:
    model = manifest().model("target")
    lines = [line for line in model.io if line.graph == "head"]
    shapes = [tuple(-1 if isinstance(size, str) else size for size in line.shape) for line in lines]
    pairs = list(zip(lines, shapes, strict=True))
    found = [EngineTensor(line.name, line.direction, line.dtype, shape) for line, shape in pairs]
    assert io_problem(model, "head", found) is None
    first = found[0]
    rest = found[1:]
    for other, words in (
        ([], "lacks hidden"),
        ([first, EngineTensor("odd", "in", "int32", ())], "has an unlisted odd"),
        ([replace(first, direction="out")], "hidden goes out"),
        ([replace(first, dtype="float16")], "hidden is float16, and the manifest says float32"),
        ([replace(first, shape=(-1, 65))], "hidden is -1 x 65, and the manifest says rows x 64"),
        ([replace(first, shape=(64,))], "hidden is 64"),
    ):
        assert words in (io_problem(model, "head", [*other, *rest]) or "")
    fixed = EngineTensor("past_key_0", "in", "float16", (1, 2, 512, 32))
    (head,) = profiles(model, "head", OPTIONS, "target")
    assert capacity_of([head], [fixed]) == 512 and capacity_of([head], []) is None


# --- the record


def test_a_record_reads_as_it_was_written(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    wrote = record(tmp_path, wanted_body())
    write_record(tmp_path, wrote)
    assert read_record(tmp_path) == wrote and sorted(path.name for path in tmp_path.iterdir()) == [
        RECORD_NAME, "target.body.plan",
    ]  # fmt: skip
    assert without_plans(wrote, {"target.body.onnx": ""}).plans == {}
    assert list(with_plan(without_plans(wrote, {"target.body.onnx": ""}), wrote.plans["target.body.onnx"]).plans)


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "cannot be read"), ("{}", "schema version None"), ('{"schema_version": 2}', "schema version 2"),
     ('{"schema_version": true}', "True"), ("[1]", "None"), ('{"schema_version": 1, "x": 2}', "unknown key 'x'")],
)  # fmt: skip
def test_a_record_of_something_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / RECORD_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(EngineMismatch, match=words) as problem:
        read_record(tmp_path)
    assert "\n" not in str(problem.value)


def test_a_pipe_for_a_record_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RECORD_NAME)
    with pytest.raises(EngineMismatch, match="it is no ordinary file"):
        read_record(tmp_path)


_PLAN = ("plans", "target.body.onnx")
_SENSELESS: list[tuple[tuple[str, ...], object]] = [
    ((*_PLAN, "file"), "../../victim"),
    ((*_PLAN, "file"), "/etc/passwd"),
    ((*_PLAN, "graph"), "target.head.onnx"),
    ((*_PLAN, "bytes"), -1),
    ((*_PLAN, "bytes"), 10**40),
    ((*_PLAN, "bytes"), "12"),
    ((*_PLAN, "scratch_bytes"), -1),
    ((*_PLAN, "scratch_bytes"), 10**40),
    ((*_PLAN, "build_s"), float("nan")),
    ((*_PLAN, "build_s"), float("inf")),
    ((*_PLAN, "profiles"), {}),
    ((*_PLAN, "profiles"), [7]),
    ((*_PLAN, "io"), [{"name": 1}]),
    (("options", "draft_length"), -1),
    (("options", "draft_length"), 10**40),
    (("options", "chunk"), 0),
    (("options", "context"), 10**40),
    (("options", "workspace_bytes"), -1),
    (("machine", "device"), "Orin\n\x1b[31m"),
    (("machine", "sm"), "8" * 1000),
    (("plans",), []),
    (("plans",), None),
]


@pytest.mark.parametrize(("place", "value"), _SENSELESS)
def test_figures_and_names_that_no_build_writes_are_refused_in_one_line(
    tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    write_record(tmp_path, record(tmp_path, wanted_body()))
    path = tmp_path / RECORD_NAME
    data = inner = json.loads(path.read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(data))
    with pytest.raises(EngineMismatch) as problem:
        read_record(tmp_path)
    told = str(problem.value)
    assert str(path) in told and "--rebuild" in told and told.isprintable() and len(told) < len(str(path)) + 300


def test_a_record_under_a_name_that_is_no_name(tmp_path: Path) -> None:
    write_record(tmp_path, record(tmp_path, wanted_body()))
    path = tmp_path / RECORD_NAME
    path.write_text(path.read_text().replace("target.body.", "../target.body."))
    with pytest.raises(EngineMismatch, match="which no build writes"):
        read_record(tmp_path)


@pytest.mark.parametrize("kind", ["directory", "bytes", "deep", "digits"])
def test_a_record_that_is_no_text_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / RECORD_NAME
    if kind == "directory":
        path.mkdir()
    else:
        path.write_bytes({"bytes": b"\xff\xfe", "deep": b"[" * 100_000, "digits": b"1" * 5000}[kind])
    with pytest.raises(EngineMismatch) as problem:
        read_record(tmp_path)
    assert "--rebuild" in str(problem.value) and str(problem.value).isprintable()


def test_what_is_stale_is_told_in_words(tmp_path: Path) -> None:
    of = wanted_body()
    known = record(tmp_path, of)

    def reason(wanted_now: Wanted = of, machine: MachineFacts = ORIN, now: EngineRecord = known) -> str:
        return why_not(now, tmp_path, machine, wanted_now) or ""

    assert reason() == ""
    # A newer driver runs what was built under an older one.
    assert reason(machine=replace(ORIN, driver="12.8", cuda="12.8")) == ""
    assert reason(machine=replace(ORIN, tensorrt="10.7.0")) == "built by TensorRT 10.3.0, and here is 10.7.0"
    assert "built for SM 87 (Orin), and this GPU is SM 90" in reason(machine=replace(ORIN, sm="90", device="H200"))
    assert "8 multiprocessors, and this is Orin with 16" in reason(machine=replace(ORIN, multiprocessors=16))
    assert reason(replace(of, graph_sha256="0")) == "target.body.onnx has changed since it was built"
    assert "the weights in target.weights have changed" in reason(replace(of, weights={"target.weights": "0"}))
    longer = wanted_body(replace(OPTIONS, draft_length=9))
    assert reason(longer) == (
        "built for decode of 1 to 8 rows and prefill of 9 to 64 rows, 128 tokens of past, and decode of 1 to 10 rows "
        "and prefill of 11 to 64 rows, 128 tokens of past are wanted"
    )
    assert reason(replace(of, graph="other.onnx")) == "not built"
    (tmp_path / of.file).write_bytes(b"123")
    assert reason() == "target.body.plan has 3 bytes, and 5 were written"
    (tmp_path / of.file).unlink()
    assert reason() == "target.body.plan is missing"
    assert foreign(known, ORIN) is None


# --- memory


def test_a_build_that_does_not_fit_is_refused_with_its_figures() -> None:
    needs = BuildNeeds("target.body.onnx", 1_000_000_000, 500_000_000)
    assert needs.shared == WEIGHTS_FACTOR * 1_000_000_000 + PROCESS_BYTES + 500_000_000
    board = BuildRoom(host=needs.shared + 800_000_000, device=None, disk=10**12)
    refuse_beyond_room(needs, board)
    assert allocation_cap(board) == needs.shared
    with pytest.raises(OutOfBudget) as problem:
        refuse_beyond_room(needs, replace(board, host=board.host - 1))
    told = str(problem.value)
    for words in ("4.50 GB", "3 x 1.00 GB of weights", "500 MB of workspace", "5.30 GB are available",
                  "800 MB of these", "--workspace 476"):  # fmt: skip
        assert words in told, told
    with pytest.raises(OutOfBudget, match="take a smaller model"):
        refuse_beyond_room(needs, replace(board, host=2_000_000_000))


def test_a_gpu_with_its_own_memory_is_asked_apart() -> None:
    needs = BuildNeeds("target.body.onnx", 1_000_000_000, 500_000_000)
    room = BuildRoom(host=needs.host + 800_000_000, device=needs.device, disk=needs.plan)
    refuse_beyond_room(needs, room)
    assert allocation_cap(room) == needs.device
    with pytest.raises(OutOfBudget, match=r"1.50 GB of the GPU's memory"):
        refuse_beyond_room(needs, replace(room, device=needs.device - 1))
    with pytest.raises(OutOfBudget, match="of the disk"):
        refuse_beyond_room(needs, replace(room, disk=needs.plan - 1))
    with pytest.raises(OutOfBudget, match="may be taken"):
        refuse_beyond_room(needs, replace(room, host=room.host - 1))


def test_needs_come_from_what_the_graph_stores() -> None:
    of = manifest()
    body = of.model("target").graphs[0]
    assert build_needs(of, body.file, 5).weights == body.stored > 0
    plain = replace(of.model("target"), graphs=(), layers=(KvLayer(1, 1, None),))
    files = {entry.name: entry.bytes for entry in of.files}
    guessed = build_needs(replace(of, models={"target": plain}), plain.body, 5)
    assert guessed.weights == sum(files[name] for name in plain.weights)
