"""The probes themselves: on this processor in earnest, and those of devices over a processor that plays one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import processor_as_device as device
import pytest
import tiny_bundle as tiny
from processor_as_device import processor_as_device

from edge_runtime.doctor.outcome import Line, Outcome, Request, told
from edge_runtime.doctor.probes import host, nf4, ort, torch_floats, trt
from edge_runtime.doctor.probes.telling import Absent, Teller, run_probe_once
from edge_runtime.doctor.probes.timing import best_of, time_each
from edge_runtime.errors import ConfigError
from edge_runtime.schema import structure

SMALL = Request(shapes=((128, 320),), rows=3, measure_s=0.01, copy_bytes=1 << 20)
CUDA = replace(SMALL, device="cuda")
SURFACE = Path(__file__).parent / "tensorrt_surface.json"


def run(probe: Callable[[Request, Teller], None], request: Request = SMALL) -> Outcome:
    stream = io.StringIO()
    run_probe_once(probe, request, Teller(stream))
    lines = tuple(structure(Line, json.loads(text), ConfigError, "line") for text in stream.getvalue().splitlines())
    stages = [line.stage for line in lines if line.stage]
    failed, absent = lines[-1].failed, lines[-1].absent
    ended = "failed" if failed else "absent" if absent else "finished"
    said = failed or absent or ""
    return Outcome("p", ended, stages[-1] if stages else "", said, 0.0, None, told(lines))  # type: ignore[arg-type]


def right(outcome: Outcome) -> bool:
    products = all(one.difference is not None and one.difference <= one.tolerance for one in outcome.told.products)
    return products and all(
        one.difference is not None and one.difference <= one.tolerance * one.largest for one in outcome.told.layers
    )


def test_the_processor_copies() -> None:
    outcome = run(host.probe)
    assert outcome.ended == "finished"
    assert [one.what for one in outcome.told.copies] == [host.ONE_THREAD, host.ALL_CORES]


def test_onnxruntime_on_this_processor() -> None:
    outcome = run(ort.probe)
    assert outcome.ended == "finished" and right(outcome), outcome
    assert [one.kind for one in outcome.told.products] == ["float32", "int8", "int4"]
    assert all(len(one.seconds) == 3 and min(one.seconds) > 0.0 for one in outcome.told.products)
    (layer,) = outcome.told.layers
    assert not layer.of_bundle and 0.0 < layer.difference < layer.tolerance * layer.largest  # type: ignore[operator]
    assert outcome.told.versions["onnxruntime"] and outcome.told.launched_s is not None


def test_a_layer_of_a_bundle_against_float32_activations() -> None:
    outcome = run(ort.probe, replace(SMALL, shapes=(), bundle=str(tiny.bundle())))
    (layer,) = outcome.told.layers
    assert right(outcome) and layer.of_bundle and layer.what == "first layer of tiny"
    assert layer.difference is not None and layer.difference > 0.0, "nothing was compared"


def test_a_bundle_without_such_a_layer_is_a_note(tmp_path: Path) -> None:
    bundle = tiny.copy_of(tiny.bundle(), tmp_path)
    (bundle / "target.body.onnx").write_bytes(b"\x0a\x05ab")
    outcome = run(ort.probe, replace(SMALL, shapes=(), bundle=str(bundle)))
    assert outcome.ended == "finished" and "cannot be read" in outcome.told.notes[0] and not outcome.told.layers


def test_a_layer_for_tensorrt_is_not_held_against_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ort.bundle_layer
    monkeypatch.setattr(ort, "bundle_layer", lambda place: replace(real(place), start=ort.EMBEDDINGS))
    outcome = run(ort.probe, replace(SMALL, shapes=(), bundle=str(tiny.bundle())))
    assert outcome.ended == "finished" and not outcome.told.layers and "for TensorRT" in outcome.told.notes[0]


def test_a_first_product_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "difference", lambda *_: None)
    outcome = run(ort.probe, replace(SMALL, shapes=()))
    assert [one.difference for one in outcome.told.products] == [None, None, None]


def test_an_onnxruntime_without_cuda_has_nothing_to_try() -> None:
    outcome = run(ort.probe, CUDA)
    assert (outcome.ended, outcome.said) == ("absent", "CUDAExecutionProvider in this onnxruntime")


def test_a_provider_that_does_not_load_is_no_processor_in_disguise() -> None:
    """onnxruntime warns, and goes on with the processor: here it must not."""
    case = ort.made_up_layer("ort", "float16")
    warns = pytest.warns(UserWarning, match="CUDAExecutionProvider")
    with pytest.raises(Exception, match=r"CUDAExecutionProvider|CPU EP"), warns:
        ort.session_of(case.graph, "cuda")


@pytest.mark.parametrize(
    ("probe", "package"),
    [(ort.probe, "onnxruntime"), (trt.probe, "tensorrt"), (torch_floats.probe, "torch"), (nf4.probe, "bitsandbytes")],
)
def test_a_package_that_is_not_installed_is_absent(
    probe: Callable[[Request, Teller], None], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    if package == "bitsandbytes":
        monkeypatch.setattr(nf4, "torch_for", lambda *_: None)
    outcome = run(probe)
    assert (outcome.ended, outcome.said, outcome.stage) == ("absent", package, "import")


def test_a_package_that_lacks_another_is_broken_and_not_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text("import no_such_library")
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = run(trt.probe, CUDA)
    assert outcome.ended == "failed" and "no_such_library" in outcome.said


def test_whatever_a_library_raises_is_told_in_one_line() -> None:
    def raising(_: Request, teller: Teller) -> None:
        teller.stage("first kernel")
        raise RuntimeError("CUDA error:\n  no kernel image")

    outcome = run(raising)
    assert (outcome.ended, outcome.stage) == ("failed", "first kernel")
    assert outcome.said == "RuntimeError: CUDA error: no kernel image"

    def absent(_: Request, __: Teller) -> None:
        raise Absent("x")

    assert run(absent).said == "x"


def test_tensorrt_on_a_processor_that_plays_the_device() -> None:
    with processor_as_device():
        outcome = run(trt.probe, CUDA)
    assert outcome.ended == "finished" and right(outcome), outcome
    assert [(one.kind, one.inner, one.outer) for one in outcome.told.products] == [
        ("float16", 128, 320), ("int4", 128, 320),
    ]  # fmt: skip
    assert all(len(one.seconds) == 3 for one in outcome.told.products)
    assert outcome.told.accelerator is not None and outcome.told.accelerator.compute == "8.7"
    assert outcome.told.versions == {"tensorrt": "10.3.0", "cuda_driver": "12.6", "cuda_runtime": "12.6"}
    assert [one.what for one in outcome.told.copies] == ["device to device"] and len(outcome.told.layers) == 1


def test_tensorrt_leaves_out_a_bundle_of_the_other_dialect() -> None:
    with processor_as_device():
        outcome = run(trt.probe, replace(CUDA, shapes=(), bundle=str(tiny.bundle())))
    assert outcome.ended == "finished" and "exported for onnxruntime" in outcome.told.notes[0]


def test_a_bundles_layer_in_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer of a bundle of onnxruntime plays one of TensorRT's dialect: its weights lie in a file, caches beside
    it, and only the reference knows the type of what it gives."""
    monkeypatch.setattr(trt, "EMBEDDINGS", "x0")
    with processor_as_device():
        outcome = run(trt.probe, replace(CUDA, shapes=(), bundle=str(tiny.bundle())))
    layer = outcome.told.layers[-1]
    assert outcome.ended == "finished" and layer.of_bundle and len(layer.seconds) == 3
    # Here both are onnxruntime, one with rounded activations.
    assert layer.difference is not None and 0.0 < layer.difference < 0.1 * layer.largest


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"parse": True}, "parse: the graph is refused: No importer registered for op: Odd"),
        ({"build": True}, "build_serialized_network: no plan"),
        ({"deserialize": True}, "deserialize_cuda_engine"),
        ({"execute": True}, "execute_async_v3: failed"),
        ({"device": 700}, "cudaErrorIllegalAddress"),
    ],
)
def test_what_fails_in_tensorrt_is_named(fault: dict[str, Any], words: str) -> None:
    with processor_as_device(**fault):
        outcome = run(trt.probe, CUDA)
    assert outcome.ended == "failed" and words in outcome.said and outcome.said.startswith("DeviceError")


def test_values_that_are_not_finite_are_seen_on_the_device() -> None:
    with processor_as_device(nan=True):
        outcome = run(trt.probe, CUDA)
    assert outcome.ended == "finished" and outcome.told.layers[0].difference is None
    assert [one.difference for one in outcome.told.products] == [None, None]


def test_the_device_that_is_played_has_no_name_that_the_real_one_lacks() -> None:
    surface = json.loads(SURFACE.read_text(encoding="utf-8"))["classes"]
    for played in device.TENSORRT:
        names = [name for name in vars(played) if not name.startswith("_")]
        for name in names:
            versions = surface[played.__name__][name].values()
            assert "all" in versions or len({one for group in versions for one in group}) == 4, (played.__name__, name)


def test_torch_on_this_processor() -> None:
    outcome = run(torch_floats.probe)
    assert outcome.ended == "finished" and right(outcome), outcome
    assert [one.kind for one in outcome.told.products] == ["float32"]


def test_a_torch_for_the_processor_alone_does_not_pass_for_the_accelerators() -> None:
    import torch

    if torch.version.cuda is None:
        outcome = run(torch_floats.probe, CUDA)
        assert outcome.ended == "absent" and "torch with CUDA" in outcome.said
    else:  # pragma: no cover (where tests run beside an accelerator)
        assert run(torch_floats.probe, CUDA).ended in ("finished", "failed")


def fake_bitsandbytes(off: float = 0.0) -> dict[str, ModuleType]:
    """Sixteen levels, even ones: what matters here is that what is packed is what is multiplied by."""
    import torch

    package, functional = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.functional")

    class State:
        def __init__(self, absmax: Any, shape: Any) -> None:
            self.absmax, self.shape = absmax, shape

    def quantize_4bit(A: Any, *, blocksize: int, quant_type: str, compress_statistics: bool) -> Any:
        assert quant_type == "nf4" and not compress_statistics
        blocks = A.float().reshape(-1, blocksize)
        absmax = blocks.abs().max(dim=1).values
        levels = ((blocks / absmax[:, None] + 1.0) * 7.5).round().to(torch.uint8).reshape(-1, 2)
        return (levels[:, 0] * 16 + levels[:, 1])[:, None], State(absmax, A.shape)

    def dequantize_4bit(A: Any, quant_state: State) -> Any:
        levels = torch.stack([A[:, 0] // 16, A[:, 0] % 16], dim=1).float() / 7.5 - 1.0
        return (levels.reshape(len(quant_state.absmax), -1) * quant_state.absmax[:, None]).reshape(quant_state.shape)

    def matmul_4bit(A: Any, B: Any, quant_state: State) -> Any:
        return A @ dequantize_4bit(B.t(), quant_state).t() + off

    package.__version__ = "0.50"  # type: ignore[attr-defined]
    package.functional, package.matmul_4bit = functional, matmul_4bit  # type: ignore[attr-defined]
    functional.quantize_4bit, functional.dequantize_4bit = quantize_4bit, dequantize_4bit  # type: ignore[attr-defined]
    return {"bitsandbytes": package, "bitsandbytes.functional": functional}


@pytest.mark.parametrize(("off", "fits"), [(0.0, True), (0.5, False), (float("nan"), False)])
def test_4_bit_by_bitsandbytes(off: float, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in fake_bitsandbytes(off).items():
        monkeypatch.setitem(sys.modules, name, module)
    outcome = run(nf4.probe)
    assert outcome.ended == "finished" and right(outcome) == fits
    # Packed: half a byte a value, and a float for each block of 64.
    assert outcome.told.products[-1].weight_bytes == 128 * 320 // 2 + 4 * 128 * 320 // 64


def test_times_take_turns_and_a_stroke_of_luck_does_not_count() -> None:
    now, order = 0.0, list[int]()
    lasts = {0: iter([9.0, 1.0, 5.0, 2.0, 2.0, 2.0, 2.0, 2.0]), 1: iter([9.0] + [4.0] * 7)}

    def run_of(which: int) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            order.append(which)
            now += next(lasts[which])

        return run

    seconds = time_each([run_of(0), run_of(1)], 30.0, clock=lambda: now)
    assert seconds == (2.0, 4.0) and order[:6] == [0, 1, 0, 1, 0, 1]


def test_what_takes_too_long_is_not_repeated() -> None:
    now, runs = 0.0, 0

    def slow() -> None:
        nonlocal now, runs
        now, runs = now + 60.0, runs + 1

    assert time_each([slow], 0.1, clock=lambda: now) == (60.0,) and runs == 2
    assert best_of(slow, 0.1, clock=lambda: now) == 60.0


def test_arrays_survive_the_way_to_the_device() -> None:
    from edge_runtime.doctor.probes.device_arrays import DeviceArrays

    with processor_as_device():
        arrays = DeviceArrays()
        values = np.arange(12, dtype=np.float16).reshape(3, 4)[:, ::2]
        place = arrays.empty(values.nbytes)
        arrays.copy_in(place, values)
        assert np.array_equal(arrays.copy_out(place, (3, 2), "float16"), values)
