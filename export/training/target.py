"""The target in torch, float32: its hidden rows on a text, and texts drawn from it. Knows no drafter and no file.

Compared with transformers in the tests. It is here because batched drawing with transformers' caches repeats the keys
for every head and every token, and because the rows that a text leaves behind are what training wants of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from edge_runtime.bundle import MANIFEST_NAME, file_sha256, read_manifest
from edge_runtime.errors import CheckpointError, ConfigError
from export.checkpoint import Checkpoint, effective_norm, open_checkpoint
from export.model_config import GemmaConfig

from .layer import LayerShape, Projected, causal, finish, project, rms_norm, scores, weigh

_SLAB = 16_384


@dataclass(frozen=True, slots=True)
class HiddenRows:
    hidden: Tensor
    """[batch, rows, width] after the final norm"""
    before_last: Tensor
    """[batch, rows, width] the residual stream that enters the last layer"""


def target_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, or the one that a bundle was made from, if it is still where the recipe says.

    Raises ``CheckpointError`` or ``BundleError``.
    """
    if not (path / MANIFEST_NAME).is_file():
        return open_checkpoint(path)
    manifest = read_manifest(path)
    source = Path(str(manifest.recipe.get("source", "")))
    if not source.exists():
        raise CheckpointError(
            f"{path}: its checkpoint {source} is not there; give the checkpoint instead of the bundle"
        )
    wanted = manifest.sources[0].sha256 if manifest.sources else None
    if source.is_file() and wanted is not None and file_sha256(source) != wanted:
        raise CheckpointError(f"{source} is not the checkpoint that {path} was made from: its sha256 differs")
    return open_checkpoint(source)


class TorchTarget:
    """Gemma 2 or 3. Raises ``ConfigError`` for a device that is not there."""

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device {device}: torch sees no such device")
        if checkpoint.config.family not in ("gemma2", "gemma3"):
            raise ConfigError(f"{checkpoint.path}: drafters are trained for Gemma 2 and 3; Gemma 4 has its assistants")
        self.config: GemmaConfig = checkpoint.config
        self.device = torch.device(device)
        self.embed = self._matrix(checkpoint, "embed")
        """[vocab, width], unscaled"""
        self.final_norm = self._norm(checkpoint, "final_norm")
        self.layers = [self._layer(checkpoint, i) for i in range(self.config.num_layers)]
        checkpoint.release()

    def hidden(self, ids: Tensor, cache: TextCache | None = None) -> HiddenRows:
        """Of whole texts ``ids`` [batch, rows] from position 0; ``cache`` receives their keys and values."""
        stream = self.embed[ids] * self.config.embed_scale
        positions = torch.arange(ids.shape[1], device=self.device)
        before = stream
        for i, weights in enumerate(self.layers):
            before = stream
            shape = layer_shape(self.config, i)
            at = project(stream, weights, shape, positions)
            if cache is not None:
                cache.write(i, at, 0)
            stream = finish(stream, causal(at, shape), weights, shape.rms_eps)
        return HiddenRows(rms_norm(stream, self.final_norm, self.config.rms_eps), before)

    def extend(self, ids: Tensor, cache: TextCache, position: int) -> Tensor:
        """Hidden rows [batch, 1, width] of one token each, ``ids`` [batch, 1], at ``position`` of their texts."""
        stream = self.embed[ids] * self.config.embed_scale
        positions = torch.tensor([position], device=self.device)
        for i, weights in enumerate(self.layers):
            shape = layer_shape(self.config, i)
            at = project(stream, weights, shape, positions)
            cache.write(i, at, position)
            first = 0 if shape.window is None else max(0, position + 1 - shape.window)
            k, v = (x[:, :, first : position + 1] for x in (cache.keys[i], cache.values[i]))
            stream = finish(stream, weigh(scores(at.q, k, shape), v), weights, shape.rms_eps)
        return rms_norm(stream, self.final_norm, self.config.rms_eps)

    def draw(self, prompts: Tensor, length: int, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Texts at temperature 1 that begin with ``prompts`` [batch, n], and their hidden rows.

        Only tokens of ``rows`` (token ids) are drawn: the whole head would take longer than all layers.
        Returns ids [batch, length] and hidden rows [batch, length, width].
        """
        batch, start = prompts.shape
        head = self.embed[rows]
        ids = torch.empty(batch, length, dtype=torch.int64, device=self.device)
        hidden = torch.empty(batch, length, self.config.hidden_size, device=self.device)
        cache = TextCache(self.config, batch, length, self.device)
        ids[:, :start] = prompts
        hidden[:, :start] = self.hidden(prompts, cache).hidden
        for at in range(start, length):
            law = self.logits(hidden[:, at - 1], head).softmax(-1)
            ids[:, at] = rows[torch.multinomial(law, 1, generator=generator)[:, 0]]
            hidden[:, at : at + 1] = self.extend(ids[:, at : at + 1], cache, at)
        return ids, hidden

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        logits = hidden @ head.T
        cap = self.config.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def last_layer(self) -> dict[str, Tensor]:
        return self.layers[-1]

    def _layer(self, checkpoint: Checkpoint, i: int) -> dict[str, Tensor]:
        matrices = ("q", "k", "v", "o", "gate", "up", "down")
        norms = ["attn_norm", "post_attn_norm", "ffn_norm", "post_ffn_norm"]
        norms += ["q_norm", "k_norm"] if self.config.qk_norm else []
        found = {name: self._matrix(checkpoint, f"layers.{i}.{name}") for name in matrices}
        return found | {name: self._norm(checkpoint, f"layers.{i}.{name}") for name in norms}

    def _matrix(self, checkpoint: Checkpoint, name: str) -> Tensor:
        source = checkpoint.tensor(name)
        values = np.empty(source.shape, np.float32)
        for start in range(0, source.shape[0], _SLAB):
            stop = min(start + _SLAB, source.shape[0])
            values[start:stop] = source.rows(start, stop)
        return torch.from_numpy(values).to(self.device)

    def _norm(self, checkpoint: Checkpoint, name: str) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(effective_norm(checkpoint, name))).to(self.device)


class TextCache:
    """Keys and values of texts of one length; where they end is the caller's to know."""

    def __init__(self, config: GemmaConfig, batch: int, length: int, device: torch.device) -> None:
        shape = (batch, config.num_kv_heads, length, config.head_dim)
        self.keys = [torch.empty(shape, device=device) for _ in config.layers]
        self.values = [torch.empty(shape, device=device) for _ in config.layers]

    def write(self, layer: int, at: Projected, position: int) -> None:
        stop = position + at.k.shape[2]
        self.keys[layer][:, :, position:stop] = at.k
        self.values[layer][:, :, position:stop] = at.v


def layer_shape(config: GemmaConfig, i: int) -> LayerShape:
    layer = config.layers[i]
    return LayerShape(
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.rms_eps,
        config.query_scale,
        config.attn_softcap,
        layer.window,
        layer.rope_theta,
        layer.rope_scale,
    )


def drafter_shape(config: GemmaConfig) -> LayerShape:
    """The last layer's, seeing all of the text: what a drafter copies from may lie far back."""
    return replace(layer_shape(config, config.num_layers - 1), window=None)
