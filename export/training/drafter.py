"""The drafter that is trained: its parameters and its self-fed forward, all rows of a text at once. Knows no data.

Its arithmetic is that of ``export.training.checkpoint``. Step 1 reads the target's rows; step s > 1 takes, at every
row, the output of the step before for the target's row, as drafting will, and attends to the *true* entries up to its
own start and to its own self-fed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from export.model_config import GemmaConfig

from .checkpoint import LAYER, DrafterConfig, Ids, TrainedDrafter, expected_shapes
from .layer import LayerShape, Projected, capped, causal, finish, merge, mix, project, rms_norm, scores
from .target import TorchTarget, drafter_shape

Params = dict[str, Tensor]
"""By the names of the checkpoint. A norm is stored as what it adds to its start: start * (1 + delta)."""


@dataclass(frozen=True, slots=True)
class Start:
    """What training starts from, and what of it stays."""

    config: DrafterConfig
    shape: LayerShape
    norms: Mapping[str, Tensor]
    """The vectors that the deltas are relative to."""
    token_ids: Tensor
    """[R] rising"""
    head: Tensor
    """[R, D] the target's embedding rows at ``token_ids``; not trained"""

    def logits(self, y: Tensor, head: Tensor | None = None) -> Tensor:
        """[..., R] by the head, or by the rows of it that are given."""
        logits = y @ (self.head if head is None else head).T
        cap = self.config.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


@dataclass(frozen=True, slots=True)
class TextRows:
    """Texts as a drafter reads them."""

    embedded: Tensor
    """[batch, length, B] the target's embedding of every token, scaled"""
    hidden: Tensor
    """[batch, length, B] the target's rows"""


def start_from(target: TorchTarget, token_ids: Ids, projection: Tensor) -> tuple[Start, Params]:
    """A copy of the target's last layer behind ``projection``."""
    config = drafter_config(target.config, len(token_ids))
    ids = torch.from_numpy(token_ids).to(target.device)
    layer = {LAYER + name: values for name, values in target.last_layer().items()}
    norms = {name: values for name, values in layer.items() if values.ndim == 1}
    norms["embed_norm"] = torch.ones(config.backbone_hidden_size, device=target.device)
    norms["hidden_scale"] = 1.0 / target.final_norm
    norms["final_norm"] = target.final_norm
    params = {name: values.clone() for name, values in layer.items() if values.ndim == 2}
    params |= {name: torch.zeros_like(values) for name, values in norms.items()}
    params["projection"] = projection.clone()
    return Start(config, drafter_shape(target.config), norms, ids, target.embed[ids]), params


def drafter_config(config: GemmaConfig, rows: int) -> DrafterConfig:
    shape = drafter_shape(config)
    return DrafterConfig(
        backbone_hidden_size=config.hidden_size,
        hidden_size=config.hidden_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ffn=config.ffn_size,
        rope_theta=shape.rope_theta,
        rope_scale=shape.rope_scale,
        rms_eps=shape.rms_eps,
        query_scale=shape.query_scale,
        attn_softcap=shape.softcap,
        final_softcap=config.final_softcap,
        window=shape.window,
        qk_norm=config.qk_norm,
        embed_scale=config.embed_scale,
        head_rows=rows,
        vocab_size=config.vocab_size,
    )


def weights(start: Start, params: Mapping[str, Tensor]) -> Params:
    """The tensors themselves: deltas applied."""
    return {name: start.norms[name] * (1 + p) if name in start.norms else p for name, p in params.items()}


def drafts(start: Start, params: Mapping[str, Tensor], texts: TextRows, steps: int) -> list[Tensor]:
    """[steps] of [batch, n, D], n = length - steps: output i of step s is read at row i + s of the target."""
    w = weights(start, params)
    layer = {name.removeprefix(LAYER): values for name, values in w.items() if name.startswith(LAYER)}
    n = texts.hidden.shape[1] - steps
    place = torch.arange(n, device=texts.hidden.device)
    hidden, true, fed = texts.hidden[:, :n], None, []
    outputs: list[Tensor] = []
    for step in range(1, steps + 1):
        e = rms_norm(texts.embedded[:, step : step + n], w["embed_norm"], start.shape.rms_eps)
        stream = torch.cat([e, hidden * w["hidden_scale"]], dim=-1) @ w["projection"].T
        at = project(stream, layer, start.shape, place + step - 1)
        if true is None:
            true = at
            attended = causal(at, start.shape)
        else:
            fed.append(at)
            attended = _self_fed(at.q, true, fed, start.shape)
        stream = finish(stream, attended, layer, start.shape.rms_eps)
        hidden = rms_norm(stream, w["final_norm"], start.shape.rms_eps)
        outputs.append(hidden)
    return outputs


def trained(start: Start, params: Mapping[str, Tensor], record: dict[str, object]) -> TrainedDrafter:
    """As it is written to disk."""
    found = {name: np.array(p.detach().cpu().numpy(), np.float32) for name, p in weights(start, params).items()}
    tensors = {name: found[name] for name in expected_shapes(start.config)}
    return TrainedDrafter(start.config, tensors, np.array(start.token_ids.cpu().numpy(), np.int64), record)


def _self_fed(q: Tensor, true: Projected, fed: list[Projected], shape: LayerShape) -> Tensor:
    """Row i sees the true entries 0..i and, of each step behind the first, the entry of its own chain."""
    batch, heads, n, dim = q.shape
    rows = torch.arange(n, device=q.device)
    ahead = rows[None, :] > rows[:, None]
    if shape.window is not None:
        ahead |= rows[:, None] + len(fed) - rows[None, :] >= shape.window
    known = scores(q, true.k, shape).masked_fill(ahead, -torch.inf)
    grouped = q.view(batch, shape.kv_heads, heads // shape.kv_heads, n, dim)
    chain = [capped((grouped * at.k[:, :, None]).sum(-1, keepdim=True), shape) for at in fed]
    law = torch.cat([known, *chain], dim=-1).softmax(-1)
    out = mix(law[..., :n], true.v)
    for i, at in enumerate(fed):
        out = out + law[..., n + i : n + i + 1] * at.v[:, :, None]
    return merge(out)
