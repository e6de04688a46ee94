"""The target reads a text in one go, whatever wrote it. Knows no drafter and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..engines.protocol import Engine, HeadRequest, Ids, StepInput

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


def as_ids(tokens: Sequence[int]) -> Ids:
    return np.asarray(tokens, np.int64)
