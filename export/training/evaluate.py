"""Held-out acceptance by position. Knows no training.

Along a text that the target wrote, position s counts as it will while drafting: only where the drafts before it were
kept. A drawn draft is kept with min(p, q), and what is kept is the text's own token with min(1, q/p) of its chance, so
that is the weight with which a row goes on to the next position. A greedy draft goes on where text, target and draft
agree. The target's law is over its whole vocabulary: what the reduced head cannot say counts as rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .drafter import Start, TextRows, drafts
from .features import Part


@dataclass(frozen=True, slots=True)
class Acceptance:
    rows: int
    sampled: tuple[float, ...]
    """By position, given that the ones before were accepted: sum of min(p, q) at temperature 1."""
    greedy: tuple[float, ...]
    """By position likewise: draft and target agree on the best token."""
    covered: float
    """The target's mass on the rows of the head."""

    @property
    def sampled_length(self) -> float:
        """Expected accepted drafts of three."""
        return float(np.cumprod(self.sampled[:3]).sum())


def held_acceptance(
    start: Start, params: Mapping[str, Tensor], embed: Tensor, part: Part, *, steps: int = 4, texts: int | None = None
) -> Acceptance:
    """On the first ``texts`` texts of a held-out part."""
    if part.normaliser is None or part.best is None:
        raise ValueError(f"{part.directory.name} is no held-out part")
    device = start.head.device
    row_of = torch.full((start.config.vocab_size,), -1, dtype=torch.int64, device=device)
    row_of[start.token_ids] = torch.arange(len(start.token_ids), device=device)
    sums = torch.zeros(4, steps, dtype=torch.float64)
    covered, rows = 0.0, 0
    with torch.inference_mode():
        for i in range(min(part.done, texts or part.done)):
            ids = torch.from_numpy(part.tokens[i].astype(np.int64)).to(device)
            hidden = torch.from_numpy(part.hidden[i].astype(np.float32)).to(device)
            read = TextRows((embed[ids] * start.config.embed_scale)[None], hidden[None])
            outputs = drafts(start, params, read, steps)
            n = outputs[0].shape[1]
            normaliser = torch.from_numpy(np.array(part.normaliser[i])).to(device)
            best = torch.from_numpy(part.best[i].astype(np.int64)).to(device)
            law = (start.logits(hidden) - normaliser[:, None]).exp()
            covered += float(law.sum())
            rows += len(ids)
            sums += _one_text(start, outputs, law, best, row_of[ids], ids, n).cpu()
    sampled, greedy = sums[0] / sums[1].clamp_min(1e-9), sums[2] / sums[3].clamp_min(1e-9)
    return Acceptance(rows, tuple(sampled.tolist()), tuple(greedy.tolist()), covered / max(1, rows))


def _one_text(
    start: Start, outputs: list[Tensor], law: Tensor, best: Tensor, row_of: Tensor, ids: Tensor, n: int
) -> Tensor:
    """[4, steps]: accepted and tried, drawn and greedy."""
    steps = len(outputs)
    sums = torch.zeros(4, steps, dtype=torch.float64)
    drawn, agreed = torch.ones(n, device=law.device), torch.ones(n, device=law.device)
    for step, y in enumerate(outputs):
        p, wanted = law[step + 1 : step + 1 + n], best[step + 1 : step + 1 + n]
        q = start.logits(y[0]).softmax(-1)
        hit = (start.token_ids[q.argmax(-1)] == wanted).float()
        accepted = torch.minimum(p, q).sum(-1)
        found = (drawn * accepted, drawn, agreed * hit, agreed)
        sums[:, step] = torch.stack([values.double().sum() for values in found]).cpu()
        if step + 1 < steps:
            token, row = ids[step + 2 : step + 2 + n], row_of[step + 2 : step + 2 + n]
            here = torch.arange(n, device=law.device)
            ratio = q[here, row.clamp_min(0)] / p[here, row.clamp_min(0)].clamp_min(1e-30)
            drawn = drawn * torch.where(row >= 0, ratio.clamp_max(1.0), torch.zeros_like(ratio))
            agreed = agreed * hit * (token == wanted)
    return sums
