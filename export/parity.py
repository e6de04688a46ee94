"""A bundle against the transformers reference, on the same token ids. Knows no recipe and changes nothing.

The reference of a GGUF is transformers in float32 with the GGUF's own weights: quantisation error is what an export
adds, not what the checkpoint already had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bench.corpus import SAMPLE_TOKENS, Prompt, prompts, sample_text
from edge_runtime.bundle import TARGET, Manifest
from edge_runtime.engines.opening import open_engine
from edge_runtime.engines.ort_settings import OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.errors import ConfigError
from edge_runtime.text.tokenizer import Tokenizer

from .checkpoint import Checkpoint
from .reference import Reference

_CHUNK = 8

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parity:
    """Of ``tokens`` predictions on running text; greedy runs apart."""

    tokens: int
    top1_agreement: float
    max_abs_logit_error: float
    mean_kl: float
    """KL(reference || bundle) in nats."""
    nll_reference: float
    nll_bundle: float
    greedy: tuple[GreedyRun, ...]


@dataclass(frozen=True, slots=True)
class GreedyRun:
    name: str
    equal: int
    """Tokens before the first difference."""
    of: int


def parity_prompts() -> tuple[Prompt, ...]:
    return prompts("open")


def sample_ids(tokenizer: Tokenizer, text: str | None = None, tokens: int = SAMPLE_TOKENS) -> Ids:
    """[tokens + 1] with the begin-of-text id: the GPL sample, or the start of ``text``."""
    return np.array(tokenizer.encode(sample_text() if text is None else text)[: tokens + 1], np.int64)


def measure_parity(
    directory: Path,
    manifest: Manifest,
    checkpoint: Checkpoint,
    *,
    text: str | None = None,
    greedy_prompts: Sequence[Prompt] = (),
    greedy_tokens: int = 64,
    deterministic: bool = False,
    head: Literal["screened", "full"] = "screened",
    threads: int = 0,
    reference: Reference | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Parity:
    """Against ``reference``, or one made from ``checkpoint``. ``threads`` of the engine, 0: its own choice.

    Raises ``ConfigError`` when they cannot be one model.
    """
    model = manifest.model(TARGET)
    if (checkpoint.config.hidden_size, checkpoint.config.num_caches) != (model.hidden_size, len(model.layers)):
        raise ConfigError(f"{checkpoint.path} is not the checkpoint of {directory}: its layers or their size differ")
    tokenizer = Tokenizer(directory / manifest.tokenizer.file)
    ids = sample_ids(tokenizer, text)[: model.max_context + 1]
    if len(ids) < 2:
        raise ConfigError("the text has no tokens to predict")
    progress("reference", 0, 1)
    reference = reference or Reference(checkpoint)
    wanted = reference.logits(ids[:-1])[:, : model.vocab_size]
    progress("reference", 1, 1)
    capacity = min(model.max_context, max(len(ids), 512))
    settings = OrtSettings(capacity=capacity, threads=threads, deterministic=deterministic, head=head)
    engine = open_engine(directory, manifest, TARGET, here(manifest), settings)
    try:
        rows = _compare_rows(engine, ids, wanted)
        runs = []
        for i, prompt in enumerate(greedy_prompts):
            progress("greedy", i, len(greedy_prompts))
            prompt_ids = np.array(tokenizer.encode(prompt.text), np.int64)
            if len(prompt_ids) + greedy_tokens > engine.info.capacity:
                continue
            runs.append(_greedy_run(engine, reference, prompt.name, prompt_ids, greedy_tokens))
        progress("greedy", 1, 1)
    finally:
        engine.close()
    table = np.array(list(rows))
    return Parity(
        tokens=len(table),
        top1_agreement=float(table[:, 0].mean()),
        max_abs_logit_error=float(table[:, 1].max()),
        mean_kl=float(table[:, 2].mean()),
        nll_reference=float(table[:, 3].mean()),
        nll_bundle=float(table[:, 4].mean()),
        greedy=tuple(runs),
    )


def parity_rows(found: Parity) -> list[tuple[str, str]]:
    """(figure, value) to print."""
    rows = [
        ("predictions", str(found.tokens)),
        ("top-1 agreement", f"{found.top1_agreement:.4f}"),
        ("max |dlogit|", f"{found.max_abs_logit_error:.2e}"),
        ("mean KL (nats)", f"{found.mean_kl:.5f}"),
        ("NLL reference", f"{found.nll_reference:.4f}"),
        ("NLL bundle", f"{found.nll_bundle:.4f}"),
    ]
    return rows + [(f"greedy equal: {run.name}", f"{run.equal} of {run.of}") for run in found.greedy]


def here(manifest: Manifest) -> Literal["onnxruntime", "reference"]:
    """What runs the bundle on a workstation: graphs for TensorRT on ONNX Runtime, slowly."""
    return "onnxruntime" if manifest.model(TARGET).dialect == "ort" else "reference"


def full_logits(engine: Engine, ids: Ids) -> Iterator[Floats]:
    """[chunk, vocab] views of successive rows; each is valid until the next is drawn."""
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        engine.forward(StepInput(0, chunk, start, HeadRequest(0, len(chunk))))
        yield np.stack([engine.logits(row) for row in range(len(chunk))])


def _compare_rows(engine: Engine, ids: Ids, wanted: Floats) -> list[tuple[float, float, float, float, float]]:
    """Per prediction: same argmax, max |difference|, KL, reference NLL, bundle NLL."""
    table = []
    at = 0
    for found in full_logits(engine, ids[:-1]):
        expected = wanted[at : at + len(found)]
        log_expected, log_found = log_softmax(expected), log_softmax(found)
        kl = (np.exp(log_expected) * (log_expected - log_found)).sum(axis=1)
        for row in range(len(found)):
            token = int(ids[at + row + 1])
            table.append(
                (
                    float(expected[row].argmax() == found[row].argmax()),
                    float(np.abs(expected[row] - found[row]).max()),
                    float(kl[row]),
                    -float(log_expected[row, token]),
                    -float(log_found[row, token]),
                )
            )
        at += len(found)
    return table


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logarithms: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logarithms


def _greedy_run(engine: Engine, reference: Reference, name: str, prompt: Ids, count: int) -> GreedyRun:
    found = engine_greedy(engine, prompt, count)
    # Behind a text that is equal so far, one forward says what the reference would write: as good as writing it, and
    # ten times as fast.
    logits = reference.logits(np.concatenate([prompt, np.array(found[:-1], np.int64)]))
    expected = logits[len(prompt) - 1 :].argmax(axis=1).tolist()
    equal = next((i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b), count)
    return GreedyRun(name, equal, count)


def engine_greedy(engine: Engine, prompt: Ids, count: int) -> list[int]:
    """Plain greedy decoding, end-of-text tokens being tokens like others."""
    step = engine.info.max_rows
    for start in range(0, len(prompt), step):
        chunk = prompt[start : start + step]
        last = start + len(chunk) == len(prompt)
        output = engine.forward(StepInput(0, chunk, start, HeadRequest(len(chunk) - 1, len(chunk)) if last else None))
    tokens: list[int] = []
    while output.head is not None and len(tokens) < count:
        tokens.append(int(output.head.argmax[0]))
        position = len(prompt) + len(tokens) - 1
        output = engine.forward(StepInput(0, np.array(tokens[-1:], np.int64), position, HeadRequest(0, 1)))
    return tokens
