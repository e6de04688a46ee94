"""A bundle for TensorRT against its twin in the dialect of ONNX Runtime: do both graphs say the same?

Knows no checkpoint's reference: what rounding the weights cost is ``parity``'s to say. Both run on the CPU provider,
the twin in float32 throughout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_runtime.bundle import TARGET, Manifest
from edge_runtime.engines.delta_embedding import EmbeddingRows
from edge_runtime.engines.opening import open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.text.tokenizer import Tokenizer

from .activations import Activations, largest_activations
from .checkpoint import Checkpoint
from .parity import Floats, Ids, full_logits, sample_ids
from .twin import write_twin

TOLERANCE = {"float32": 1e-3, "float16": 2e-2}
"""Of the logits, by the type of products and cache."""
_ROWS = 16
"""Tokens that are run whole, in chunks and behind a draft that is rejected."""


@dataclass(frozen=True, slots=True)
class TwinParity:
    tokens: int
    max_abs_logit_error: float
    tolerance: float
    step: float
    """From the largest logit to its neighbour in the type of products, which hold nothing between the two."""
    top1_agreement: float
    chunked_error: float
    """max |dlogit| between a text that is run at once and the same in chunks."""
    rollback_exact: bool
    """Whether a draft that is rejected whole leaves no trace, to the bit."""
    activations: Activations

    @property
    def agrees(self) -> bool:
        """Where a step of the largest logit is more than the tolerance, half precision alone may miss it: ``step`` is
        printed beside the verdict and does not soften it."""
        within = max(self.max_abs_logit_error, self.chunked_error) <= self.tolerance
        return within and self.rollback_exact


def twin_rows(found: TwinParity) -> list[tuple[str, str]]:
    """(figure, value) to print."""
    verdict = "within" if found.agrees else "BEYOND"
    rows = [
        ("ONNX Runtime's graphs, same weights: max |dlogit|", f"{found.max_abs_logit_error:.2e}"),
        ("  top-1 agreement", f"{found.top1_agreement:.4f} of {found.tokens}"),
        ("  in chunks against whole: max |dlogit|", f"{found.chunked_error:.2e}"),
        ("  rollback", "exact" if found.rollback_exact else "NOT EXACT"),
        ("  tolerance; step of the largest logit", f"{found.tolerance:g}; {found.step:.2g}: {verdict}"),
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
    errors, same, largest = [], [], 0.0
    try:
        for found, expected in zip(full_logits(one, ids), full_logits(other, ids), strict=True):
            errors.append(float(np.abs(found - expected).max()))
            largest = max(largest, float(np.abs(expected).max()))
            same += (found.argmax(axis=1) == expected.argmax(axis=1)).tolist()
        chunked, exact = _in_chunks(one, ids[:_ROWS]), _rolls_back(one, ids[:_ROWS])
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
        step=float(np.spacing(np.dtype(model.kv_dtype).type(largest))),
        top1_agreement=float(np.mean(same)),
        chunked_error=chunked,
        rollback_exact=exact,
        activations=largest_activations(directory, model, embeddings),
    )


def _in_chunks(engine: Engine, ids: Ids) -> float:
    return float(np.abs(_run(engine, ids, (len(ids),)) - _run(engine, ids, (1, 5, 3, 2))).max())


def _rolls_back(engine: Engine, ids: Ids) -> bool:
    half = len(ids) // 2
    wanted = _run(engine, ids, (half or 1,))
    engine.forward(StepInput(0, ids[half:][::-1].copy(), half, None))
    return bool(np.array_equal(_run(engine, ids[half:], (half or 1,), half), wanted[half:]))


def _run(engine: Engine, ids: Ids, sizes: Sequence[int], position: int = 0) -> Floats:
    """[T, vocab] in chunks of ``sizes``, over and over."""
    rows, start, turn = [], 0, 0
    while start < len(ids):
        chunk = ids[start : start + sizes[turn % len(sizes)]]
        engine.forward(StepInput(0, chunk, position + start, HeadRequest(0, len(chunk))))
        rows += [engine.logits(row).copy() for row in range(len(chunk))]
        start, turn = start + len(chunk), turn + 1
    return np.stack(rows)
