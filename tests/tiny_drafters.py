"""Random drafters for a tiny target, and what they compute, written out. Knows no test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engines.protocol import Floats, Ids
from export.checkpoint import Checkpoint, effective_norm
from export.heads_fit import gelu
from export.parallel_heads import FittedHeads, HeadsConfig, save_heads
from export.parallel_heads import expected_shapes as heads_shapes
from export.training.checkpoint import DrafterConfig, TrainedDrafter, expected_shapes, save_drafter
from export.training.reference import ReferenceCache, ReferenceOutput, reference_step

ROWS = 128


def some_ids(vocab_size: int, rows: int = ROWS) -> Ids:
    """Tokens that are characters, and the end of text."""
    chosen = np.random.default_rng(1).choice(np.arange(266, vocab_size), rows - 1, replace=False)
    return np.sort(np.concatenate([[1], chosen])).astype(np.int64)


def random_drafter(target: Checkpoint, seed: int = 0, *, width: int | None = None, **config: Any) -> TrainedDrafter:
    """``width`` of its own: then with a head and a feed of its own too."""
    of, ids = target.config, some_ids(target.config.vocab_size)
    own = width or of.hidden_size
    given: dict[str, Any] = {
        "backbone_hidden_size": of.hidden_size, "hidden_size": own, "heads": 4, "kv_heads": 2, "head_dim": 16,
        "ffn": 96, "rope_theta": 1e4, "rope_scale": 1.0, "rms_eps": of.rms_eps, "query_scale": 0.25,
        "attn_softcap": None, "final_softcap": of.final_softcap, "window": 8, "qk_norm": True,
        "embed_scale": of.embed_scale, "head_rows": len(ids), "vocab_size": of.vocab_size,
    }  # fmt: skip
    shape = DrafterConfig(**{**given, **config})
    shapes = expected_shapes(shape)
    if width is not None:
        shapes |= {"head": (len(ids), own), "feed": (shape.backbone_hidden_size, own)}
    tensors = _random(shapes, seed)
    if shape.backbone_hidden_size == of.hidden_size:
        tensors["hidden_scale"] = 1.0 / effective_norm(target, "final_norm")
    return TrainedDrafter(shape, tensors, ids, {"seed": seed})


def random_heads(target: Checkpoint, heads: int = 3, seed: int = 0) -> FittedHeads:
    of, ids = target.config, some_ids(target.config.vocab_size)
    shape = HeadsConfig(
        of.hidden_size, heads, 32, of.rms_eps, of.embed_scale, of.final_softcap, len(ids), of.vocab_size
    )
    tensors = _random(heads_shapes(shape), seed)
    tensors["hidden_scale"] = 1.0 / effective_norm(target, "final_norm")
    return FittedHeads(shape, tensors, ids, {"seed": seed})


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)

    def values(shape: tuple[int, ...]) -> NDArray[np.float64]:
        return 1.0 + 0.2 * rng.standard_normal(shape) if len(shape) == 1 else 0.2 * rng.standard_normal(shape)

    return {name: values(shape).astype(np.float32) for name, shape in shapes.items()}


def save(directory: Path, drafter: TrainedDrafter | FittedHeads) -> Path:
    directory.mkdir(parents=True)
    if isinstance(drafter, TrainedDrafter):
        save_drafter(directory, drafter, "F32")
    else:
        save_heads(directory, drafter)
    return directory


class Oracle:
    """What a drafter says behind a text, from scratch, in numpy."""

    def __init__(self, target: Checkpoint) -> None:
        table = target.tensor("embed")
        self.embed = table.rows(0, table.shape[0])

    def entries(self, drafter: TrainedDrafter, tokens: Ids, hidden: Floats) -> tuple[ReferenceCache, ReferenceOutput]:
        """All true ones; what the last of them says."""
        cache, output = ReferenceCache(), None
        for entry in range(len(tokens) - 1):
            output = self.entry(drafter, cache, int(tokens[entry + 1]), hidden[entry], entry)
        assert output is not None
        return cache, output

    def entry(
        self, drafter: TrainedDrafter, cache: ReferenceCache, token: int, hidden: Floats, entry: int
    ) -> ReferenceOutput:
        head = drafter.tensors.get("head", self.embed[drafter.token_ids])
        return reference_step(drafter, cache, self.embed[token], hidden, entry, head)

    def heads(self, heads: FittedHeads, token: int, hidden: Floats) -> Floats:
        """[heads, R] logits"""
        config, t = heads.config, heads.tensors
        e = self.embed[token] * np.float32(config.embed_scale)
        e = e / np.sqrt((e * e).mean() + config.rms_eps) * t["embed_norm"]
        u = np.concatenate([e, hidden * t["hidden_scale"]])
        rows = []
        for i in range(config.heads):
            a = t[f"heads.{i}.mix"] @ u
            rows.append((a + t[f"heads.{i}.down"] @ gelu(t[f"heads.{i}.up"] @ a)) * t["out_scale"])
        logits: Floats = np.stack(rows) @ self.embed[heads.token_ids].T
        return logits
