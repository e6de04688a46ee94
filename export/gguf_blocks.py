"""GGUF block formats: to float32, and exactly into MatMulNBits layout. Knows no files, names or models.

Every format unpacks to the same four things: unsigned levels, their centre, a scale per block and, for the
affine kinds, an offset per block: ``value = scale * (level - centre) + offset``. Layouts follow ggml
(``ggml-quants.c``; the ``gguf`` package's ``quants.py`` is the reference in the tests).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """Rows [N] over K inputs as ONNX Runtime's MatMulNBits and GatherBlockQuantized read them.

    ``value = scale * (quant - zero_point)``; without ``zero_points`` it is ``2 ** (bits - 1)``.
    """

    bits: int
    """4 or 8"""
    block_size: int
    """16, 32, 64 or 128"""
    quants: Bytes
    """[N, K / block_size, block_size * bits / 8], the lower nibble first"""
    scales: Floats
    """[N, K / block_size]"""
    zero_points: Bytes | None
    """[N, ceil(K / block_size * bits / 8)], packed like the quants"""
    max_error: float
    """Largest \\|carried - original\\| over these rows; 0.0 when bit-identical in float32."""

    def dequantise(self) -> Floats:
        """[N, K]"""
        rows, blocks = self.scales.shape
        levels = self.quants if self.bits == 8 else unpack_nibbles(self.quants)
        values = levels.astype(np.float32)
        if self.zero_points is None:
            values -= np.float32(1 << (self.bits - 1))
        else:
            zeros = self.zero_points if self.bits == 8 else unpack_nibbles(self.zero_points)[:, :blocks]
            values -= zeros.astype(np.float32)[..., None]
        values *= self.scales[..., None]
        return values.reshape(rows, -1)


def pack_nibbles(levels: Bytes) -> Bytes:
    """[..., n] values 0..15 -> [..., ceil(n / 2)], lower nibble first; an odd tail is filled with 0."""
    if levels.shape[-1] % 2:
        levels = np.concatenate([levels, np.zeros((*levels.shape[:-1], 1), np.uint8)], axis=-1)
    return levels[..., 0::2] | (levels[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """[..., n] -> [..., 2n]"""
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., 0::2] = packed & np.uint8(15)
    out[..., 1::2] = packed >> np.uint8(4)
    return out


@dataclass(frozen=True, slots=True)
class _Unpacked:
    levels: Bytes
    """[N, blocks, block]"""
    centre: int
    scales: Floats
    """[N, blocks]"""
    offsets: Floats | None = None
    """[N, blocks], ``None`` for symmetric kinds"""


def _half(raw: Bytes) -> Floats:
    """[..., 2] bytes of a float16 -> [...] float32"""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _split_nibbles(raw: Bytes) -> Bytes:
    """[..., n] -> [..., 2, n]: ggml keeps all lower nibbles before all upper ones."""
    return np.stack([raw & np.uint8(15), raw >> np.uint8(4)], axis=-2)


def _split_bits(raw: Bytes, bits: int) -> Bytes:
    """[..., n] -> [..., 8 / bits, n] fields of ``bits`` bits, lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (raw[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _q8_0(raw: Bytes) -> _Unpacked:
    return _Unpacked(raw[..., 2:] ^ np.uint8(128), 128, _half(raw[..., :2]))


def _q4_0(raw: Bytes) -> _Unpacked:
    return _Unpacked(_split_nibbles(raw[..., 2:]).reshape(*raw.shape[:2], 32), 8, _half(raw[..., :2]))


def _q4_1(raw: Bytes) -> _Unpacked:
    levels = _split_nibbles(raw[..., 4:]).reshape(*raw.shape[:2], 32)
    return _Unpacked(levels, 0, _half(raw[..., :2]), _half(raw[..., 2:4]))


def _five_bits(high: Bytes, low: Bytes) -> Bytes:
    """[N, B, 4] fifth bits and [N, B, 16] nibbles -> [N, B, 32] levels 0..31"""
    fifth = np.unpackbits(high, axis=-1, bitorder="little")
    return _split_nibbles(low).reshape(fifth.shape) | (fifth << np.uint8(4))


def _q5_0(raw: Bytes) -> _Unpacked:
    return _Unpacked(_five_bits(raw[..., 2:6], raw[..., 6:]), 16, _half(raw[..., :2]))


def _q5_1(raw: Bytes) -> _Unpacked:
    return _Unpacked(_five_bits(raw[..., 4:8], raw[..., 8:]), 0, _half(raw[..., :2]), _half(raw[..., 2:4]))


def _scale_and_min(raw: Bytes) -> tuple[Floats, Floats]:
    """Head of Q4_K and Q5_K, [N, S, 16] -> scales and offsets [N, 8 S].

    Two float16 super-scales, then eight 6-bit scales and eight 6-bit minima: the first four of each in the
    low six bits of bytes 0..7, the rest as nibbles of bytes 8..11 and the two spare bits of bytes 0..7.
    """
    first, second, third = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    top = np.uint8(0x30)
    scale = np.concatenate([first & 63, (third & 15) | ((first >> 2) & top)], axis=-1)
    minimum = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & top)], axis=-1)
    scales = _half(raw[..., 0:2])[..., None] * scale.astype(np.float32)
    offsets = -(_half(raw[..., 2:4])[..., None] * minimum.astype(np.float32))
    return scales.reshape(raw.shape[0], -1), offsets.reshape(raw.shape[0], -1)


def _q4_k(raw: Bytes) -> _Unpacked:
    scales, offsets = _scale_and_min(raw)
    levels = _split_nibbles(raw[..., 16:].reshape(*raw.shape[:2], 4, 32))
    return _Unpacked(levels.reshape(*scales.shape, 32), 0, scales, offsets)


def _q5_k(raw: Bytes) -> _Unpacked:
    scales, offsets = _scale_and_min(raw)
    low = _split_nibbles(raw[..., 48:].reshape(*raw.shape[:2], 4, 32)).reshape(*scales.shape, 32)
    fifth = _split_bits(raw[..., 16:48], 1).reshape(low.shape)
    return _Unpacked(low | (fifth << np.uint8(4)), 0, scales, offsets)


def _q6_k(raw: Bytes) -> _Unpacked:
    low = _split_nibbles(raw[..., :128].reshape(*raw.shape[:2], 2, 64))
    high = _split_bits(raw[..., 128:192].reshape(*raw.shape[:2], 2, 32), 2)
    scales = _half(raw[..., 208:])[..., None] * raw[..., 192:208].view(np.int8).astype(np.float32)
    levels = low.reshape(*raw.shape[:2], 256) | (high.reshape(*raw.shape[:2], 256) << np.uint8(4))
    return _Unpacked(levels.reshape(raw.shape[0], -1, 16), 32, scales.reshape(raw.shape[0], -1))


def _q3_k(raw: Bytes) -> _Unpacked:
    low = _split_bits(raw[..., 32:96].reshape(*raw.shape[:2], 2, 32), 2).reshape(*raw.shape[:2], 256)
    high = _split_bits(raw[..., :32], 1).reshape(low.shape)
    packed = raw[..., 96:108]
    lower = _split_nibbles(packed[..., :8]).reshape(*raw.shape[:2], 16)
    upper = _split_bits(packed[..., 8:], 2).reshape(lower.shape)
    scale = (lower | (upper << np.uint8(4))).astype(np.float32) - np.float32(32)
    scales = (_half(raw[..., 108:])[..., None] * scale).reshape(raw.shape[0], -1)
    # A set mask bit means "not 4 below": with the centre at 4 it is simply the third bit.
    levels = low | (high << np.uint8(2))
    return _Unpacked(levels.reshape(raw.shape[0], -1, 16), 4, scales)


def _q2_k(raw: Bytes) -> _Unpacked:
    packed = raw[..., :16]
    scales = _half(raw[..., 80:82])[..., None] * (packed & np.uint8(15)).astype(np.float32)
    offsets = -(_half(raw[..., 82:84])[..., None] * (packed >> np.uint8(4)).astype(np.float32))
    levels = _split_bits(raw[..., 16:80].reshape(*raw.shape[:2], 2, 32), 2)
    rows = raw.shape[0]
    return _Unpacked(levels.reshape(rows, -1, 16), 0, scales.reshape(rows, -1), offsets.reshape(rows, -1))


@dataclass(frozen=True, slots=True)
class BlockKind:
    """Storage of one ggml type."""

    type_id: int
    """Number of the type in a GGUF file."""
    values: int
    """Values of one stored unit."""
    nbytes: int
    """Bytes of one stored unit."""
    levels: int = 0
    """Distinct levels of a quantised kind; 0 for a float kind."""
    unpack: Callable[[Bytes], _Unpacked] | None = None
    """[N, units, nbytes] -> levels; ``None`` for a float kind."""


KINDS: dict[str, BlockKind] = {
    "F32": BlockKind(0, 1, 4),
    "F16": BlockKind(1, 1, 2),
    "BF16": BlockKind(30, 1, 2),
    "Q4_0": BlockKind(2, 32, 18, 16, _q4_0),
    "Q4_1": BlockKind(3, 32, 20, 16, _q4_1),
    "Q5_0": BlockKind(6, 32, 22, 32, _q5_0),
    "Q5_1": BlockKind(7, 32, 24, 32, _q5_1),
    "Q8_0": BlockKind(8, 32, 34, 256, _q8_0),
    "Q2_K": BlockKind(10, 256, 84, 4, _q2_k),
    "Q3_K": BlockKind(11, 256, 110, 8, _q3_k),
    "Q4_K": BlockKind(12, 256, 144, 16, _q4_k),
    "Q5_K": BlockKind(13, 256, 176, 32, _q5_k),
    "Q6_K": BlockKind(14, 256, 210, 64, _q6_k),
}


def row_bytes(kind: str, k: int) -> int:
    """Bytes of a row of ``k`` values.

    Raises:
        CheckpointError: unknown kind, or ``k`` does not fill whole blocks.
    """
    if kind not in KINDS:
        raise CheckpointError(f"tensor type {kind} is not supported (known: {', '.join(KINDS)})")
    units, rest = divmod(k, KINDS[kind].values)
    if rest:
        raise CheckpointError(f"rows of {k} values do not fill whole {kind} blocks of {KINDS[kind].values}")
    return units * KINDS[kind].nbytes


def dequantise(kind: str, raw: Bytes, k: int) -> Floats:
    """Rows of any known kind as float32.

    Args:
        raw: [N, row_bytes(kind, k)], contiguous along rows.
        k: values of a row.

    Returns:
        [N, k], a fresh array; equal to ggml's values.
    """
    _check_raw(kind, raw, k)
    match kind:
        case "F32":
            return np.ascontiguousarray(raw).view("<f4").astype(np.float32)
        case "F16":
            return np.ascontiguousarray(raw).view("<f2").astype(np.float32)
        case "BF16":
            wide = np.ascontiguousarray(raw).view("<u2").astype(np.uint32)
            wide <<= np.uint32(16)
            return wide.view(np.float32)
    return _values(_unpack(kind, raw)).reshape(raw.shape[0], k)


def carry(kind: str, raw: Bytes, k: int) -> BlockWeights:
    """The same rows in MatMulNBits layout, without rounding them again.

    Exact (bit-identical in float32): Q8_0, Q5_0 (8 bits, blocks of 32), Q6_K, Q3_K (8 bits, blocks of 16) and
    Q4_0 (4 bits, blocks of 32). To within ``max_error``: Q4_1, Q5_1, Q4_K, Q5_K (8 bits, blocks of 32) and
    Q2_K (8 bits, blocks of 16), because their offset has to become a whole zero point: ONNX Runtime runs
    float zero points about a hundred times slower. Takes up to some 16 bytes a value while it works: feed
    large tensors in chunks of rows.

    Args:
        raw: [N, row_bytes(kind, k)]

    Raises:
        CheckpointError: a float kind, or a scale that is not finite.
    """
    _check_raw(kind, raw, k)
    if KINDS[kind].unpack is None:
        raise CheckpointError(f"{kind} rows have no blocks to carry over; quantise them instead")
    blocks = _unpack(kind, raw)
    offsets_finite = blocks.offsets is None or bool(np.isfinite(blocks.offsets).all())
    if not (np.isfinite(blocks.scales).all() and offsets_finite):
        raise CheckpointError(f"a {kind} block has a scale that is not finite: the file is damaged")
    size = blocks.levels.shape[-1]
    if blocks.offsets is not None:
        return _carry_affine(blocks, KINDS[kind].levels - 1)
    if kind == "Q4_0":
        return BlockWeights(4, size, pack_nibbles(blocks.levels), blocks.scales, None, 0.0)
    return BlockWeights(8, size, blocks.levels + np.uint8(128 - blocks.centre), blocks.scales, None, 0.0)


def _check_raw(kind: str, raw: Bytes, k: int) -> None:
    expected = row_bytes(kind, k)
    if raw.ndim != 2 or raw.shape[1] != expected:
        raise CheckpointError(f"{kind} rows of {k} values take {expected} bytes, found {raw.shape}")


def _unpack(kind: str, raw: Bytes) -> _Unpacked:
    storage = KINDS[kind]
    assert storage.unpack is not None
    # Scales of a damaged file need not be finite: who asked for the blocks looks at what came of them.
    with np.errstate(over="ignore", invalid="ignore"):
        return storage.unpack(raw.reshape(raw.shape[0], -1, storage.nbytes))


def _values(blocks: _Unpacked) -> Floats:
    """[N, blocks, block] in ggml's own order of operations, so that the result is bit-identical."""
    values = blocks.levels.astype(np.float32)
    values -= np.float32(blocks.centre)
    with np.errstate(over="ignore", invalid="ignore"):
        values *= blocks.scales[..., None]
        if blocks.offsets is not None:
            values += blocks.offsets[..., None]
    return values


def _carry_affine(blocks: _Unpacked, top: int) -> BlockWeights:
    """8-bit blocks for ``value = scale * level + offset`` with levels 0..top.

    The levels are spread by a whole factor n, which makes the grid of possible offsets n times finer:
    ``(n * level + shift - zero) * scale / n`` with ``zero - shift = round(-offset * n / scale)``. The error
    is the rounding of that one number, a constant over the block; n is chosen per block to make it least.
    """
    assert blocks.offsets is not None
    scales, offsets = blocks.scales, blocks.offsets
    safe = np.where(scales == 0, np.float32(1), scales).astype(np.float64)
    ratio = -offsets.astype(np.float64) / safe
    least = np.full(scales.shape, np.inf)
    factor = np.ones(scales.shape, np.int16)
    move = np.zeros(scales.shape, np.int16)
    for n in range(1, 255 // top + 1):
        near = np.clip(np.rint(ratio * n), n * top - 255, 255)
        error = np.abs(ratio * n - near) / n
        better = error < least * (1 - 1e-9)
        least[better], factor[better], move[better] = error[better], n, near[better].astype(np.int16)
    # A negative move (the offset has the scale's sign) shifts the levels up instead of the zero point down.
    shift = np.maximum(-move, 0)
    levels = (blocks.levels * factor[..., None] + shift[..., None]).astype(np.uint8)
    zeros = np.maximum(move, 0).astype(np.uint8)
    carried = (scales / factor).astype(np.float32)
    original = _values(blocks)
    _round_the_rest(original, (scales == 0) | (least > 1.0), levels, zeros, carried)
    result = BlockWeights(8, levels.shape[-1], levels, carried, zeros, 0.0)
    error = float(np.abs(result.dequantise().reshape(original.shape) - original).max(initial=0.0))
    return BlockWeights(8, levels.shape[-1], levels, carried, zeros, error)


def _round_the_rest(original: Floats, which: NDArray[np.bool_], levels: Bytes, zeros: Bytes, scales: Floats) -> None:
    """Requantise in place the blocks that are constant, or too far from zero for any zero point."""
    if not which.any():
        return
    values = original[which]
    peak = np.take_along_axis(values, np.abs(values).argmax(-1, keepdims=True), -1)[:, 0]
    # Signed scale: the extreme value lands on +127, so a constant block is exact but for one rounding.
    scale = peak / np.float32(127)
    safe = np.where(scale == 0, np.float32(1), scale)
    levels[which] = (np.rint(values / safe[:, None]) + 128).astype(np.uint8)
    zeros[which] = 128
    scales[which] = scale
