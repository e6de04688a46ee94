"""GGUF blocks against the gguf package's reference, and their carry into MatMulNBits layout."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.errors import CheckpointError
from export.gguf_blocks import KINDS, BlockWeights, carry, dequantise, pack_nibbles, row_bytes, unpack_nibbles

gguf = pytest.importorskip("gguf")
quants = pytest.importorskip("gguf.quants")

BLOCK_KINDS = [kind for kind, storage in KINDS.items() if storage.unpack is not None]
EXACT = {"Q8_0": (8, 32), "Q5_0": (8, 32), "Q4_0": (4, 32), "Q6_K": (8, 16), "Q3_K": (8, 16)}
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_rows(kind: str, rows: int, k: int, seed: int = 0) -> np.ndarray:
    """Random bytes with sane float16 scales."""
    rng = np.random.default_rng(seed)
    storage = KINDS[kind]
    raw = rng.integers(0, 256, (rows, k // storage.values, storage.nbytes), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        scale = rng.uniform(-1, 1, raw.shape[:2]) * 0.02
        raw[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def reference(kind: str, raw: np.ndarray) -> np.ndarray:
    return np.asarray(quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_dequantises_like_the_reference(kind: str) -> None:
    raw = random_rows(kind, 7, 1024)
    ours = dequantise(kind, raw, 1024)
    assert ours.shape == (7, 1024)
    assert np.array_equal(ours, reference(kind, raw))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_float_kinds(kind: str) -> None:
    values = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    raw = quants.quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8).reshape(3, -1)
    ours = dequantise(kind, raw, 64)
    assert np.array_equal(ours, reference(kind, raw).reshape(3, 64).astype(np.float32))
    with pytest.raises(CheckpointError, match="no blocks to carry"):
        carry(kind, raw, 64)


@pytest.mark.parametrize("kind", list(EXACT))
def test_exact_kinds_carry_bit_identically(kind: str) -> None:
    raw = random_rows(kind, 9, 768, seed=2)
    carried = carry(kind, raw, 768)
    assert (carried.bits, carried.block_size) == EXACT[kind]
    assert carried.quants.shape == (9, 768 // carried.block_size, carried.block_size * carried.bits // 8)
    assert carried.zero_points is None
    assert carried.max_error == 0.0
    assert np.array_equal(bits(carried.dequantise()), bits(dequantise(kind, raw, 768)))


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"])
def test_affine_kinds_carry_within_their_stated_error(kind: str) -> None:
    """Random bytes are harsher than any model: offsets of either sign, scales of zero."""
    raw = random_rows(kind, 16, 1024, seed=3)
    carried = carry(kind, raw, 1024)
    original = dequantise(kind, raw, 1024)
    error = np.abs(carried.dequantise() - original)
    assert carried.bits == 8
    assert carried.zero_points is not None
    assert carried.zero_points.shape == carried.scales.shape
    assert error.max() == carried.max_error
    assert np.sqrt((error**2).mean() / (original**2).mean()) < 0.02


def q4_1_rows(values: np.ndarray) -> np.ndarray:
    return np.asarray(quants.quantize(values.astype(np.float32), gguf.GGMLQuantizationType.Q4_1))


@pytest.mark.parametrize("offset", [0.0, 3.0, -3.0, 200.0, -200.0])
def test_affine_carry_of_offset_blocks(offset: float) -> None:
    """Means far from zero: the zero point runs out of range and the block is requantised instead."""
    values = np.random.default_rng(4).normal(size=(4, 64)) + offset
    raw = q4_1_rows(values)
    carried = carry("Q4_1", raw, 64)
    assert carried.max_error <= max(0.03, abs(offset) / 150)


def test_affine_carry_of_constant_blocks() -> None:
    values = np.repeat(np.array([[0.0, 0.5, -2.0, 1e-4]]), 32, axis=1)
    carried = carry("Q4_1", q4_1_rows(values), 128)
    assert np.allclose(carried.dequantise(), values, rtol=1e-3, atol=0)
    assert carried.max_error < 1e-6


def test_normal_weights_lose_next_to_nothing_in_affine_carry() -> None:
    raw = q4_1_rows(np.random.default_rng(5).normal(size=(64, 512)))
    original = dequantise("Q4_1", raw, 512)
    carried = carry("Q4_1", raw, 512).dequantise()
    assert np.sqrt(((carried - original) ** 2).mean() / (original**2).mean()) < 0.005


def test_scale_that_is_not_finite_is_refused() -> None:
    raw = random_rows("Q8_0", 1, 32)
    raw[0, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    with pytest.raises(CheckpointError, match="not finite"):
        carry("Q8_0", raw, 32)


def test_nibbles_round_trip() -> None:
    levels = np.random.default_rng(6).integers(0, 16, (5, 7), dtype=np.uint8)
    packed = pack_nibbles(levels)
    assert packed.shape == (5, 4)
    assert packed[0, 0] == levels[0, 0] | levels[0, 1] << 4
    assert np.array_equal(unpack_nibbles(packed)[:, :7], levels)


def test_four_bit_zero_points_unpack_by_row() -> None:
    levels = np.array([[[1] * 16, [2] * 16, [3] * 16]], np.uint8)
    zeros = np.array([[1, 4, 0]], np.uint8)
    scales = np.array([[1, 2, 3]], np.float32)
    weights = BlockWeights(4, 16, pack_nibbles(levels), scales, pack_nibbles(zeros), 0.0)
    assert weights.dequantise()[0, ::16].tolist() == [0.0, -4.0, 9.0]


def test_row_bytes_checks() -> None:
    assert row_bytes("Q6_K", 512) == 420
    with pytest.raises(CheckpointError, match="whole Q4_K blocks"):
        row_bytes("Q4_K", 100)
    with pytest.raises(CheckpointError, match="IQ4_NL"):
        row_bytes("IQ4_NL", 32)
    with pytest.raises(CheckpointError, match="34 bytes"):
        dequantise("Q8_0", np.zeros((2, 30), np.uint8), 32)
