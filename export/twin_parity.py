"""A bundle for TensorRT against its twin in the dialect of ONNX Runtime: do both graphs say the same?

Knows no checkpoint's reference: what rounding the weights cost is ``parity``'s to say. Both run on the CPU provider,
the twin in float32 throughout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_runtime.bundle import TARGET, Manifest
from edge_runtime.engines.delta_embedding import EmbeddingRows
from edge_runtime.engines.opening import open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.text.tokenizer import Tokenizer

from .activations import Activations, largest_activations
from .checkpoint import Checkpoint
from .parity import Ids, full_logits, sample_ids
from .twin import write_twin

TOLERANCE = {"float32": 1e-3, "float16": 2e-2}
"""Of the logits, by the type of products and cache."""


@dataclass(frozen=True, slots=True)
class TwinParity:
    tokens: int
    max_abs_logit_error: float
    tolerance: float
    top1_agreement: float
    activations: Activations

    @property
    def agrees(self) -> bool:
        return self.max_abs_logit_error <= self.tolerance


def twin_rows(found: TwinParity) -> list[tuple[str, str]]:
    """(figure, value) to print."""
    verdict = "within" if found.agrees else "BEYOND"
    rows = [
        ("ONNX Runtime's graphs, same weights: max |dlogit|", f"{found.max_abs_logit_error:.2e}"),
        ("  tolerance", f"{found.tolerance:g}: {verdict}"),
        ("  top-1 agreement", f"{found.top1_agreement:.4f} of {found.tokens}"),
    ]
    for kind, largest in (("float16", found.activations.narrow), ("float32", found.activations.wide)):
        if largest is not None:
            rows.append((f"  max |activation| in {kind}", f"{largest.magnitude:.4g} ({largest.value})"))
    return rows


def measure_twin(
    directory: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    text: str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> TwinParity:
    """On the text that ``measure_parity`` takes. The twin is written beside the bundle for a while, as large as that or
    twice so."""
    model = manifest.model(TARGET)
    ids = sample_ids(Tokenizer(directory / manifest.tokenizer.file), text)[: model.max_context]
    progress("twin", 0, 1)
    place = directory.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{place.name}.twin.", dir=place.parent) as folder:
        twin = write_twin(Path(folder), directory, manifest, checkpoint)
        found = compare_twins(directory, manifest, Path(folder), twin, ids)
    progress("twin", 1, 1)
    return found


def compare_twins(directory: Path, manifest: Manifest, folder: Path, twin: Manifest, ids: Ids) -> TwinParity:
    model = manifest.model(TARGET)
    settings = OrtSettings(capacity=min(model.max_context, max(len(ids), 64)))
    one = open_engine(directory, manifest, TARGET, "reference", settings)
    other = open_engine(folder, twin, TARGET, "onnxruntime", settings)
    errors, same = [], []
    try:
        for found, expected in zip(full_logits(one, ids), full_logits(other, ids), strict=True):
            errors.append(float(np.abs(found - expected).max()))
            same += (found.argmax(axis=1) == expected.argmax(axis=1)).tolist()
    finally:
        one.close()
        other.close()
    assert model.embedding is not None, "a twin was made of it"
    table = EmbeddingRows(directory, model.embedding)
    embeddings = np.empty((len(ids), model.embedding.columns), np.float32)
    table.read(ids, embeddings)
    return TwinParity(
        tokens=len(same),
        max_abs_logit_error=float(np.max(errors)),
        tolerance=TOLERANCE[model.kv_dtype],
        top1_agreement=float(np.mean(same)),
        activations=largest_activations(directory, model, embeddings),
    )
