"""Whether what a head says can be decided on at all. Knows no engine and no law."""

from __future__ import annotations

import math

import numpy as np

from ..errors import EngineError
from .protocol import HeadOutput


def refuse_unusable(head: HeadOutput, vocab_size: int) -> None:
    """Before any of its rows is decided on. Raises ``EngineError`` for ids of no token, and for logits that are not
    finite: a text must not be made of them, and an id would be read behind the end of a table. -inf is a logit.
    """
    finite = np.isfinite(head.logsumexp)
    if not finite.all():
        found = float(head.logsumexp[int(finite.argmin())])
        raise EngineError(f"the log-sum-exp of a row is {found}: the engine's output is not usable")
    ids, logits = head.candidate_ids, head.candidate_logits
    least, most = min(int(ids.min()), int(head.argmax.min())), max(int(ids.max()), int(head.argmax.max()))
    if not 0 <= least <= most < vocab_size:
        found_id = least if least < 0 else most
        raise EngineError(f"token id {found_id} of {vocab_size} out of a head: the engine's output is not usable")
    gathered = head.gathered
    if not (float(logits.max()) < math.inf and (gathered is None or float(gathered.max()) < math.inf)):
        raise EngineError("logits that are not finite out of a head: the engine's output is not usable")
