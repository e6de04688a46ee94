"""How far drafts are from the target's laws, and the gradient of that. Knows no layer and no optimiser.

The head has thousands of rows and is not trained: its gradient is written down here, text by text, so that a matrix of
logits never outlives a text. With p the target's law and q the draft's, both over the rows of the head:

    cross-entropy  -sum p log q            d/dlogits = q - p
    acceptance      sum min(p, q)          d/dlogits = q * (1[q < p] - sum over q < p of q)

The second is what a drawn draft is accepted with, and the first gets there from afar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafter import Start


@dataclass(frozen=True, slots=True)
class LossWeights:
    later: float = 0.7
    """Each self-fed step counts this much less than the one before."""
    cosine: float = 0.2
    """Of 1 - cos(output, the target's row), both over its final norm."""
    acceptance: float = 0.0
    """Of 1 - sum min(p, q)."""


@dataclass(frozen=True, slots=True)
class HeadLoss:
    gradients: list[Tensor]
    """By step, [batch, n, D]: of the mean loss by the outputs."""
    cross_entropy: list[float]
    acceptance: list[float]
    """Means by step; the law is the target's over the rows of the head alone."""


def head_loss(start: Start, outputs: Sequence[Tensor], hidden: Tensor, given: LossWeights) -> HeadLoss:
    """Of drafts ``outputs`` [steps] of [batch, n, D] against the target's rows ``hidden`` [batch, n + steps, B]."""
    steps, (batch, n, _) = len(outputs), outputs[0].shape
    gradients = [torch.empty_like(y) for y in outputs]
    sums = torch.zeros(2, steps, dtype=torch.float64)
    with torch.no_grad():
        for text in range(batch):
            law = target_law(start, hidden[text, 1:])
            for step in range(steps):
                part = outputs[step][text]
                scale = given.later**step / (batch * n)
                p = law[step : step + n]
                gradients[step][text], found = _row_losses(start, part, p, given.acceptance, scale)
                sums[:, step] += found.cpu()
    mean = sums / (batch * n)
    return HeadLoss(gradients, mean[0].tolist(), mean[1].tolist())


def cosine_loss(start: Start, outputs: Sequence[Tensor], hidden: Tensor, given: LossWeights) -> Tensor:
    n = outputs[0].shape[1]
    scale = start.norms["hidden_scale"]
    total = torch.zeros((), device=hidden.device)
    for step, y in enumerate(outputs):
        wanted = hidden[:, step + 1 : step + 1 + n] * scale
        far = 1 - torch.cosine_similarity(y * scale, wanted, dim=-1).mean()
        total = total + given.cosine * given.later**step * far
    return total


def target_law(start: Start, hidden: Tensor) -> Tensor:
    """[rows, R] the target's law over the rows of the head."""
    return head_logits(start, hidden).softmax(-1)


def head_logits(start: Start, hidden: Tensor) -> Tensor:
    logits = hidden @ start.head.T
    cap = start.config.final_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _row_losses(start: Start, y: Tensor, p: Tensor, acceptance: float, scale: float) -> tuple[Tensor, Tensor]:
    """The gradient by ``y`` [n, D], and the sums of cross-entropy and of acceptance."""
    logits = head_logits(start, y)
    log_sum = logits.logsumexp(-1)
    entropy = (log_sum - (p * logits).sum(-1)).sum()
    cap = start.config.final_softcap
    slope = None if cap is None else 1 - (logits / cap).square_()
    q = logits.sub_(log_sum[:, None]).exp_()
    accepted = torch.minimum(p, q).sum()
    gradient = q - p
    if acceptance:
        below = q * (q < p)
        # d(1 - sum min)/dlogits = q * mass - below
        gradient += acceptance * (q * below.sum(-1, keepdim=True) - below)
    if slope is not None:
        gradient *= slope
    return (gradient @ start.head).mul_(scale), torch.stack([entropy, accepted]).double()
