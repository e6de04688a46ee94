"""ONNX Runtime on CUDA as far as it is ours: what is asked for, bound and copied, on a device that is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from fake_ort_cuda import CPU, CUDA, FakeCuda
from tiny_models import TinyConfig, export_tiny, save_tiny

from edge_runtime.bundle import Manifest, read_manifest
from edge_runtime.engines import ort_memory
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.ort_cuda import DeviceCopies, loaded_runtime
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.errors import BundleError, ConfigError, EngineError

SETTINGS = OrtSettings(capacity=64, slots=2, max_rows=16, max_head_rows=4, threads=1, device="cuda")
CONFIG = TinyConfig(layers=6)
Bundle = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("cuda")
    return export_tiny(place / "b", save_tiny(place / "hf", CONFIG), precision="fp16")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    monkeypatch.setattr(ort_memory, "device_copies", lambda: DeviceCopies(fake))
    monkeypatch.delenv("ORT_FPA_INTB_GEMM", raising=False)
    # Set by the engine, for the process: undone behind the test.
    monkeypatch.setenv("ORT_FPA_INTB_GEMM", "1")
    return fake


def engine(bundle: Bundle, settings: OrtSettings = SETTINGS) -> OrtEngine:
    return OrtEngine(*bundle, "target", settings)


def ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, CONFIG.vocab, count).astype(np.int64)


def walk(one: OrtEngine) -> list[np.ndarray]:
    """A prompt, a copied prefix, a verification, a rejection: all that came out."""
    text, found = ids(24), []
    one.forward(StepInput(0, text[:12], 0, None))
    one.copy_prefix(0, 1, 10)
    for slot, position, count in ((1, 10, 4), (0, 12, 1), (1, 11, 3), (1, 14, 1)):
        request = HeadRequest(0, count, 0.7, text[:count])
        output = one.forward(StepInput(slot, text[position : position + count], position, request))
        assert output.head is not None and output.head.gathered is not None
        head = output.head
        found += [output.hidden.copy(), head.argmax.copy(), head.candidate_logits.copy(), head.logsumexp.copy()]
        found += [output.head.gathered.copy(), one.logits(count - 1).copy()]
    return found


@pytest.mark.parametrize("graphs", [False, True])
def test_what_comes_out_is_what_the_graphs_say(
    bundle: Bundle, cuda: FakeCuda, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = walk(engine(bundle, replace(SETTINGS, cuda_graph=graphs)))
    monkeypatch.setitem(sys.modules, "onnxruntime", onnxruntime)
    wanted = walk(engine(bundle, replace(SETTINGS, device="cpu")))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_only_what_is_wanted_crosses_to_the_host(bundle: Bundle, cuda: FakeCuda) -> None:
    one = engine(bundle)
    one.forward(StepInput(0, ids(12), 0, None))
    cuda.to_host.clear()
    one.forward(StepInput(0, ids(3), 12, HeadRequest(0, 3)))
    row = 4 * CONFIG.vocab
    assert cuda.to_host == [3 * 4 * one.info.hidden_size], "hidden rows; the readout writes to the host by itself"
    one.logits(2)
    assert cuda.to_host[1:] == [row], "a single row of logits"
    assert cuda.whole_copies == 0
    small = {"argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"}
    assert {name for _, name, device in cuda.bound if device == "cpu"} == small | {"total_sequence_length"}


def test_a_prefix_is_copied_on_the_device_and_no_more_of_it(bundle: Bundle, cuda: FakeCuda) -> None:
    one = engine(bundle)
    one.forward(StepInput(0, ids(12), 0, None))
    cuda.to_host.clear()
    one.copy_prefix(0, 1, 5)
    assert cuda.on_device == [(5 * CONFIG.head_dim * 2, CONFIG.kv_heads)] * (2 * CONFIG.layers)
    assert cuda.to_host == [] and cuda.whole_copies == 0


def test_without_the_cuda_runtime_all_is_copied_and_nothing_is_wrong(
    bundle: Bundle, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = walk(engine(bundle))
    monkeypatch.setattr(ort_memory, "device_copies", lambda: None)
    found = walk(engine(bundle))
    assert cuda.whole_copies > 0
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_inputs_keep_their_addresses(bundle: Bundle, cuda: FakeCuda) -> None:
    """A captured graph reads where it was captured; and binding anew each step would allocate."""
    one = engine(bundle)
    for position in range(3):
        one.forward(StepInput(0, ids(1, position), position, HeadRequest(0, 1)))
        if not position:
            cuda.bound.clear()
    assert cuda.bound == []


def test_provider_options_come_from_the_settings(bundle: Bundle, cuda: FakeCuda) -> None:
    engine(bundle, replace(SETTINGS, gpu_memory_bytes=123 << 20, cuda_graph=True, gpu_stream=0xBEEF))
    for one in cuda.sessions:
        wanted = {"arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": str(123 << 20),
                  "user_compute_stream": str(0xBEEF)}  # fmt: skip
        # Capturing a readout, which writes to the host, cannot work.
        wanted |= {} if "readout" in one.name else {"enable_cuda_graph": "1"}
        assert (one.provider, one.options) == (CUDA, wanted)
        assert one.entries["ep.cuda.fpa_intb_gemm"] == "1"
        assert one.entries["session.use_device_allocator_for_initializers"] == "1"
        assert one.entries["session.disable_cpu_ep_fallback"] == "1"
    cuda.sessions.clear()
    engine(bundle, replace(SETTINGS, cpu_fallback=True))
    for one in cuda.sessions:
        assert one.options == {"arena_extend_strategy": "kSameAsRequested"}
        assert "session.disable_cpu_ep_fallback" not in one.entries


def test_each_shape_and_place_has_a_graph_of_its_own(bundle: Bundle, cuda: FakeCuda) -> None:
    one = engine(bundle, replace(SETTINGS, cuda_graph=True))
    other = engine(bundle, replace(SETTINGS, cuda_graph=True))
    seen: dict[str, str | None] = {}
    for subject, slot, rows in ((one, 0, 1), (one, 0, 2), (one, 1, 1), (other, 0, 1)):
        for _ in range(2):
            cuda.runs.clear()
            subject.forward(StepInput(slot, ids(rows), 0, HeadRequest(rows - 1, rows)))
            for name, number in cuda.runs:
                key = f"{name} of {id(subject)}, slot {slot}, {rows} rows"
                assert seen.setdefault(key, number) == number
    numbers = [number for key, number in seen.items() if "body" in key]
    assert len(set(numbers)) == 4 and all(number is not None and int(number) > 0 for number in numbers)
    cuda.runs.clear()
    one.forward(StepInput(0, ids(12), 0, None))
    assert cuda.runs == [("target.body.onnx", "-1")], "a prefill chunk is long enough without"
    assert {number for key, number in seen.items() if "readout" in key} == {None}


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda cuda: setattr(cuda, "available", (CPU,)), ConfigError, "this onnxruntime has no CUDA"),
        (lambda cuda: setattr(cuda, "started", (CPU,)), ConfigError, "could not start it: its CUDA or cuDNN"),
        (
            lambda cuda: setattr(cuda, "fails", "[Error] nodes that are assigned to the default CPU EP\nmore"),
            ConfigError,
            "no CUDA kernel in onnxruntime .*cpu_fallback",
        ),
        (lambda cuda: setattr(cuda, "fails", "file is damaged\nmore"), BundleError, "does not load: file is damaged$"),
    ],
)
def test_the_processor_is_no_silent_substitute(
    bundle: Bundle, cuda: FakeCuda, spoil: Callable[[FakeCuda], None], kind: type[Exception], words: str
) -> None:
    spoil(cuda)
    with pytest.raises(kind, match=words):
        engine(bundle)


def test_a_float32_bundle_is_not_for_cuda(cuda: FakeCuda, bundle: Bundle, tmp_path: Path) -> None:
    other = export_tiny(tmp_path / "b", save_tiny(tmp_path / "hf", TinyConfig(layers=1)), precision="fp32")
    with pytest.raises(ConfigError, match="half: true or precision fp16"):
        engine(other)


def test_a_copy_that_fails_is_a_typed_error(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cudaMemcpy", lambda *given: 2)
    with pytest.raises(EngineError, match="CUDA: error 2: out of memory"):
        DeviceCopies(cuda).to_host(0, np.zeros(1, np.float32))


def test_the_runtime_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 fe:00 1  "
    maps.write_text(f"{line}/usr/lib/libc.so.6\n{line}/usr/local/cuda/lib64/libcudart.so.12\n{line}/x/libcudart_static.a\n")
    assert loaded_runtime(maps) == "/usr/local/cuda/lib64/libcudart.so.12"
    maps.write_text(f"{line}/usr/lib/libc.so.6\n")
    assert loaded_runtime(maps) is None
    assert loaded_runtime(tmp_path / "none") is None


def notes_of(place: Path, **recipe: object) -> str:
    source = save_tiny(place / "hf", TinyConfig(layers=1, hidden=128, ffn=256))
    return " ".join(export_tiny(place / "b", source, **recipe)[1].notes)


def test_an_export_says_where_cuda_would_be_slow(tmp_path: Path) -> None:
    fast = {"precision": "int4", "head_precision": "int4", "symmetric": True, "half": True, "block_size": 64}
    assert "slow on CUDA" not in notes_of(tmp_path / "a", **fast)
    said = notes_of(tmp_path / "b", **{**fast, "block_size": 32})
    assert "blocks of 32, not 64 or 128 (block_size)" in said and "zero points" not in said
    assert "zero points (symmetric: true has none)" in notes_of(tmp_path / "c", **{**fast, "symmetric": False})
    assert "slow on CUDA" not in notes_of(tmp_path / "d", precision="int4"), "a bundle for a CPU"


def test_a_budget_leaves_the_arena_what_is_not_taken() -> None:
    import tiny_bundle as tiny

    from edge_runtime.loading import LoadSettings, _arena_bytes, load_of
    from edge_runtime.needs import needs

    manifest = read_manifest(tiny.bundle())
    settings = LoadSettings(device="cuda", context=256, memory_bytes=3_000_000_000)
    load = load_of(manifest, settings)
    planned = needs(manifest, load)
    scratch = sum(one.scratch for one in planned.models)
    assert _arena_bytes(manifest, load, settings) == 3_000_000_000 - planned.loaded + scratch
    assert _arena_bytes(manifest, load, replace(settings, memory_bytes=1)) == 64 << 20
    assert _arena_bytes(manifest, load, replace(settings, memory_bytes=None)) is None
    on_cpu = replace(settings, device="cpu")
    assert _arena_bytes(manifest, load_of(manifest, on_cpu), on_cpu) is None
