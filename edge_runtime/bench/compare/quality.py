"""Texts against the target itself, as it reads them. Knows no drafter and no clock."""

from __future__ import annotations

from ..reading import Reading
from ..texts import Spoken, Task, first_difference
from .record import Quality, Sameness

NEAR_TIE = 0.25
"""Logits between two tokens that may change places: rows that run in other numbers differ in their last digits."""


def judged(
    ours: Reading, theirs: Reading, task: Task, law: str, method: str, spoken: Spoken, plain: Spoken, *, greedy: bool
) -> Quality:
    """A text beside the plain one of its round, both read. ``greedy``: the two ought to be the same."""
    place = first_difference(plain.result.tokens, spoken.result.tokens)
    gap = None
    if place is not None:
        gap = theirs.gap(place, plain.result.tokens[place], spoken.result.tokens[place])
    likelihood = spoken.result.mean_log_likelihood
    return Quality(
        prompt=task.prompt,
        law=law,
        method=method,
        nll=ours.nll,
        plain_nll=theirs.nll,
        regret=float(ours.regrets.mean()),
        recorded_nll_off=0.0 if likelihood is None else -likelihood - ours.nll,
        same_as_plain=_sameness(place, gap) if greedy else None,
        differs_at=place if greedy else None,
        gap=gap if greedy else None,
    )


def _sameness(place: int | None, gap: float | None) -> Sameness:
    if place is None:
        return "identical"
    return "near-tie" if gap is not None and gap <= NEAR_TIE else "differs"
