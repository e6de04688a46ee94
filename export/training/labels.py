"""Which rows of the head a text is judged by. Knows no drafter's layer and no optimiser.

The head is most of the arithmetic of a step, and nearly all of what it says about one text is said by a few thousand
of its rows: those among the target's best at any place of that text. They always count; of all others a sample does,
each standing for as many as were left out, so that sums over the head stay right on average.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_runtime.files import whole

from .arrays import read_arrays
from .drafter import Start
from .features import Part

_BEST = 16
_TEXT_ROWS = 512


@dataclass(frozen=True, slots=True)
class JudgedBy:
    """For one text."""

    rows: Tensor
    """[m] of the head"""
    offset: Tensor
    """[m] logarithm of how many rows each stands for"""
    normaliser: Tensor
    """[length] of the target's law over the whole head"""


@dataclass(frozen=True, slots=True)
class Labels:
    """Of the texts of one part."""

    normaliser: NDArray[np.float32]
    """[texts, length]"""
    best: NDArray[np.int32]
    """[texts, length, 16] rows of the head"""
    head_rows: int

    def judged_by(self, text: int, others: int, random: np.random.Generator, device: torch.device) -> JudgedBy:
        always = np.zeros(self.head_rows, np.bool_)
        always[self.best[text].ravel()] = True
        rest = np.flatnonzero(~always)
        count = min(others, len(rest))
        picked = np.sort(random.choice(rest, count, replace=False))
        rows = np.concatenate([np.flatnonzero(always), picked])
        offset = np.zeros(len(rows), np.float32)
        if count:
            offset[len(rows) - count :] = np.log(len(rest) / count)
        return JudgedBy(
            torch.from_numpy(rows).to(device),
            torch.from_numpy(offset).to(device),
            torch.from_numpy(self.normaliser[text]).to(device),
        )


def labels_of(start: Start, part: Part, directory: Path) -> Labels:
    """Made once a head and text, and kept in ``directory``."""
    digest = hashlib.sha256(start.token_ids.cpu().numpy().tobytes()).hexdigest()[:16]
    path = directory / f"labels-{part.directory.name}.npz"
    normaliser = np.empty((part.done, part.length), np.float32)
    best = np.empty((part.done, part.length, _BEST), np.int32)
    done = 0
    if path.is_file():
        known = read_arrays(path, ("head", "normaliser", "best"))
        shapes = [known[name].shape[1:] for name in ("normaliser", "best")]
        if str(known["head"]) == digest and shapes == [normaliser.shape[1:], best.shape[1:]]:
            done = min(len(known["normaliser"]), len(known["best"]), part.done)
            normaliser[:done], best[:done] = known["normaliser"][:done], known["best"][:done]
    if done == part.done:
        return Labels(normaliser, best, start.config.head_rows)
    with torch.inference_mode():
        for text in range(done, part.done):
            hidden = torch.from_numpy(part.hidden[text].astype(np.float32)).to(start.head.device)
            for at in range(0, part.length, _TEXT_ROWS):
                logits = start.logits(hidden[at : at + _TEXT_ROWS])
                normaliser[text, at : at + _TEXT_ROWS] = logits.logsumexp(-1).cpu().numpy()
                best[text, at : at + _TEXT_ROWS] = logits.topk(_BEST).indices.cpu().numpy()
    with whole(path) as partial:
        np.savez(partial, normaliser=normaliser, best=best, head=digest)
    return Labels(normaliser, best, start.config.head_rows)
