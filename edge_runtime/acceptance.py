"""Accept, recover, bonus: the maths of one verified row. Knows no engine, no request, no random state.

Uniforms and noise are arguments. Each row is decided by itself, so that verification may stop at the first
rejection and the head may run group by group; ``verify`` walks a whole step.

Sources: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for rejection
sampling; Gumbel noise shared by draft and target, keyed by position, makes the text independent of the draft
(compare Daliri et al. 2024, arXiv 2408.07978). ``threshold_row`` is a lossy policy kept for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edge_runtime.sampling import Distribution, Probs


@dataclass(frozen=True, slots=True)
class RowDecision:
    accepted: bool
    token: int
    """The draft token when accepted, else the recovered token."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of a step of K drafts."""

    accepted: tuple[int, ...]
    next_token: int
    kind: Literal["recovered", "bonus"]

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that the step commits, in order; never empty."""
        return (*self.accepted, self.next_token)


def pick(law: Distribution, uniform: float) -> int:
    """Inverse of the cumulative law, in order of token id. ``uniform`` in [0, 1)."""
    cumulative = law.probs.cumsum()
    index = int(cumulative.searchsorted(uniform * cumulative[-1], side="right"))
    return int(law.ids[min(index, len(law.ids) - 1)])


def bonus(target: Distribution, uniform: float) -> int:
    """The token after a full acceptance: a plain draw from the row behind the last draft."""
    return pick(target, uniform)


def gumbel_pick(law: Distribution, noise: Probs) -> int:
    """argmax(log law + noise), a draw from ``law``. ``noise`` [n] is standard Gumbel at ``law.ids``."""
    return int(law.ids[int((np.log(law.probs) + noise).argmax())])


def accept_by_probability(target_prob: float, draft_prob: float, uniform: float) -> bool:
    """Whether a draft token stays: with probability min(1, target / draft). ``uniform`` in [0, 1).

    A one-hot draft has ``draft_prob`` 1. Needs no law: under a pure temperature law the row's log-sum-exp and
    one gathered logit do. Raises ``ValueError`` when ``draft_prob`` is zero: no such token can be drafted.
    """
    if not draft_prob > 0.0:
        raise ValueError("a draft token must have a positive probability under its own draft law")
    return uniform * draft_prob < target_prob


def residual(target: Distribution, draft: Distribution | None, draft_token: int) -> Distribution | None:
    """normalise(max(target - draft, 0)); ``draft`` ``None`` is one-hot at ``draft_token``.

    ``None`` where nothing is left, which is when the laws are equal: there a rejection has probability zero.
    """
    if draft is None:
        left = np.where(target.ids == draft_token, 0.0, target.probs)
    else:
        left = target.probs - draft.probs_at(target.ids)
    keep = left > 0.0
    if not keep.any():
        return None
    left = left[keep]
    return Distribution(target.ids[keep], left / left.sum())


def recover(target: Distribution, draft: Distribution | None, draft_token: int, uniform: float) -> int:
    """The token in place of a rejected draft, drawn from the residual.

    Where rounding alone led to the rejection the residual is empty, and the target's own law answers.
    """
    return pick(residual(target, draft, draft_token) or target, uniform)


def greedy_row(argmax: int, draft_token: int) -> RowDecision:
    return RowDecision(argmax == draft_token, argmax)


def rejection_row(
    target: Distribution,
    draft_token: int,
    draft: Distribution | None,
    uniform_accept: float,
    uniform_pick: float,
) -> RowDecision:
    """Lossless for unseeded requests, and the rule that accepts most. ``draft`` ``None`` is one-hot."""
    draft_prob = 1.0 if draft is None else draft.prob(draft_token)
    if accept_by_probability(target.prob(draft_token), draft_prob, uniform_accept):
        return RowDecision(True, draft_token)
    return RowDecision(False, recover(target, draft, draft_token, uniform_pick))


def shared_noise_row(target: Distribution, draft_token: int, noise: Probs) -> RowDecision:
    """Lossless and the same text for any draft and any K: the target's token never looks at the draft.

    ``noise`` [n] at ``target.ids``, keyed by (seed, position); a draft that used the same noise agrees often.
    """
    return greedy_row(gumbel_pick(target, noise), draft_token)


def threshold_row(
    target_prob_of_draft: float, draft_token: int, target_argmax: int, threshold: float = 0.5
) -> RowDecision:
    """LOSSY: keep a draft that the target gives at least ``threshold``, else cut and take the target's best.

    The rule of the first source article. The token after a cut may equal the draft. With a threshold above
    one half the text is that of greedy decoding; below it, the text depends on the draft.
    """
    accepted = target_prob_of_draft >= threshold
    return RowDecision(accepted, draft_token if accepted else target_argmax)


def verify(
    draft_tokens: Sequence[int], judge: Callable[[int, int], RowDecision], draw_bonus: Callable[[], int]
) -> Verification:
    """Walk K drafts until the first rejection.

    ``judge(row, draft_token)`` decides row 0..K-1 and is not called past a rejection; ``draw_bonus()`` is
    called after a full acceptance only (row K), also for K = 0.
    """
    for row, draft_token in enumerate(draft_tokens):
        decision = judge(row, draft_token)
        if not decision.accepted:
            return Verification(tuple(draft_tokens[:row]), decision.token, "recovered")
    return Verification(tuple(draft_tokens), draw_bonus(), "bonus")


def verify_greedy(argmax: Sequence[int], draft_tokens: Sequence[int]) -> Verification:
    """``argmax`` [K+1] of the target's rows, ``draft_tokens`` [K]."""
    return verify(
        draft_tokens,
        lambda row, draft_token: greedy_row(int(argmax[row]), draft_token),
        lambda: int(argmax[len(draft_tokens)]),
    )


def verify_rejection(
    targets: Sequence[Distribution],
    draft_tokens: Sequence[int],
    drafts: Sequence[Distribution | None],
    uniforms: Sequence[tuple[float, float]],
) -> Verification:
    """``targets`` [K+1], ``draft_tokens`` [K], ``drafts`` [K], ``uniforms`` [K+1] of (accept, pick)."""
    return verify(
        draft_tokens,
        lambda row, draft_token: rejection_row(targets[row], draft_token, drafts[row], *uniforms[row]),
        lambda: bonus(targets[len(draft_tokens)], uniforms[len(draft_tokens)][1]),
    )


def verify_shared_noise(
    targets: Sequence[Distribution], draft_tokens: Sequence[int], noises: Sequence[Probs]
) -> Verification:
    """``targets`` [K+1], ``draft_tokens`` [K], ``noises`` [K+1], each at the ids of its target row."""
    return verify(
        draft_tokens,
        lambda row, draft_token: shared_noise_row(targets[row], draft_token, noises[row]),
        lambda: gumbel_pick(targets[len(draft_tokens)], noises[len(draft_tokens)]),
    )


def acceptance_probability(target: Distribution, draft: Distribution | None, draft_token: int) -> float:
    """Chance that a row accepts: sum min(target, draft) of a drawn draft, target(draft_token) of a one-hot.

    An upper bound for what any lossless rule can reach with this draft (the maximal coupling).
    """
    if draft is None:
        return target.prob(draft_token)
    return math.fsum(np.minimum(target.probs, draft.probs_at(target.ids)).tolist())
