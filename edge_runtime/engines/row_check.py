"""Is a row the same bits whatever runs beside it? Asked of an engine that promises it. Knows no kernel.

Which kernels a library picks depends on the processor, on its caches and on the release: a promise about bits that was
tested on one machine must be looked at on each.
"""

from __future__ import annotations

import numpy as np

from ..errors import ConfigError
from .protocol import Engine, HeadRequest, Ids, StepInput

_ROWS = 8
_DEEP = 61
"""Where the second look begins: attention changes its ways behind 64 keys."""


def refuse_unlike_rows(engine: Engine, max_head_rows: int) -> None:
    """Some forwards of few rows over slot 0, which is void afterwards. Raises ``ConfigError``."""
    info = engine.info
    most = min(_ROWS, info.max_rows, max_head_rows)
    ids = (np.arange(_ROWS, dtype=np.int64) * 7919 + 11) % info.vocab_size
    try:
        for position in (0, _DEEP):
            rows = min(most, info.capacity - position)
            if rows < 3:
                continue
            whole = _bits(engine, ids[:rows], position, rows)
            for size in (2, 3):
                if _bits(engine, ids[:rows], position, size) != whole:
                    raise ConfigError(
                        f"the deterministic mode cannot be had here: on this processor a row of {rows} has other bits "
                        f"than a row of {size} (from position {position} on); leave it out, and texts are equal up to "
                        "near-ties"
                    )
    finally:
        engine.forget(0)


def _bits(engine: Engine, ids: Ids, position: int, size: int) -> list[bytes]:
    """What is said of each token, fed ``size`` at a time."""
    found = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        output = engine.forward(StepInput(0, part, position + start, HeadRequest(0, len(part), 0.8, part)))
        head = output.head
        assert head is not None and head.gathered is not None  # both were asked for
        per_row = (output.hidden, head.candidate_ids, head.candidate_logits, head.logsumexp, head.gathered)
        found += [b"".join(array[row].tobytes() for array in per_row) for row in range(len(part))]
    return found
