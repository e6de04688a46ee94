"""Costs by rows: what disturbs a machine for a moment must not decide what a text does for ever."""

from __future__ import annotations

import math
import random

import pytest

from edge_runtime.row_cost import CostEstimate, observe_cost, prime_cost

SHAPE = {1: 0.015, 2: 0.019, 4: 0.026, 8: 0.049}


def primed() -> CostEstimate:
    state = CostEstimate()
    for rows, seconds in SHAPE.items():
        state = prime_cost(state, rows, seconds)
    return state


def close(state: CostEstimate, rows: int, seconds: float, off: float = 0.1) -> bool:
    return abs(math.log(state.measured()[rows] / seconds)) < off


def test_what_was_measured_is_what_is_said() -> None:
    assert primed().measured() == pytest.approx(SHAPE)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_size_that_was_last_seen_in_a_bad_moment_is_not_held_to_it(rows: int, count: int) -> None:
    """A draft that a disturbed measurement makes too dear is never tried again: it must become affordable by itself."""
    state = primed()
    for _ in range(count):
        state = observe_cost(state, rows, 2.5 * SHAPE[rows])
    others = [one for one in SHAPE if one != rows]
    for _ in range(10):
        for one in others[:1]:
            state = observe_cost(state, one, SHAPE[one])
    assert all(close(state, one, seconds, off=0.25) for one, seconds in SHAPE.items())


def test_a_machine_that_slows_down_slows_every_size() -> None:
    state = primed()
    for _ in range(20):
        state = observe_cost(state, 1, 2.0 * SHAPE[1])
    assert all(close(state, rows, 2.0 * seconds) for rows, seconds in SHAPE.items())


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_stall_is_noise_and_five_are_a_clock_that_changed(factor: float) -> None:
    state = observe_cost(primed(), 1, factor * SHAPE[1])
    assert state.measured() == pytest.approx(SHAPE)
    for _ in range(5):
        state = observe_cost(state, 1, factor * SHAPE[1])
    assert all(close(state, rows, factor * seconds) for rows, seconds in SHAPE.items())


def test_a_shape_that_was_measured_wrongly_is_learnt() -> None:
    state, noise = primed(), random.Random(3)
    for _ in range(100):
        for rows, seconds in ((1, 0.015), (2, 0.027)):
            state = observe_cost(state, rows, seconds * math.exp(noise.gauss(0.0, 0.1)))
    known = state.measured()
    assert known[2] / known[1] == pytest.approx(0.027 / 0.015, rel=0.1)


def skewed(noise: random.Random) -> float:
    """Noise of a shared machine: it only ever adds, and now and then a lot."""
    return noise.expovariate(20.0) + (0.5 if noise.random() < 0.03 else 0.0)


@pytest.mark.parametrize("dear", [0.85, 1.0, 1.18])
@pytest.mark.parametrize("run", [1, 3, 40])
def test_what_is_tried_is_held_against_what_ran_beside_it(dear: float, run: int) -> None:
    """Two sizes in runs of any length, the second measured wrongly at first; a third is never tried."""
    state, noise = prime_cost(primed(), 2, SHAPE[2] / dear), random.Random(5)
    for _ in range(1200 // run):
        for rows in [1] * run + [2] * run:
            state = observe_cost(state, rows, SHAPE[rows] * math.exp(skewed(noise)))
    known = state.measured()
    assert known[2] / known[1] == pytest.approx(SHAPE[2] / SHAPE[1], rel=0.05)
    # Which of the two was wrong nobody can tell, so half of it goes into the first.
    assert known[8] / known[1] == pytest.approx(SHAPE[8] / SHAPE[1], rel=abs(math.log(dear)) / 2 + 0.05)


def test_a_size_that_runs_alone_does_not_change_what_others_are_to_it() -> None:
    state, noise = primed(), random.Random(7)
    for _ in range(3000):
        state = observe_cost(state, 2, SHAPE[2] * math.exp(skewed(noise)))
    known = state.measured()
    assert known[2] / known[1] == pytest.approx(SHAPE[2] / SHAPE[1], rel=0.01)
    assert known[8] / known[1] == pytest.approx(SHAPE[8] / SHAPE[1], rel=0.01)


def test_what_was_never_primed_is_learnt_from_its_first_samples() -> None:
    state = CostEstimate()
    for seconds in (0.010, 0.012, 0.011):
        state = observe_cost(state, 3, seconds)
    state = observe_cost(state, 1, 0.005)
    assert close(state, 3, 0.011) and close(state, 1, 0.005)


def test_fewer_rows_never_cost_more_than_more() -> None:
    state = prime_cost(prime_cost(CostEstimate(), 2, 0.050), 4, 0.030)
    assert state.measured() == pytest.approx({2: 0.030, 4: 0.030})


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, math.nan), (1, math.inf)])
def test_what_is_no_measurement_is_refused(rows: int, seconds: float) -> None:
    for note in (observe_cost, prime_cost):
        with pytest.raises(ValueError, match="a cost needs rows"):
            note(CostEstimate(), rows, seconds)
