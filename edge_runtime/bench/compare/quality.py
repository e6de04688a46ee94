"""Texts against the target itself: it reads each in one go, whatever wrote it. Knows no drafter and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engines.protocol import Engine, HeadRequest, StepInput
from .record import Quality, Sameness
from .texts import Spoken, Task, as_ids, first_difference

NEAR_TIE = 0.25
"""Logits between two tokens that may change places: rows that run in other numbers differ in their last digits."""
_ROWS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the target says of a text. [n] each."""

    logprobs: NDArray[np.float64]
    regrets: NDArray[np.float64]
    """Of its best token over the text's."""
    candidate_ids: NDArray[np.int64]
    """[n, C]"""
    candidate_logits: NDArray[np.float32]

    @property
    def nll(self) -> float:
        return -float(self.logprobs.mean())

    def gap(self, place: int, left: int, right: int) -> float | None:
        """Logits between two tokens at a place; ``None`` where one of them is no candidate."""
        known = dict(zip(self.candidate_ids[place].tolist(), self.candidate_logits[place].tolist(), strict=True))
        return abs(known[left] - known[right]) if left in known and right in known else None


def read(engine: Engine, prompt: Sequence[int], tokens: Sequence[int], most_rows: int) -> Reading:
    """Teacher forcing in slot 0, whose cache holds the prompt but for its last token, and may be written behind it."""
    fed, position = as_ids([prompt[-1], *tokens[:-1]]), len(prompt) - 1
    wanted = as_ids(tokens)
    rows = min(_ROWS, most_rows)
    logprobs, regrets, ids, logits = [], [], [], []
    for start in range(0, len(fed), rows):
        chunk, gather = fed[start : start + rows], wanted[start : start + rows]
        request = HeadRequest(0, len(chunk), gather_ids=gather)
        head = engine.forward(StepInput(0, chunk, position + start, request)).head
        assert head is not None and head.gathered is not None  # both were asked for
        gathered = head.gathered.astype(np.float64)
        logprobs.append(gathered - head.logsumexp)
        regrets.append(head.candidate_logits[:, 0] - gathered)
        ids.append(head.candidate_ids.copy())
        logits.append(head.candidate_logits.copy())
    return Reading(np.concatenate(logprobs), np.concatenate(regrets), np.concatenate(ids), np.concatenate(logits))


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
