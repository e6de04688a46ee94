"""How far drafts are from the target's laws, and the gradient of that. Knows no layer and no optimiser.

The head has thousands of rows and is not trained: its gradient is written down here, text by text, so that a matrix of
logits never outlives a text. With p the target's law and q the draft's, both over the rows of the head:

    cross-entropy  -sum p log q            d/dlogits = q sum p - p
    acceptance      sum min(p, q)          d/dlogits = q * (1[q < p] - sum over q < p of q)

The second is what a drawn draft is accepted with, and the first gets there from afar. Where a text is judged by some
rows of the head (``labels``), each counts for as many as it stands for, in both laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafter import Start
from .labels import JudgedBy


@dataclass(frozen=True, slots=True)
class LossWeights:
    later: float = 0.7
    """Each self-fed step counts this much less than the one before."""
    cosine: float = 0.2
    """Of 1 - cos(output, the target's row), both over its final norm."""
    acceptance: float = 1.0
    """Of 1 - sum min(p, q)."""


@dataclass(frozen=True, slots=True)
class HeadLoss:
    gradients: list[Tensor]
    """By step, [batch, n, D]: of the mean loss by the outputs."""
    cross_entropy: list[float]
    acceptance: list[float]
    """Means by step; the law is the target's over the rows of the head alone."""


def head_loss(
    start: Start,
    outputs: Sequence[Tensor],
    hidden: Tensor,
    given: LossWeights,
    judged: Sequence[JudgedBy] | None = None,
) -> HeadLoss:
    """Of drafts ``outputs`` [steps] of [batch, n, D] against the target's rows ``hidden`` [batch, n + steps, B].

    ``judged``: by text; ``None``: all of the head counts.
    """
    steps, (batch, n, _) = len(outputs), outputs[0].shape
    gradients = [torch.empty_like(y) for y in outputs]
    sums = torch.zeros(2, steps, dtype=torch.float64)
    with torch.no_grad():
        for text in range(batch):
            by = None if judged is None else judged[text]
            head = start.head if by is None else start.head[by.rows]
            law = _law(start, hidden[text, 1:], head, by)
            for step in range(steps):
                scale = given.later**step / (batch * n)
                gradient, found = _judge(start, outputs[step][text], law[step : step + n], head, by, given.acceptance)
                gradients[step][text] = gradient.mul_(scale)
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


def _law(start: Start, hidden: Tensor, head: Tensor, by: JudgedBy | None) -> Tensor:
    """[rows, m]; where a sample stands for the head it sums to 1 on average only, and must not be made to."""
    logits = start.logits(hidden, head)
    if by is None:
        return logits.softmax(-1)
    return logits.add_(by.offset).sub_(by.normaliser[1:, None]).exp_()


def _judge(
    start: Start, y: Tensor, p: Tensor, head: Tensor, by: JudgedBy | None, acceptance: float
) -> tuple[Tensor, Tensor]:
    """The gradient by ``y`` [n, D], and the sums of cross-entropy and of acceptance."""
    logits = start.logits(y, head)
    cap = start.config.final_softcap
    slope = None if cap is None else 1 - (logits / cap).square_()
    if by is not None:
        logits += by.offset
    log_sum, mass = logits.logsumexp(-1), p.sum(-1)
    entropy = (log_sum * mass - torch.linalg.vecdot(p, logits)).sum()
    q = logits.sub_(log_sum[:, None]).exp_()
    gradient = torch.sub(q * mass[:, None], p)
    accepted = torch.minimum(p, q).sum()
    if acceptance:
        below = q * (q < p)
        # d(1 - sum min)/dlogits = q * mass below - below
        gradient += acceptance * (q * below.sum(-1, keepdim=True) - below)
    if slope is not None:
        gradient *= slope
    return gradient @ head, torch.stack([entropy, accepted]).double()
