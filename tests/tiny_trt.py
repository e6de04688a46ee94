"""A whole bundle of a tiny random Gemma 3 with a draft, exported for TensorRT: what builds and engines are tried on."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from tiny_bundle import tiny_tokenizer

sys.path.append(str(Path(__file__).with_name("conformance")))
from random_gemma import CONTEXT as CONTEXT
from random_gemma import save_random

from edge_runtime.engines.engine_record import BuildOptions, EngineRecord, MachineFacts, PlanRecord
from edge_runtime.engines.trt_build import BuildRequest, build_engines
from export.build import build_bundle
from export.recipe import DraftRecipe, ExportRecipe, SelfDraftRecipe

CAPACITY, K, CHUNK = 96, 3, 16
OPTIONS = BuildOptions(draft_length=K, chunk=CHUNK, context=CAPACITY, workspace_bytes=1 << 26)
GRAPHS = ("target.body.onnx", "target.head.onnx", "draft.body.onnx", "draft.head.onnx")


@cache
def bundle(precision: str = "fp32", draft_layers: int = 2, self_layers: int = 0) -> Path:
    """For all to read: a test that damages it takes a copy."""
    place = _place() / f"{precision}-{draft_layers}-{self_layers}"
    recipe = ExportRecipe(
        source=str(_checkpoint()),
        output=str(place),
        engine="tensorrt",
        precision=precision,  # type: ignore[arg-type]
        calibration="none",
        max_context=CONTEXT,
        draft=DraftRecipe(layers=draft_layers, vocab_rows=448) if draft_layers else None,
        self_draft=SelfDraftRecipe(layers=self_layers) if self_layers else None,
    )
    build_bundle(recipe, lambda what, done, total: None)
    return place


@cache
def _checkpoint() -> Path:
    place = save_random(_place() / "checkpoint", "gemma3")
    (place / "tokenizer.model").write_bytes(tiny_tokenizer())
    return place


@cache
def _place() -> Path:
    place = Path(tempfile.mkdtemp(prefix="edge-trt-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


class Quiet:
    """Implements ``trt_build.Report``, and remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def machine(self, facts: MachineFacts) -> None:
        self.lines.append(f"TensorRT {facts.tensorrt}")

    def hashed(self, done: int, total: int) -> None: ...

    def kept(self, plan: PlanRecord) -> None:
        self.lines.append(f"kept {plan.graph}")

    def begun(self, graph: str, reason: str) -> None:
        self.lines.append(f"begun {graph}: {reason}")

    def progress(self, phase: str, done: int, total: int) -> None:
        self.lines.append(f"{phase} {done}/{total}")

    def built(self, plan: PlanRecord) -> None:
        self.lines.append(f"built {plan.graph}")


def built(
    output: Path, bundle: Path, options: BuildOptions = OPTIONS, rebuild: bool = False
) -> tuple[EngineRecord, Quiet]:
    report = Quiet()
    return build_engines(BuildRequest(bundle, output, options, rebuild, reserve=0), report), report
