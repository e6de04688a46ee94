"""What steps draw, learnt from late and noisy readings of the whole board."""

from __future__ import annotations

import random

import pytest

from edge_runtime.energy_model import EnergyModel, Rates, learnt

IDLE_W, BUSY_W, ROW_J, DRAFT_J = 5.0, 9.0, 0.02, 0.05


def _true_w(rates: Rates) -> float:
    return IDLE_W + BUSY_W * rates.duty + ROW_J * rates.rows + DRAFT_J * rates.drafts


def _varied(seed: int, count: int, noise: float, extra_w: float = 0.0, model: EnergyModel | None = None) -> EnergyModel:
    draw, model = random.Random(seed), model or EnergyModel()
    for _ in range(count):
        duty, k = draw.choice((0.0, 0.3, 0.6, 1.0)), draw.choice((0, 1, 2, 4))
        steps = draw.choice((12.0, 20.0, 30.0)) * duty
        rates = Rates(duty, steps * (k + 1), steps * k)
        model = learnt(model, rates, (_true_w(rates) + extra_w) * (1.0 + noise * draw.gauss(0.0, 1.0)), 1.0)
    return model


def test_the_parts_are_found_when_steps_vary() -> None:
    model = _varied(1, 200, noise=0.0)
    assert model.idle_w == pytest.approx(IDLE_W, rel=0.02)
    assert model.busy_w == pytest.approx(BUSY_W, rel=0.05)
    # Rows and drafts grow together: what counts is what a draft adds, its row included.
    assert model.row_j + model.draft_j == pytest.approx(ROW_J + DRAFT_J, rel=0.05)
    assert model.residual_w < 0.2


def test_noise_shows_in_the_residual_and_not_in_the_power() -> None:
    model = _varied(2, 300, noise=0.05)
    rates = Rates(0.5, 20.0, 10.0)
    assert model.power_w(rates) == pytest.approx(_true_w(rates), rel=0.03)
    assert 0.2 < model.residual_w < 1.5


@pytest.mark.parametrize("seed", range(5))
def test_no_part_is_ever_negative(seed: int) -> None:
    model = _varied(seed, 12, noise=0.4)
    assert min(model.idle_w, model.busy_w, model.row_j, model.draft_j, model.idle_now_w) >= 0.0


def test_leakage_goes_into_the_offset_within_seconds() -> None:
    before = _varied(3, 300, noise=0.01)
    after = _varied(4, 25, noise=0.01, extra_w=1.5, model=before)
    rates = Rates(1.0, 40.0, 20.0)
    assert after.power_w(rates) == pytest.approx(_true_w(rates) + 1.5, abs=0.4)
    assert after.row_j == pytest.approx(before.row_j, rel=0.1)


def test_unknown_steps_count_as_dear_ones() -> None:
    model = EnergyModel()
    for _ in range(5):
        model = learnt(model, Rates(), 6.0, 1.0)
    assert not model.known
    assert model.idle_now_w == pytest.approx(6.0, rel=0.05)
    assert model.step_power(20.0).busy_w > 3.0 * 6.0
    for _ in range(3):
        model = learnt(model, Rates(1.0, 20.0, 0.0), 15.0, 1.0)
    assert model.known
    assert model.full_w(Rates(0.5, 10.0, 0.0)) == pytest.approx(15.0, rel=0.1)


def test_one_kind_of_step_tells_nothing_of_rows_but_everything_of_itself() -> None:
    model = EnergyModel()
    for place in range(120):
        rates = Rates() if place < 10 else Rates(1.0, 60.0, 40.0)
        model = learnt(model, rates, _true_w(rates), 1.0)
    assert model.power_w(Rates(1.0, 60.0, 40.0)) == pytest.approx(_true_w(Rates(1.0, 60.0, 40.0)), rel=0.01)
    assert model.power_w(Rates(0.5, 30.0, 20.0)) == pytest.approx(_true_w(Rates(0.5, 30.0, 20.0)), rel=0.02)


def test_what_is_far_from_all_that_was_seen_is_doubtful() -> None:
    model, draw = EnergyModel(), random.Random(6)
    for _ in range(300):
        duty = 0.3 + 0.02 * draw.gauss(0.0, 1.0)
        rates = Rates(duty, 30.0 * duty, 20.0 * duty)
        model = learnt(model, rates, _true_w(rates) * (1.0 + 0.05 * draw.gauss(0.0, 1.0)), 1.0)
    known, far = Rates(0.3, 9.0, 6.0), Rates(1.0, 30.0, 20.0)
    assert model.doubt_w(known) < 0.1 * model.residual_w
    assert model.doubt_w(far) > 3.0 * model.doubt_w(known)


def test_alike_is_about_rates_and_not_about_chance() -> None:
    rates = Rates(0.5, 40.0, 20.0)
    assert rates.like(Rates(0.55, 43.0, 22.0))
    assert not rates.like(Rates(0.9, 40.0, 20.0))
    assert not rates.like(Rates(0.5, 80.0, 20.0))
    assert not rates.like(Rates(0.5, 40.0, 0.0))


def test_a_night_without_work_takes_nothing_from_what_is_known_of_steps() -> None:
    before = _varied(5, 200, noise=0.01)
    model = before
    for _ in range(8 * 3600):
        model = learnt(model, Rates(), 4.2, 1.0)
    assert model.idle_now_w == pytest.approx(4.2, abs=0.1)
    assert model.busy_w == pytest.approx(before.busy_w, rel=0.15)
    rates, after = Rates(1.0, 40.0, 20.0), model
    for _ in range(20):
        after = learnt(after, rates, _true_w(rates), 1.0)
    assert after.power_w(rates) == pytest.approx(_true_w(rates), rel=0.03)
