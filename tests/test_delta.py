"""The engine over delta graphs, apart from any graph: where its copies land, what it reads, and what it refuses.

That it is an engine at all is tried in ``conformance/``, over the same device of numpy.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_bundle
from fake_delta import LAYERS, fake_delta, fake_manifest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.bundle import EmbeddingTable, KvLayer, read_manifest
from edge_runtime.engines.delta_embedding import EmbeddingRows
from edge_runtime.engines.delta_executor import PARTS, Copy2d, Layout, own_layout, shared_layout
from edge_runtime.engines.opening import chosen_backend, open_engine
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import HeadRequest, Ids, StepInput
from edge_runtime.errors import BundleError, ConfigError, EngineError
from edge_runtime.loading import LoadSettings, load_bundle, load_of
from edge_runtime.needs import needs
from edge_runtime.testing import FakeModel

IDS: Ids = np.arange(64)
TEXT: Ids = np.array([3, 1, 4, 1, 5, 9, 2, 6])


def apply(copies: tuple[Copy2d, ...], source: np.ndarray, target: np.ndarray) -> None:
    for one in copies:
        for line in range(one.height):
            first, place = one.source + line * one.source_pitch, one.target + line * one.target_pitch
            target[place : place + one.width] = source[first : first + one.width]


def cache(layout: Layout, arena: np.ndarray, slot: int, i: int, part: str) -> np.ndarray:
    """[kv_heads, capacity, head_dim] float32, a view."""
    place = layout.caches[i]
    offset = layout.past(slot, i, part)  # type: ignore[arg-type]
    size = 4 * place.kv_heads * layout.capacity * place.head_dim
    return arena[offset : offset + size].view(np.float32).reshape(place.kv_heads, layout.capacity, place.head_dim)


# --- the layout

SHAPES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([1, 4, 64])), min_size=1, max_size=5)


@given(
    shapes=SHAPES, slots=st.integers(1, 3), capacity=st.integers(4, 9), rows=st.integers(1, 4),
    seed=st.integers(0, 1000), shared=st.booleans(),
)  # fmt: skip
def test_copies_land_where_they_belong_and_nowhere_else(
    shapes: list[tuple[int, int]], slots: int, capacity: int, rows: int, seed: int, shared: bool
) -> None:
    rng = np.random.default_rng(seed)
    layout = own_layout([KvLayer(heads, dim, None) for heads, dim in shapes], 4, slots, capacity)
    if shared:
        layout = shared_layout(layout, rng.permutation(len(shapes))[: 1 + seed % len(shapes)].tolist())
    arena = rng.integers(0, 256, layout.arena_bytes).astype(np.uint8)
    new = rng.integers(0, 256, layout.new_bytes(rows)).astype(np.uint8)
    count, slot, position = rng.integers(1, rows + 1), rng.integers(slots), rng.integers(capacity - rows + 1)
    wanted = arena.copy()
    for i, begins in enumerate(layout.new(rows)):
        place = layout.caches[i]
        for part, offset in zip(PARTS, begins, strict=True):
            assert offset % 256 == layout.past(int(slot), i, part) % 256 == 0
            made = new[offset : offset + 4 * place.kv_heads * rows * place.head_dim].view(np.float32)
            made = made.reshape(place.kv_heads, rows, place.head_dim)[:, :count]
            cache(layout, wanted, int(slot), i, part)[:, position : position + count] = made
    apply(layout.placed(layout.commit(rows, int(count)), int(slot), int(position)), new, arena)
    assert np.array_equal(arena, wanted)
    other, to = int(rng.integers(slots)), int(rng.integers(capacity - count + 1))
    for i in range(len(layout.caches)):
        for part in PARTS:
            held = cache(layout, arena, int(slot), i, part)[:, position : position + count].copy()
            cache(layout, wanted, other, i, part)[:, to : to + count] = held
    before = arena.copy()
    apply(layout.moved_rows((int(slot), int(position)), (other, to), int(count)), before, arena)
    assert np.array_equal(arena, wanted)


def test_a_commit_of_like_caches_is_one_copy() -> None:
    """Gemma 3's layers; and of two shapes, one copy for each of them, in whatever order they stand."""
    layers = [KvLayer(1, 256, 512)] * 5 + [KvLayer(1, 256, None)]
    layout = own_layout(layers, 2, 4, 2048)
    assert layout.commit(4, 3) == (Copy2d(0, 2048, 0, 2048 * 512, 3 * 512, 12),)
    assert len(layout.moved_rows((0, 0), (3, 0), 100)) == 1
    mixed = [KvLayer(2, 256, 512)] * 5 + [KvLayer(1, 512, None)]
    assert len(own_layout(mixed * 3, 2, 4, 2048).commit(4, 3)) == 2
    assert len(shared_layout(layout, [0, 1, 2]).commit(4, 3)) == 1


# --- the engine


def test_a_padded_row_is_never_written(tmp_path: Path) -> None:
    engine, device = fake_delta(tmp_path, capacity=8, deterministic=True)
    engine.forward(StepInput(0, TEXT[:3], 0, None))
    before = device.arena.copy()
    engine.forward(StepInput(0, TEXT[3:4], 3, HeadRequest(0, 1)))
    layout = device.layout
    for i in range(len(LAYERS)):
        for part in PARTS:
            written, held = cache(layout, device.arena, 0, i, part), cache(layout, before, 0, i, part)
            assert np.array_equal(written[:, 4:], held[:, 4:]) and not np.array_equal(written[:, 3], held[:, 3])
    # So the last place of a slot can be taken by a lone row.
    engine.forward(StepInput(0, TEXT[4:], 4, None))
    engine.forward(StepInput(0, TEXT[7:], 7, HeadRequest(0, 1)))
    assert np.array_equal(engine.logits(0), FakeModel().logits(FakeModel().digest(TEXT), IDS))


def test_a_path_is_moved_row_by_row(tmp_path: Path) -> None:
    engine, device = fake_delta(tmp_path, slots=2, keeps_hidden=True)
    engine.forward(StepInput(1, TEXT, 0, None))
    rows, before = engine.hidden_rows(1)[:8].copy(), device.arena.copy()
    engine.keep_path(1, 2, np.array([0, 2, 3, 5]))
    kept = [2, 4, 5, 7]
    for i in range(len(LAYERS)):
        for part in PARTS:
            found, held = cache(device.layout, device.arena, 1, i, part), cache(device.layout, before, 1, i, part)
            assert np.array_equal(found[:, 2:6], held[:, kept]) and np.array_equal(found[:, 6:], held[:, 6:])
    assert np.array_equal(engine.hidden_rows(1)[2:6], rows[kept])
    assert device.calls.count("copy") == 3, "what stays where it is costs nothing"


@pytest.mark.parametrize("calls", range(3))
def test_a_device_that_fails_is_an_engine_error_and_the_step_can_be_run_again(tmp_path: Path, calls: int) -> None:
    engine, device = fake_delta(tmp_path)
    engine.forward(StepInput(0, TEXT[:4], 0, None))
    device.fail_after = calls
    step = StepInput(0, TEXT[4:], 4, HeadRequest(0, 4))
    with pytest.raises(EngineError, match="told to fail"):
        engine.forward(step)
    if calls < 2:
        with pytest.raises(ValueError, match="head rows"):
            engine.head(HeadRequest(0, 1))
    engine.forward(step)
    assert np.array_equal(engine.logits(3), FakeModel().logits(FakeModel().digest(TEXT), IDS))


def test_what_shares_an_arena_leaves_it_to_its_owner(tmp_path: Path) -> None:
    engine, device = fake_delta(tmp_path, slots=2)
    device._layout = shared_layout(device.layout, range(len(LAYERS)))
    own, _ = fake_delta(tmp_path, slots=2)
    for one in (engine, own):
        one._layout = one.executor.layout
        one.copy_prefix(0, 1, 4)
        one.forget(0)
    assert device.calls == [] and own.executor.calls == ["copy", "clear"]  # type: ignore[attr-defined]


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine, device = fake_delta(tmp_path)
    engine.close()
    engine.close()
    assert device.closed == 1
    calls = (lambda: engine.forward(StepInput(0, TEXT, 0, None)), lambda: engine.forget(0), lambda: engine.logits(0))
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()


# --- the embedding


@pytest.mark.parametrize("scales_dtype", [None, "float32", "float16"])
def test_rows_are_read_dequantised_and_scaled(tmp_path: Path, scales_dtype: str | None) -> None:
    rng, rows, columns, block = np.random.default_rng(0), 20, 12, 4
    kinds = {"float32": "<f4", "float16": "<f2"}
    if scales_dtype is None:
        values = rng.standard_normal((rows, columns)).astype("<f2")
        (tmp_path / "t").write_bytes(b"ahead   " + values.tobytes())
        table = EmbeddingTable("t", 8, "float16", rows, columns, 3.0)
        wanted = values.astype(np.float32) * 3.0
    else:
        quants = rng.integers(-127, 128, (rows, columns)).astype("<i1")
        scales = rng.random((rows, columns // block)).astype(kinds[scales_dtype])
        (tmp_path / "t").write_bytes(b"ahead   " + quants.tobytes() + scales.tobytes())
        at = 8 + quants.nbytes
        table = EmbeddingTable("t", 8, "int8", rows, columns, 3.0, block, at, scales_dtype)  # type: ignore[arg-type]
        wanted = quants * np.repeat(scales.astype(np.float32), block, axis=1) * 3.0
    tokens, out = np.array([7, 0, 19, 7]), np.zeros((4, columns), np.float32)
    found = EmbeddingRows(tmp_path, table)
    found.read(tokens, out)
    assert np.allclose(out, wanted[tokens], rtol=1e-6) and found.rows == rows
    for wrong in (-1, rows):
        with pytest.raises(ValueError, match="outside the 20 rows"):
            found.read(np.array([wrong]), out[:1])


def test_a_table_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(10))
    for table in (
        EmbeddingTable("t", 0, "float16", 20, 12, 1.0),
        EmbeddingTable("none", 0, "float16", 20, 12, 1.0),
        EmbeddingTable("t", 0, "int8", 1, 10, 1.0),
    ):
        with pytest.raises(BundleError, match="embedding") as caught:
            EmbeddingRows(tmp_path, table)
        assert "\n" not in str(caught.value)


# --- which engine runs a bundle


def test_a_bundle_is_run_by_what_it_was_exported_for(tmp_path: Path) -> None:
    ours, theirs = read_manifest(tiny_bundle.bundle()), fake_manifest(tmp_path, FakeModel(), 8, 64)
    assert chosen_backend(ours, "target", "auto") == chosen_backend(ours, "target", "onnxruntime") == "onnxruntime"
    assert chosen_backend(theirs, "target", "auto") == "tensorrt"
    assert chosen_backend(theirs, "target", "reference") == "reference"
    for backend in ("tensorrt", "reference"):
        with pytest.raises(ConfigError, match=f"not for backend {backend}: export it again with engine: tensorrt"):
            chosen_backend(ours, "target", backend)
    for call in (
        lambda: chosen_backend(theirs, "target", "onnxruntime", str(tmp_path)),
        lambda: OrtEngine(tmp_path, theirs, "target", OrtSettings()),
        lambda: open_engine(tmp_path, theirs, "target", "onnxruntime", OrtSettings()),
    ):
        with pytest.raises(ConfigError, match="holds graphs for TensorRT: `edge-runtime build ") as caught:
            call()
        assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_settings_that_name_another_engine_are_refused_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="holds graphs for ONNX Runtime, not for backend reference"):
        load_bundle(tiny_bundle.bundle(), LoadSettings(backend="reference"))
    with pytest.raises(ConfigError, match="not for backend tensorrt"):
        load_of(read_manifest(tiny_bundle.bundle()), LoadSettings(backend="tensorrt"))


def test_a_plan_of_graphs_for_tensorrt_is_a_guess() -> None:
    manifest = read_manifest(tiny_bundle.bundle_without_draft())
    model = manifest.models["target"]
    built = replace(manifest, models={"target": replace(model, dialect="tensorrt", table=())})
    load = load_of(built, LoadSettings(context=64))
    assert load.device == "cuda"
    found = needs(built, load)
    stored = sum(one.stored for one in model.graphs if one.file in (model.screen.head if model.screen else model.head,
                 model.body, model.screen.readout if model.screen else model.readout))  # fmt: skip
    assert not found.exact and found.models[0].weights == stored
    on_cpu = needs(built, load_of(built, LoadSettings(context=64, backend="reference")))
    assert on_cpu.models[0].weights > stored and on_cpu.process < found.process
