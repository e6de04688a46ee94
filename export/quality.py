"""What 4 bits cost: likelihoods of a text that no weight was rounded on. Knows no bundle and no engine.

Each scheme rounds the products of the body as an export would; embedding, head and norms stay as the checkpoint has
them, so that the rows of the report differ by nothing but the rounding. Activations are float32 throughout.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bench.corpus import sample_text
from edge_runtime.errors import ConfigError

from .calibration import calibration_ids, input_moments
from .checkpoint import Checkpoint
from .gemma import describe
from .gguf_blocks import BlockWeights
from .graph import Linear
from .model_writer import Progress
from .nf4 import NF4_BLOCK, nf4
from .quantize import gptq, input_factor, int4, to_float16
from .recipe import ExportRecipe
from .reference import Reference
from .tokenizer import build_tokenizer_model

CONTEXT = 512
"""Tokens that are read in one go: what stands before them is forgotten."""
_ROWS = 64
"""Of logits that exist at a time."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the products of a body are rounded."""

    name: str
    kind: Literal["fp16", "int4", "nf4"]
    text: str
    """What it is, for people."""
    block_size: int = 1
    symmetric: bool = False
    calibrated: bool = False

    @property
    def bits(self) -> float:
        """Of a weight, with its share of scale and zero point as they are stored."""
        if self.kind == "fp16":
            return 16.0
        zero_point = 4 if self.kind == "int4" and not self.symmetric else 0
        # For devices scales are float16, elsewhere float32.
        return 4 + ((16 if self.symmetric else 32) + zero_point) / self.block_size


SCHEMES = (
    Scheme("fp16", "fp16", "float16"),
    Scheme("int4-cpu", "int4", "blocks of 32, zero points, calibrated: as exported for a CPU", 32, False, True),
    Scheme("int4-64", "int4", "blocks of 64, symmetric, calibrated: as exported for a device", 64, True, True),
    Scheme("int4-128", "int4", "blocks of 128, symmetric, calibrated: the same", 128, True, True),
    Scheme("int4-64-plain", "int4", "blocks of 64, symmetric, not calibrated", 64, True),
    Scheme("int4-128-plain", "int4", "blocks of 128, symmetric, not calibrated", 128, True),
    Scheme("nf4", "nf4", "NF4, blocks of 64, no double quantisation", NF4_BLOCK),
)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of one scheme, over all predictions."""

    scheme: str
    text: str
    bits: float
    nll: float
    """Nats a token."""
    kl: float
    """KL(checkpoint || scheme), nats a token."""
    kl_error: float | None
    """Standard error of that mean, each context taken as one; ``None`` for a single context."""
    top1_agreement: float


@dataclass(frozen=True, slots=True)
class QualityReport:
    checkpoint: str
    text: str
    tokens: int
    """Predictions."""
    context: int
    calibration_tokens: int
    """0: nothing was calibrated."""
    nll: float
    """Of the checkpoint's own weights in float32."""
    rows: tuple[Likelihood, ...]
    left_out: tuple[str, ...]
    """Schemes whose blocks do not divide the checkpoint's rows."""


def measure_quality(
    checkpoint: Checkpoint,
    progress: Progress,
    *,
    text: tuple[str, str] | None = None,
    tokens: int = 2048,
    calibration: str = "builtin",
    schemes: Sequence[Scheme] = SCHEMES,
) -> QualityReport:
    """``text``: its name and content; the GPL-3 if left out. Raises ``ConfigError`` and ``CheckpointError``."""
    if checkpoint.config.family == "gemma4":
        raise ConfigError("quality: of Gemma 2 and 3 alone; compare a bundle of Gemma 4 by edge-export parity")
    fitting = [scheme for scheme in schemes if _fits(checkpoint, scheme)]
    tokenizer = build_tokenizer_model(checkpoint)
    name, content = text or ("GPL-3", sample_text())
    contexts = _contexts(tokenizer.bos_id, tokenizer.encode(content), tokens)
    recipe = ExportRecipe(source="", output="", precision="int4", calibration=calibration)
    if calibration == "none":
        raise ConfigError("calibration: none; leave the calibrated schemes out by --scheme instead")
    ids = calibration_ids(recipe, tokenizer) if any(scheme.calibrated for scheme in fitting) else None
    reference = Reference(checkpoint)
    judge = _Judge(reference, contexts, progress)
    rows = []
    with tempfile.TemporaryDirectory(prefix="quality.") as folder:
        moments = None if ids is None else input_moments(Path(folder), checkpoint, ids, progress)
        for scheme in fitting:
            for matrix, values in _rounded(checkpoint, scheme, moments, progress):
                reference.set_matrix(matrix, values)
            rows.append(judge.likelihood(scheme))
    return QualityReport(
        checkpoint=str(checkpoint.path),
        text=name,
        tokens=sum(len(one) - 1 for one in contexts),
        context=CONTEXT,
        calibration_tokens=0 if ids is None else len(ids),
        nll=judge.nll,
        rows=tuple(rows),
        left_out=tuple(scheme.name for scheme in schemes if scheme not in fitting),
    )


def _products(checkpoint: Checkpoint) -> list[tuple[str, ...]]:
    return [op.weights for op in describe(checkpoint.config).body if isinstance(op, Linear)]


def _fits(checkpoint: Checkpoint, scheme: Scheme) -> bool:
    names = [name for product in _products(checkpoint) for name in product]
    return all(checkpoint.tensor(name).shape[1] % scheme.block_size == 0 for name in names)


def _contexts(bos: int, ids: Sequence[int], tokens: int) -> list[Ids]:
    """``tokens`` predictions in pieces of at most ``CONTEXT``, each behind the begin-of-text token."""
    ids = ids[:tokens]
    if not ids:
        raise ConfigError("the text has no tokens to predict")
    return [np.array([bos, *ids[at : at + CONTEXT]], np.int64) for at in range(0, len(ids), CONTEXT)]


def _rounded(
    checkpoint: Checkpoint,
    scheme: Scheme,
    moments: Callable[[tuple[str, ...]], Floats] | None,
    progress: Progress,
) -> Iterator[tuple[str, Floats]]:
    """Every matrix of the body by its canonical name, [N, K] rounded."""
    products = _products(checkpoint)
    for done, names in enumerate(products):
        progress(f"round: {scheme.name}", done, len(products))
        factor = input_factor(moments(names)) if scheme.calibrated and moments is not None else None
        for name in names:
            source = checkpoint.tensor(name)
            rows = source.rows(0, source.shape[0])
            if scheme.kind == "fp16":
                yield name, to_float16(rows).astype(np.float32)
            elif scheme.kind == "nf4":
                yield name, nf4(rows).dequantise()
            elif factor is not None:
                yield name, _stored(gptq(rows, factor, scheme.block_size, symmetric=scheme.symmetric))
            else:
                yield name, _stored(int4(rows, scheme.block_size, symmetric=scheme.symmetric))
        checkpoint.release()
    progress(f"round: {scheme.name}", len(products), len(products))


def _stored(blocks: BlockWeights) -> Floats:
    """Symmetric ones are for devices, whose scales are float16."""
    if blocks.zero_points is not None:
        return blocks.dequantise()
    return replace(blocks, scales=blocks.scales.astype(np.float16).astype(np.float32)).dequantise()


class _Judge:
    """Compares what the model says now with what it said before a weight was changed."""

    def __init__(self, reference: Reference, contexts: Sequence[Ids], progress: Progress) -> None:
        self._reference, self._contexts, self._progress = reference, contexts, progress
        self._hidden = [reference.hidden(ids[:-1]) for ids in contexts]
        self.nll = float("nan")
        """Of what it said before; known once something was compared with it."""

    def likelihood(self, scheme: Scheme) -> Likelihood:
        tables = []
        for at, ids in enumerate(self._contexts):
            self._progress(f"read: {scheme.name}", at, len(self._contexts))
            tables.append(self._compare(at, self._reference.hidden(ids[:-1])))
        self._progress(f"read: {scheme.name}", len(tables), len(tables))
        means = np.array([one[:, 2].mean() for one in tables])
        error = float(means.std(ddof=1) / len(means) ** 0.5) if len(means) > 1 else None
        self.nll, nll, kl, same = (float(mean) for mean in np.concatenate(tables).mean(axis=0))
        return Likelihood(scheme.name, scheme.text, scheme.bits, nll, kl, error, same)

    def _compare(self, context: int, hidden: Any) -> NDArray[np.float64]:
        """[n, 4] NLL before and now, KL and same best token, of each prediction."""
        import torch

        known, wanted = self._hidden[context], torch.from_numpy(self._contexts[context][1:])
        found = []
        for start in range(0, len(hidden), _ROWS):
            part = slice(start, start + _ROWS)
            own = torch.log_softmax(self._reference.read(known[part]), dim=-1)
            now = torch.log_softmax(self._reference.read(hidden[part]), dim=-1)
            nll = [-one.gather(1, wanted[part, None])[:, 0].double() for one in (own, now)]
            kl = (own.exp() * (own - now)).sum(dim=-1, dtype=torch.float64)
            same = own.argmax(dim=-1) == now.argmax(dim=-1)
            found.append(torch.stack([*nll, kl, same.double()], dim=1))
        table: NDArray[np.float64] = torch.cat(found).numpy()
        return table
