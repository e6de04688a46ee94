"""Rows of floats as NF4 blocks and back, in numpy. Knows no files, names, graphs or engines.

Sixteen levels at the quantiles of a normal law (Dettmers et al., QLoRA, 2023), each block scaled by its largest
magnitude. Bit for bit what bitsandbytes makes and reads (a test compares them), so an export needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_runtime.errors import CheckpointError

from .gguf_blocks import Bytes, Floats

NF4_BLOCK = 64
"""Weights that share a scale: the article's recipe, and what bitsandbytes does unless told otherwise."""
# The 16 levels as published with QLoRA, in float32.
NF4_LEVELS: Floats = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
_BETWEEN: Floats = (NF4_LEVELS[:-1] + NF4_LEVELS[1:]) / np.float32(2)
_LEAST_SCALE = np.float32(1e-38)


@dataclass(frozen=True, slots=True)
class Nf4Weights:
    """Rows [N] over K inputs."""

    packed: Bytes
    """[N, K / 2], the upper nibble first"""
    scales: Floats
    """[N, K / NF4_BLOCK] largest magnitude of each block"""

    def dequantise(self) -> Floats:
        """[N, K]"""
        rows, blocks = self.scales.shape
        levels = np.empty((rows, blocks * NF4_BLOCK), np.uint8)
        levels[:, 0::2], levels[:, 1::2] = self.packed >> 4, self.packed & 15
        values: Floats = NF4_LEVELS[levels].reshape(rows, blocks, NF4_BLOCK)
        values *= self.scales[..., None]
        return values.reshape(rows, -1)


def nf4(rows: Floats) -> Nf4Weights:
    """The nearest level of each weight [N, K].

    Raises:
        CheckpointError: K does not divide into blocks, or a value is not finite.
    """
    if rows.ndim != 2 or rows.shape[1] % NF4_BLOCK:
        raise CheckpointError(f"rows of shape {rows.shape} do not divide into blocks of {NF4_BLOCK}")
    if not np.isfinite(rows).all():
        raise CheckpointError("a weight is not finite (NaN or infinity): the checkpoint is damaged")
    blocks = np.ascontiguousarray(rows, np.float32).reshape(rows.shape[0], -1, NF4_BLOCK)
    scales: Floats = np.abs(blocks).max(axis=-1)
    inverse = np.float32(1) / np.maximum(scales, _LEAST_SCALE)
    levels = np.searchsorted(_BETWEEN, (blocks * inverse[..., None]).reshape(rows.shape), side="left").astype(np.uint8)
    return Nf4Weights((levels[:, 0::2] << np.uint8(4)) | levels[:, 1::2], scales)
