"""Rounding to 8 and 4 bits, GPTQ and float16: layouts, errors against plain rounding, edge cases."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.errors import CheckpointError
from export.gguf_blocks import BlockWeights
from export.quantize import gptq, input_factor, int4, int8, to_float16


def weights(rows: int = 64, columns: int = 512, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    # Columns of unequal spread, as in trained matrices.
    spread = np.exp(0.4 * rng.normal(size=columns))
    values: np.ndarray = (rng.normal(size=(rows, columns)) * spread * 0.05).astype(np.float32)
    return values


def nearest_symmetric(rows: np.ndarray, block: int) -> np.ndarray:
    """What most tools call 4-bit: the largest value on level 7, the rest to the nearest."""
    blocks = rows.reshape(rows.shape[0], -1, block)
    scales = np.abs(blocks).max(-1, keepdims=True) / 7
    rounded: np.ndarray = np.rint(blocks / scales) * scales
    return rounded.reshape(rows.shape)


def relative_error(found: np.ndarray, rows: np.ndarray, importance: np.ndarray | float = 1.0) -> float:
    return float(np.sqrt((importance * (found - rows) ** 2).sum() / (importance * rows**2).sum()))


def correlated_inputs(tokens: int, columns: int) -> np.ndarray:
    """A decaying spectrum and a few loud channels."""
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(columns, columns)) * (np.arange(1, columns + 1) ** -0.5)[:, None]
    loud = np.exp(0.7 * rng.normal(size=columns))
    inputs: np.ndarray = (rng.normal(size=(tokens, columns)) @ mix * loud).astype(np.float32)
    return inputs


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_layouts(block: int) -> None:
    rows = weights(5, 384)
    for found, bits in (
        (int8(rows, block), 8),
        (int4(rows, block), 4),
        (int4(rows, block, symmetric=True), 4),
    ):
        count = 384 // block
        assert (found.bits, found.block_size) == (bits, block)
        assert found.quants.shape == (5, count, block * bits // 8)
        assert found.quants.dtype == np.uint8
        assert found.scales.shape == (5, count)
        assert found.scales.dtype == np.float32
        assert found.scales.min() > 0
        error = np.abs(found.dequantise() - rows).max()
        assert error == pytest.approx(found.max_error, rel=1e-6)
    assert int4(rows, block).zero_points is not None
    assert int4(rows, block, symmetric=True).zero_points is None


def test_zero_points_of_an_odd_number_of_blocks_are_packed() -> None:
    found = int4(weights(3, 96), 32)
    assert found.zero_points is not None
    assert found.zero_points.shape == (3, 2)
    assert (found.zero_points[:, 1] >> 4).max() == 0


def test_int8_is_close() -> None:
    rows = weights()
    assert relative_error(int8(rows).dequantise(), rows) < 0.008


def test_int4_beats_plain_rounding() -> None:
    rows = weights()
    plain = relative_error(nearest_symmetric(rows, 32), rows)
    assert relative_error(int4(rows).dequantise(), rows) < 0.81 * plain
    assert relative_error(int4(rows, symmetric=True).dequantise(), rows) < 0.91 * plain


@pytest.mark.parametrize("block", [64, 128])
def test_symmetric_device_blocks_beat_plain_rounding(block: int) -> None:
    rows = weights()
    plain = relative_error(nearest_symmetric(rows, block), rows)
    assert relative_error(int4(rows, block, symmetric=True).dequantise(), rows) < 0.90 * plain


def test_importance_lowers_the_weighted_error() -> None:
    rows = weights()
    importance = np.exp(np.random.default_rng(2).normal(size=512)).astype(np.float32)
    alike = relative_error(int4(rows).dequantise(), rows, importance)
    weighed = relative_error(int4(rows, importance=importance).dequantise(), rows, importance)
    assert weighed < 0.97 * alike


def test_importance_of_silent_inputs() -> None:
    rows = weights(4, 64)
    found = int4(rows, importance=np.zeros(64, np.float32))
    assert np.array_equal(found.quants, int4(rows).quants)
    half = np.ones(64, np.float32)
    half[16:32] = 0
    assert relative_error(int4(rows, importance=half).dequantise(), rows) < 0.15


def test_a_four_bit_grid_is_recovered_exactly() -> None:
    rng = np.random.default_rng(3)
    levels = rng.integers(0, 16, (6, 4, 32))
    levels[..., 0], levels[..., 1] = 0, 15
    rows = ((levels - rng.integers(0, 16, (6, 4, 1))) * 0.25).astype(np.float32).reshape(6, 128)
    assert np.allclose(int4(rows).dequantise(), rows, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, 3.0, -0.01])
def test_constant_blocks(value: float) -> None:
    rows = np.full((2, 64), value, np.float32)
    for found in (int8(rows), int4(rows), int4(rows, symmetric=True), gptq(rows, np.eye(64))):
        assert np.isfinite(found.scales).all()
        assert found.scales.min() > 0
        assert np.allclose(found.dequantise(), rows, rtol=1e-5)


def test_tiny_and_huge_values_stay_finite() -> None:
    rows = np.zeros((3, 64), np.float32)
    rows[0] = np.linspace(-1e-44, 1e-44, 64)
    rows[1] = np.linspace(-1e30, 1e30, 64)
    rows[2, 5] = 1.0
    for found in (int8(rows), int4(rows), int4(rows, symmetric=True)):
        assert np.isfinite(found.dequantise()).all()
        assert np.isfinite(found.scales).all()
        assert found.scales.min() > 0
        assert found.dequantise()[2, 5] == pytest.approx(1.0)


def output_error(found: BlockWeights, rows: np.ndarray, x: np.ndarray) -> float:
    return float(np.linalg.norm(x @ (found.dequantise() - rows).T) / np.linalg.norm(x @ rows.T))


@pytest.mark.parametrize(("block", "symmetric"), [(32, False), (64, True)])
def test_gptq_lowers_the_output_error(block: int, symmetric: bool) -> None:
    rows, x = weights(48, 320, seed=4), correlated_inputs(2048, 320)
    hessian = x.T @ x
    searched = int4(rows, block, symmetric=symmetric, importance=np.diag(hessian).astype(np.float32))
    found = gptq(rows, hessian, block, symmetric=symmetric)
    assert output_error(found, rows, x) < 0.65 * output_error(searched, rows, x)
    assert found.max_error == pytest.approx(np.abs(found.dequantise() - rows).max(), rel=1e-5)


def test_gptq_of_uncorrelated_inputs_is_the_search() -> None:
    rows = weights(8, 256, seed=5)
    assert np.array_equal(gptq(rows, np.eye(256)).quants, int4(rows).quants)


def test_gptq_does_not_depend_on_how_rows_are_cut_or_the_scale_of_h() -> None:
    rows, x = weights(8, 256, seed=6), correlated_inputs(600, 256)
    factor = input_factor(x.T @ x)
    whole = gptq(rows, factor).dequantise()
    parts = np.concatenate([gptq(rows[:3], factor).dequantise(), gptq(rows[3:], factor).dequantise()])
    assert np.abs(whole - parts).mean() < 1e-4 * np.abs(rows).mean()
    scaled = gptq(rows, (x.T @ x) / 600).dequantise()
    assert output_error(gptq(rows, factor), rows, x) == pytest.approx(
        float(np.linalg.norm(x @ (scaled - rows).T) / np.linalg.norm(x @ rows.T)), rel=0.02
    )


def test_gptq_with_fewer_tokens_than_inputs() -> None:
    rows, x = weights(8, 256, seed=7), correlated_inputs(32, 256)
    x[:, 7] = 0
    assert np.isfinite(gptq(rows, x.T @ x).dequantise()).all()


def test_refusals() -> None:
    rows = weights(2, 96)
    with pytest.raises(CheckpointError, match="blocks of 64"):
        int4(rows, 64)
    with pytest.raises(CheckpointError, match="block size 48"):
        int8(rows, 48)
    with pytest.raises(CheckpointError, match="importance"):
        int4(rows, importance=np.ones(95, np.float32))
    with pytest.raises(CheckpointError, match="96 inputs"):
        gptq(rows, np.eye(95))
    with pytest.raises(CheckpointError, match="positive definite"):
        input_factor(-np.eye(8))
    with pytest.raises(CheckpointError, match="square and finite"):
        input_factor(np.full((8, 8), np.nan))
    rows[1, 3] = np.nan
    for convert in (int8, int4, to_float16):
        with pytest.raises(CheckpointError, match="not finite"):
            convert(rows)


def test_float16() -> None:
    rows = np.array([[1.0, -65504.0, 1e-9]], np.float32)
    half = to_float16(rows)
    assert half.dtype == np.float16
    assert half[0, :2].tolist() == [1.0, -65504.0]
    with pytest.raises(CheckpointError, match="does not fit float16"):
        to_float16(np.array([[65520.0]], np.float32))
