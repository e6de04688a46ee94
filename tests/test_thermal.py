"""A first-order estimate that corrects itself, against plants that are not first-order."""

from __future__ import annotations

import math
import random

import pytest

from edge_runtime.thermal import ThermalEstimate, corrected, first_estimate


def _at_rest(temperature_c: float, power_w: float, seconds: float = 60.0) -> ThermalEstimate:
    state = first_estimate(temperature_c, power_w)
    for _ in range(int(seconds / 0.5)):
        state = corrected(state, temperature_c, power_w, 0.5)
    return state


def test_at_rest_on_the_target_what_is_drawn_is_allowed() -> None:
    state = _at_rest(80.0, 12.0)
    assert state.temperature_c == pytest.approx(80.0, abs=0.1)
    assert state.allowed_w(80.0) == pytest.approx(12.0, rel=0.02)
    assert state.allowed_w(85.0) > 12.0 > state.allowed_w(75.0)


def test_far_below_the_target_more_is_allowed_than_a_board_can_draw() -> None:
    assert _at_rest(40.0, 12.0).allowed_w(85.0) > 40.0


def test_noise_hardly_moves_what_is_allowed() -> None:
    draw, state = random.Random(1), _at_rest(80.0, 12.0)
    allowed = []
    for _ in range(400):
        state = corrected(state, 80.0 + draw.gauss(0.0, 0.2), 12.0, 0.5)
        allowed.append(state.allowed_w(80.0))
    mean = sum(allowed) / len(allowed)
    assert mean == pytest.approx(12.0, rel=0.02)
    assert math.sqrt(sum((one - mean) ** 2 for one in allowed) / len(allowed)) < 1.0


@pytest.mark.parametrize("die_j_per_c", [8.0, 40.0])
@pytest.mark.parametrize("seconds", [0.2, 1.0])
def test_a_plant_of_two_masses_is_brought_to_its_target_without_overshoot(die_j_per_c: float, seconds: float) -> None:
    die, sink, power, peak = 60.0, 55.0, 10.0, 0.0
    state = first_estimate(die, power)
    for _ in range(int(1500 / seconds)):
        for _ in range(10):
            inner = (die - sink) / 0.6
            die += seconds / 10 * (power - inner) / die_j_per_c
            sink += seconds / 10 * (inner - (sink - 35.0) / 3.0) / 150.0
        peak = max(peak, die)
        state = corrected(state, die, power, seconds)
        power = min(25.0, max(4.0, state.allowed_w(84.4)))
    assert die == pytest.approx(84.4, abs=0.3)
    assert peak < 85.4


def test_when_it_will_have_cooled() -> None:
    state = _at_rest(90.0, 12.0)
    assert state.cooled_s(95.0, 4.0) == 0.0
    assert 0.0 < state.cooled_s(85.0, 4.0) < 60.0
    assert state.cooled_s(85.0, 12.0) == math.inf
