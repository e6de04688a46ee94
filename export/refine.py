"""Levels and scales of 4-bit blocks, settled against the inputs that they will meet. Knows no search and no files.

GPTQ decides each column once, and can only make up for it further right. Two things that are left lower what it lowers,
||X (W - Wq)^T||, and never raise it: the scales of a row, solved all at once for the levels as they are, and levels, one
column after the other with all others as they stand (coordinate descent).
"""

from __future__ import annotations

import numpy as np

from .gguf_blocks import Floats

_COLUMNS = 128
"""Columns between two updates of all others."""
_MOST_CHANGE = 2.0
"""Of a scale, up or down: further off the levels would no longer be the nearest ones."""


def refit(rows: Floats, moment: Floats, levels: Floats, scales: Floats) -> Floats:
    """Scales [N, B] that are best for ``levels`` [K, N], signed; ``moment`` [K, K] of the inputs of ``rows`` [N, K].

    A row whose best ones are no scales (negative, or far off) keeps its own.
    """
    count, blocks = scales.shape
    size = rows.shape[1] // blocks
    wanted = (levels * (moment @ rows.T)).reshape(blocks, size, count).sum(axis=1).T
    products = np.empty((count, blocks, blocks), np.float32)
    for block in range(blocks):
        part = slice(block * size, (block + 1) * size)
        heard = moment[:, part] @ levels[part]
        products[:, :, block] = (levels * heard).reshape(blocks, size, count).sum(axis=1).T
    # A block of zeros has no best scale.
    diagonal = np.arange(blocks)
    products[:, diagonal, diagonal] += 1e-6 * products[:, diagonal, diagonal].max(axis=1, keepdims=True) + 1e-30
    best = np.linalg.solve(products.astype(np.float64), wanted.astype(np.float64)[..., None])[..., 0]
    fine = np.isfinite(best) & (best < _MOST_CHANGE * scales) & (best > scales / _MOST_CHANGE)
    return np.where(fine.all(axis=1, keepdims=True), best, scales).astype(np.float32)


def descend(
    rows: Floats, moment: Floats, levels: Floats, scales: Floats, low: Floats, high: Floats
) -> Floats:
    """Levels [K, N] after one pass of coordinate descent; ``low`` and ``high`` [N, B] bound them."""
    levels = levels.copy()
    width, size = rows.shape[1], rows.shape[1] // scales.shape[1]
    spread = np.repeat(scales.T, size, axis=0)
    missing = moment @ (rows.T - levels * spread)
    curvature = np.diag(moment)
    for start in range(0, width, _COLUMNS):
        part = slice(start, min(start + _COLUMNS, width))
        before = levels[part].copy()
        for column in range(start, part.stop):
            scale, block = spread[column], column // size
            better = levels[column] + missing[column] / (curvature[column] * scale)
            better = np.clip(np.rint(better), low[:, block], high[:, block])
            missing[part] -= moment[part, column, None] * ((better - levels[column]) * scale)
            levels[column] = better
        moved = (levels[part] - before) * spread[part]
        own = missing[part].copy()
        missing -= moment[:, part] @ moved
        missing[part] = own
    return levels
