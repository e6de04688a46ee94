"""Keyed noise: the right law, no correlation between keys, the same on every platform."""

from __future__ import annotations

import math
import timeit

import numpy as np
import pytest

from edge_runtime.noise import gumbel, ids_above, uniforms

EULER = 0.5772156649015329
COUNT = 50_000
PINNED_GUMBEL = [-0.5842576844316, -1.1802994328475, 2.4038404216065]
PINNED_UNIFORMS = (0.4827755327358755, 0.07499318975543046)


def kolmogorov_smirnov(samples: np.ndarray, cumulative: np.ndarray) -> float:
    """sqrt(n) * D for the law's ``cumulative`` at the sorted samples; above 1.95 has a chance of 0.001."""
    n = len(samples)
    grid = np.arange(n + 1) / n
    return float(math.sqrt(n) * max((grid[1:] - cumulative).max(), (cumulative - grid[:-1]).max()))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 17), (2**64 - 1, 4095), (-5, 8)])
def test_noise_over_ids_is_gumbel(seed: int, position: int) -> None:
    noise = gumbel(seed, position, np.arange(COUNT))
    assert noise.mean() == pytest.approx(EULER, abs=4 * 1.2825 / math.sqrt(COUNT))
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.05)
    assert kolmogorov_smirnov(noise, np.exp(-np.exp(-np.sort(noise)))) < 1.95


def test_noise_over_positions_and_over_seeds_is_gumbel() -> None:
    token = np.array([1234])
    by_position = np.array([gumbel(3, position, token)[0] for position in range(4000)])
    by_seed = np.array([gumbel(seed, 3, token)[0] for seed in range(4000)])
    for noise in (by_position, by_seed):
        assert kolmogorov_smirnov(noise, np.exp(-np.exp(-np.sort(noise)))) < 1.95
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 4.5 / math.sqrt(4000)


def test_keys_do_not_correlate() -> None:
    ids = np.arange(COUNT)
    rows = [gumbel(seed, position, ids) for seed in (0, 1, 2**40) for position in (0, 1, 2, 1024)]
    rows += [np.roll(rows[0], 1), np.roll(rows[0], 7), np.roll(rows[0], 256)]  # neighbours among the ids
    correlation = np.corrcoef(np.array(rows)) - np.eye(len(rows))
    assert np.abs(correlation).max() < 5.0 / math.sqrt(COUNT)


def test_seed_and_position_are_not_interchangeable() -> None:
    ids = np.arange(16)
    assert not np.array_equal(gumbel(1, 2, ids), gumbel(2, 1, ids))
    assert np.array_equal(gumbel(1, 2, ids), gumbel(1 + 2**64, 2, ids))


def test_order_and_company_of_ids_do_not_matter() -> None:
    ids = np.array([5, 262_143, 0])
    assert gumbel(9, 4, ids).tolist() == gumbel(9, 4, np.arange(262_144))[ids].tolist()


def test_noise_is_finite_and_leaves_its_argument_alone() -> None:
    ids = np.arange(262_144)
    assert np.isfinite(gumbel(7, 7, ids)).all()
    assert np.array_equal(ids, np.arange(262_144))


def test_integers_are_pinned() -> None:
    """A seeded text must not change with a release: these are part of the interface."""
    assert gumbel(42, 7, np.array([0, 1, 262_143])) == pytest.approx(PINNED_GUMBEL, abs=1e-12)
    assert uniforms(42, 7, 0) == PINNED_UNIFORMS[0]
    assert uniforms(42, 7, 1) == PINNED_UNIFORMS[1]


def test_uniforms() -> None:
    draws = np.array([uniforms(5, position, stream) for position in range(4000) for stream in (0, 1)])
    assert draws.min() > 0.0 and draws.max() < 1.0
    assert kolmogorov_smirnov(draws, np.sort(draws)) < 1.95
    accept, choose = draws[0::2], draws[1::2]
    assert abs(np.corrcoef(accept, choose)[0, 1]) < 4.5 / math.sqrt(4000)
    assert abs(np.corrcoef(accept[:-1], accept[1:])[0, 1]) < 4.5 / math.sqrt(4000)


def test_noise_is_cheap() -> None:
    few, all_ids = np.arange(64), np.arange(262_144)
    assert min(timeit.repeat(lambda: gumbel(1, 2, few), number=50, repeat=20)) / 50 < 400e-6
    assert min(timeit.repeat(lambda: gumbel(1, 2, all_ids), number=1, repeat=5)) < 0.15


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5])
def test_ids_above_a_level_are_those_whose_noise_is_above_it(seed: int) -> None:
    noise = gumbel(seed, 11, np.arange(50_000))
    edges = np.sort(noise)
    levels = [-math.inf, -5.0, -2.5, -1.0, 0.0, 1.0, 4.0, 9.0, float(edges[-1]), 40.0, math.inf]
    # Just below a value, at it, and just above it: what is above must not be missed by a rounding.
    levels += [float(np.nextafter(edge, way)) for edge in edges[[0, 10, 25_000, -100, -2]] for way in (-1e3, 1e3)]
    levels += edges[[0, 10, 25_000, -100, -2]].tolist()
    for level in levels:
        found = ids_above(level, seed, 11, 50_000)
        wanted = np.flatnonzero(noise > level)
        assert np.isin(wanted, found).all() and np.all(np.diff(found) > 0)
        assert len(found) <= len(wanted) + 2
