"""How rows run in the deterministic mode, so that none depends on what runs beside it. Knows no engine.

Two things of ONNX Runtime's CPU kernels would tell (measured with 1.32 on two kinds of processor, docs/log.md):

- Products with 4-bit weights take rows two by two where the processor has AVX-512, and round a last odd one in another
  order. So the number of rows is even.
- Attention multiplies queries and keys in slices of the head, and how many depends on how many keys there are: at most
  16, 32, 64, or more. So no forward looks at keys on both sides of such a number, its padded row included.

Attention in blocks (flash) has such numbers wherever a block begins, and its blocks are as long as the cache of a core
is large: sessions of this mode are opened without it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from .protocol import StepInput

WITHOUT_BLOCKS = "ORT_GQA_DISABLE_FLASH_ATTENTION"
"""Environment variable of onnxruntime that says so, read where a session is made."""
_KEYS = (16, 32, 64)
_CUTS = tuple(keys - 1 for keys in _KEYS)
"""Positions that begin a forward: with the padded row, a lone one there sees a key more than ``_KEYS``, and a lone one
before it no more than that."""


def even(count: int) -> int:
    """Rows that run where ``count`` are asked for."""
    return count + count % 2


def parts_of(step: StepInput) -> list[StepInput]:
    """The same rows as forwards one behind the other; the head is asked for apart. One part: the step as it is."""
    start, stop = step.position, step.position + len(step.tokens)
    edges = [start, *(cut for cut in _CUTS if start < cut < stop), stop]
    if len(edges) == 2:
        return [step]
    spans = [slice(first - start, last - start) for first, last in pairwise(edges)]
    return [
        replace(
            step, tokens=step.tokens[span], position=start + span.start, head=None,
            hidden=None if step.hidden is None else step.hidden[span],
        )
        for span in spans
    ]  # fmt: skip
