"""Engines that the suite tries, how each is opened, and how far it may be off. Knows no test.

A tolerance is stated in standard deviations of the logits, since bundles differ in how large theirs are.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tiny_trt
from fake_cuda import FakeRuntime
from fake_delta import fake_delta
from fake_tensorrt import FakeTensorRT, put_in_place
from random_gemma import export_random, save_random

from edge_runtime.bundle import Manifest, file_problems, read_manifest
from edge_runtime.engines import trt_build
from edge_runtime.engines.engine_record import ENGINE_DIRECTORY, BuildOptions, read_record
from edge_runtime.engines.opening import Backend, BuiltEngines, GraphMode, open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine
from edge_runtime.resident import MachineMemory
from edge_runtime.testing import FakeEngine, FakeModel

ENGINES = ("fake", "delta", "trt-fake", "ort", "reference", "nf4", "tensorrt")
"""By their names on the command line. ``delta`` is the logic of ``DeltaEngine`` over a device of numpy,
``trt-fake`` all of ours for TensorRT, build and executor, over fakes of its bindings and of CUDA's."""


@dataclass(frozen=True)
class Tolerance:
    """What two ways to one row may differ by; 0 is the same bits."""

    rows: float
    """Between a row that ran with others, in another chunk or slot, and the same row alone."""
    readout: float
    """Between a row of logits and what was read out of it."""
    near_tie: float
    """Gap of the two best logits within which a greedy text may leave the plain one."""
    why: str


@dataclass(frozen=True)
class Wanted:
    """How an engine is opened; it may hold more."""

    slots: int = 3
    capacity: int = 96
    max_rows: int = 16
    head_rows: int = 8
    keeps_hidden: bool = True


EXACT = Tolerance(0.0, 1e-6, 0.0, "a fake computes a row by itself")
FLOAT32 = Tolerance(1e-4, 1e-5, 1e-4, "float32 sums in another order, and a lone row by another kernel")
BYTES = Tolerance(0.25, 1e-5, 0.25, "activations of 8 bits: a rounding moves a whole step of the scale")
PAIRS = Tolerance(0.0, 1e-5, 0.0, "a row of 8-bit products is the same bits beside any others, but not alone")
HALF = Tolerance(2e-2, 1e-4, 5e-2, "float16 products, summed in another order by other row counts")
FOUR_BITS = Tolerance(5e-2, 1e-4, 0.1, "float16 or bfloat16 products of dequantised weights")


@dataclass
class Bundles:
    """Tiny ones, made when they are asked for, and perhaps the owner's."""

    place: Path
    owned: Path | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    """Of the owner's bundle."""
    made: dict[tuple[Any, ...], tuple[Path, Manifest]] = field(default_factory=dict)

    def tiny(self, family: str, **recipe: Any) -> tuple[Path, Manifest]:
        key = (family, *sorted(recipe.items()))
        if key not in self.made:
            folder = self.place / f"bundle-{len(self.made)}"
            self.made[key] = (folder, export_random(folder, self.checkpoint(family), **recipe))
        return self.made[key]

    def checkpoint(self, family: str) -> Path:
        folder = self.place / family
        return folder if folder.exists() else save_random(folder, family)

    @cached_property
    def manifest(self) -> Manifest:
        assert self.owned is not None
        return read_manifest(self.owned)


@dataclass(frozen=True)
class Case:
    """One engine of one model."""

    engine: str
    model: str
    tolerance: Tolerance
    opener: Callable[[Bundles, Wanted], Engine]
    reduced: bool = False
    """A head of some of the tokens: a draft's, which writes no text by itself."""
    owned: bool = False
    """Of a bundle that the caller named."""
    within: Callable[[], AbstractContextManager[None]] = nullcontext
    """What it is opened and used in."""

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.model}"


def cases(engine: str, owned: Path | None) -> list[Case]:
    """Of the engine by that name, of the owner's bundle or of tiny ones."""
    if engine in _FAKES:
        return _FAKES[engine]
    if owned is not None:
        return [_of_bundle(engine, owned)]
    return _TINY[engine]()


def runs_here(engine: str, owned: Path | None) -> bool:
    return why_not_here(engine, owned) is None


def why_not_here(engine: str, owned: Path | None) -> str | None:
    """What it lacks, in words; nothing is imported for that. Raises ``BundleError``."""
    dialect = None if owned is None else read_manifest(owned).model("target").dialect
    if engine in _FAKES:
        return None
    if dialect is not None and dialect != _DIALECTS[engine]:
        fitting = " or ".join(name for name, one in _DIALECTS.items() if one == dialect)
        return f"the bundle is made for {fitting}"
    for name in _MODULES.get(engine, ()):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed here"
    if not cases(engine, owned):
        return "there is no tiny model of it: name a bundle that is built, with --bundle DIR"
    return None


def bundle_problem(engines: Sequence[str], owned: Path) -> str | None:
    """Told once, ahead of tests that would all fail by it."""
    if (problem := next(file_problems(owned, read_manifest(owned), hashes=False), None)) is not None:
        return problem
    if "tensorrt" in engines and read_record(owned / ENGINE_DIRECTORY) is None:
        return f"no engines are built of it: edge-runtime build {owned}"
    return None


# --- how each is opened


def _fake(bundles: Bundles, wanted: Wanted, **given: Any) -> Engine:
    sizes = {"capacity": wanted.capacity, "slots": wanted.slots, "max_rows": wanted.max_rows}
    return FakeEngine(**sizes, keeps_hidden=wanted.keeps_hidden, **given)


def _fake_delta(bundles: Bundles, wanted: Wanted, **given: Any) -> Engine:
    place = bundles.place / f"fake-{len(list(bundles.place.iterdir()))}"
    place.mkdir()
    sizes = {"capacity": wanted.capacity, "slots": wanted.slots, "max_rows": wanted.max_rows}
    keys = {"head_rows": wanted.head_rows, "keeps_hidden": wanted.keeps_hidden, **given}
    return fake_delta(place, FakeModel(), **sizes, **keys)[0]


@cache
def _fake_board() -> tuple[FakeTensorRT, FakeRuntime]:
    """One for all cases: what an engine holds there is there as long as the engine."""
    cuda = FakeRuntime()
    return FakeTensorRT(cuda), cuda


@contextmanager
def _on_the_fake_board() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        put_in_place(patch, *_fake_board())
        patch.setattr(trt_build, "machine_memory", lambda: MachineMemory(16 << 30, 12 << 30))
        yield


def _tensorrt_fake(bundles: Bundles, wanted: Wanted, graphs: GraphMode, precision: str) -> Engine:
    bundle, engines = tiny_trt.bundle(precision, 0), bundles.place / f"engines-{precision}"
    if not engines.exists():
        options = BuildOptions(wanted.head_rows - 1, wanted.max_rows, wanted.capacity, 1 << 26)
        tiny_trt.built(engines, bundle, options)
    settings = _settings(wanted, 1, gpu_memory_bytes=1 << 30)
    built = BuiltEngines(engines, graphs)
    return open_engine(bundle, read_manifest(bundle), "target", "tensorrt", settings, built=built)


def _settings(wanted: Wanted, threads: int, **given: Any) -> OrtSettings:
    return OrtSettings(
        capacity=wanted.capacity, slots=wanted.slots, max_rows=wanted.max_rows, max_head_rows=wanted.head_rows,
        keeps_hidden=wanted.keeps_hidden, threads=threads, **given,
    )  # fmt: skip


def _tiny(backend: Backend, family: str, recipe: dict[str, Any], **given: Any) -> Callable[[Bundles, Wanted], Engine]:
    def opened(bundles: Bundles, wanted: Wanted) -> Engine:
        directory, manifest = bundles.tiny(family, **recipe)
        return open_engine(directory, manifest, "target", backend, _settings(wanted, 1, **given))

    return opened


def _of_bundle(engine: str, owned: Path) -> Case:
    def opened(bundles: Bundles, wanted: Wanted) -> Engine:
        capacity = min(256, bundles.manifest.model("target").max_context)
        given = Wanted(wanted.slots, capacity, wanted.max_rows, wanted.head_rows, wanted.keeps_hidden)
        settings = _settings(given, 0, device=bundles.device)
        return open_engine(owned, bundles.manifest, "target", _BACKENDS[engine], settings)

    model = read_manifest(owned).model("target")
    tolerance = BYTES if model.accuracy_level == 4 else FLOAT32 if model.kv_dtype == "float32" else HALF
    return Case(engine, owned.name, tolerance, opened, owned=True)


_BACKENDS: dict[str, Backend] = {
    "ort": "onnxruntime", "reference": "reference", "tensorrt": "tensorrt", "nf4": "nf4",
}  # fmt: skip
_MODULES = {"nf4": ("torch", "transformers", "bitsandbytes"), "tensorrt": ("tensorrt",)}
_DIALECTS = {"ort": "ort", "reference": "tensorrt", "tensorrt": "tensorrt", "nf4": "nf4"}
_REDUCED = np.arange(0, 64, 2)
_FAKES: dict[str, list[Case]] = {
    "fake": [
        Case("fake", "pairs", EXACT, lambda bundles, wanted: _fake(bundles, wanted, min_rows=2)),
        Case("fake", "trees", EXACT, lambda bundles, wanted: _fake(bundles, wanted, trees=True)),
        Case("fake", "reduced", EXACT, lambda bundles, wanted: _fake(bundles, wanted, token_ids=_REDUCED), True),
    ],
    "delta": [
        Case("delta", "model", EXACT, _fake_delta),
        Case("delta", "pairs", EXACT, lambda bundles, wanted: _fake_delta(bundles, wanted, deterministic=True)),
        Case("delta", "reduced", EXACT, lambda bundles, wanted: _fake_delta(bundles, wanted, token_ids=_REDUCED), True),
    ],
    "trt-fake": [
        Case("trt-fake", "gemma3-fp32", FLOAT32,
             lambda bundles, wanted: _tensorrt_fake(bundles, wanted, "none", "fp32"), within=_on_the_fake_board),
        Case("trt-fake", "fp16-graphs", HALF,
             lambda bundles, wanted: _tensorrt_fake(bundles, wanted, "captured", "fp16"), within=_on_the_fake_board),
    ],
}  # fmt: skip


def _ort_cases() -> list[Case]:
    rounded = {"precision": "int8"}
    return [
        Case("ort", "gemma2", FLOAT32, _tiny("onnxruntime", "gemma2", {"precision": "fp32"})),
        Case("ort", "gemma3-trees", FLOAT32, _tiny("onnxruntime", "gemma3", {"precision": "fp32", "trees": True})),
        Case("ort", "gemma3-int8", BYTES, _tiny("onnxruntime", "gemma3", rounded)),
        Case("ort", "gemma3-int8-pairs", PAIRS, _tiny("onnxruntime", "gemma3", rounded, deterministic=True)),
    ]


def _reference_cases() -> list[Case]:
    def case(family: str, tolerance: Tolerance, **recipe: Any) -> Case:
        opener = _tiny("reference", family, {"engine": "tensorrt", **recipe})
        return Case("reference", f"{family}-{recipe['precision']}", tolerance, opener)

    return [
        case("gemma3", FLOAT32, precision="fp32"),
        case("gemma3", HALF, precision="fp16"),
        case("gemma2", HALF, precision="int4"),
    ]


def _nf4_cases() -> list[Case]:
    return [Case("nf4", family, FOUR_BITS, _tiny("nf4", family, {"engine": "nf4"})) for family in ("gemma2", "gemma3")]


def _tensorrt_cases() -> list[Case]:
    return []


_TINY: dict[str, Callable[[], list[Case]]] = {
    "ort": _ort_cases,
    "reference": _reference_cases,
    "nf4": _nf4_cases,
    "tensorrt": _tensorrt_cases,
}
