"""A tiny target, features of its texts and short runs on them: what training is tested on. Knows no test."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tiny_bundle
import torch
from tiny_models import TinyConfig, save_tiny

from edge_runtime.bench.corpus import sample_text
from export.checkpoint import open_checkpoint
from export.training.drafter import Params, Start, start_from
from export.training.gather import GatherPlan
from export.training.session import Wanted
from export.training.target import TorchTarget
from export.training.trainer import TrainingPlan

GATHER = GatherPlan(
    tokens=6000,
    natural_length=48,
    drawn_length=32,
    held_tokens=400,
    drawn_rows=512,
    batch_tokens=480,
    drawn_batch=40,
    statistics_tokens=2000,
)
PLAN = TrainingPlan(steps=40, warmup_steps=4, matrix_rate=0.05, vector_rate=0.02, averaged=0.8)


@cache
def place() -> Path:
    made = Path(tempfile.mkdtemp(prefix="edge-training-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def corpus() -> Path:
    directory = place() / "corpus"
    text = sample_text()
    for domain in range(2):
        (directory / f"domain{domain}").mkdir(parents=True)
        for file in range(3):
            at = (3 * domain + file) * 1500
            (directory / f"domain{domain}" / f"{file}.txt").write_text(text[at : at + 1500], encoding="utf-8")
    return directory


def wanted(output: Path, plan: TrainingPlan = PLAN, **changes: Any) -> Wanted:
    given = Wanted(checkpoint(), (corpus(),), output, plan, GATHER, head_rows=256, micro_tokens=240)
    return replace(given, **changes)


@cache
def features() -> Path:
    """Gathered once; a run of a single step leaves them."""
    from export.training.session import FEATURES_NAME, Shown, train_drafter

    output = place() / "gathered"
    train_drafter(wanted(output, replace(PLAN, steps=1)), Shown())
    return output / FEATURES_NAME


@cache
def target(family: str = "gemma3") -> TorchTarget:
    return TorchTarget(open_checkpoint(random_checkpoint(family)))


@cache
def checkpoint() -> Path:
    """A target with something to learn: it says clearly, by its layers, what follows a token; two layers of it are not
    beyond what one can find out in seconds."""
    from safetensors.numpy import load_file, save_file

    directory = save_tiny(place() / "target", TinyConfig(layers=2, vocab=512, context=128))
    (directory / "tokenizer.model").write_bytes(tiny_bundle.tiny_tokenizer())
    (file,) = directory.glob("*.safetensors")
    weights = load_file(file)
    for name in weights:
        if "post_" in name or name == "model.norm.weight":
            weights[name] += 3.0
    save_file(weights, file, metadata={"format": "pt"})
    return directory


@cache
def random_checkpoint(family: str = "gemma3") -> Path:
    return save_tiny(place() / family, TinyConfig(family=family, layers=6, window=8))


def random_drafter(family: str = "gemma3", window: int | None = None) -> tuple[Start, Params]:
    """Nothing in it is at its start: a slip in any tensor shows."""
    torch.manual_seed(7)
    model = target(family)
    width = model.config.hidden_size
    ids = np.sort(np.random.default_rng(3).choice(model.config.vocab_size, 128, replace=False)).astype(np.int64)
    start, params = start_from(model, ids, torch.randn(width, 2 * width) / width**0.5)
    start = replace(start, config=replace(start.config, window=window), shape=replace(start.shape, window=window))
    return start, {name: p + 0.1 * torch.randn_like(p) for name, p in params.items()}
