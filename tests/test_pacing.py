"""Steps priced and paced by power: the K with the fewest joules a token at a binding cap, else the fastest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.budget import Budget, StepPower
from edge_runtime.cost import CostTable, best_k, cost_lines, price, step_seconds, stop_below, under_power
from edge_runtime.pacing import most_drafts, pace_s, uneven

TABLE = CostTable(body_s=(0.02, 0.021, 0.022, 0.023, 0.024), head_s=(0.004, 0.0045, 0.005), draft_s=0.004)
POWER = StepPower(allowed_w=10.0, idle_w=4.0, busy_w=16.0, row_j=0.02, draft_j=0.03)
AMPLE = replace(POWER, allowed_w=60.0)


def test_a_cap_that_does_not_bind_changes_no_choice() -> None:
    free, capped = best_k([0.8] * 4, TABLE, 4), best_k([0.8] * 4, under_power(TABLE, AMPLE), 4)
    assert capped == free
    assert under_power(TABLE, None) is TABLE


@given(st.floats(0.0, 1.0), st.integers(0, 6), st.sampled_from([4.5, 8.0, 12.0, 30.0]))
def test_a_paced_step_draws_what_is_allowed_or_less(acceptance: float, k: int, allowed_w: float) -> None:
    power = replace(POWER, allowed_w=allowed_w)
    raw_s, paced_s = step_seconds(k, TABLE), step_seconds(k, under_power(TABLE, power))
    wait_s = paced_s - raw_s
    assert wait_s >= 0.0
    mean_w = (power.joules(raw_s, k + 1, k) + power.idle_w * wait_s) / paced_s
    assert mean_w <= allowed_w + 1e-6
    assert wait_s == pytest.approx(0.0) or mean_w == pytest.approx(allowed_w)
    assert pace_s(raw_s, k + 1, k, Budget(power=power)) == pytest.approx(wait_s)
    assert price(k, [acceptance] * k, under_power(TABLE, power)).tokens_per_s <= 1.0001 * (
        price(k, [acceptance] * k, TABLE).tokens_per_s
    )


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_at_a_binding_cap_the_best_k_has_the_fewest_joules_above_idle_per_token(acceptance: float) -> None:
    power = replace(POWER, allowed_w=5.0)
    best = best_k([acceptance] * 6, under_power(TABLE, power), 6)

    def joules_a_token(k: int) -> float:
        seconds = step_seconds(k, TABLE)
        tokens = sum(acceptance**place for place in range(k + 1))
        return (power.joules(seconds, k + 1, k) - power.idle_w * seconds) / tokens

    # A head that stops early can only be cheaper still.
    assert joules_a_token(best.k) <= min(map(joules_a_token, range(7))) * 1.03


def test_dear_drafts_shorten_a_draft_when_power_binds_and_not_before() -> None:
    dear = replace(POWER, draft_j=0.3)
    ample, scarce = (under_power(TABLE, replace(dear, allowed_w=watts)) for watts in (60.0, 6.0))
    assert best_k([0.8] * 6, scarce, 6).k < best_k([0.8] * 6, ample, 6).k
    assert stop_below(4, 0.8, scarce, 40.0) > stop_below(4, 0.8, ample, 40.0)


def test_what_a_draft_must_be_fed_is_paced_as_well() -> None:
    fed = replace(TABLE, catch_up_s=0.001)
    assert under_power(fed, POWER).catch_up_s > fed.catch_up_s
    assert under_power(fed, AMPLE).catch_up_s == fed.catch_up_s
    assert under_power(TABLE, POWER).catch_up_s == 0.0


def test_prices_without_a_limit_where_nothing_is_allowed() -> None:
    nothing = under_power(TABLE, replace(POWER, allowed_w=3.0))
    assert math.isfinite(best_k([0.5], nothing, 1).tokens_per_s)
    assert pace_s(0.02, 1, 0, Budget(power=replace(POWER, allowed_w=3.0))) == math.inf


def test_whole_tables_can_be_priced_under_power() -> None:
    lines = cost_lines([0.7], under_power(TABLE, POWER), 4)
    assert all(
        line.batched_s >= plain.batched_s for line, plain in zip(lines, cost_lines([0.7], TABLE, 4), strict=True)
    )


def test_a_duty_and_a_stop_pace_without_any_power() -> None:
    assert pace_s(0.02, 3, 2, Budget()) == 0.0
    assert pace_s(0.02, 3, 2, Budget(duty=0.5)) == pytest.approx(0.02)
    assert pace_s(0.02, 3, 2, Budget(duty=0.0)) == math.inf
    assert pace_s(0.02, 3, 2, Budget(run=False)) == math.inf
    # The longer of both: a duty comes on top of the power, not as well as it.
    assert pace_s(0.02, 3, 2, Budget(duty=0.9, power=POWER)) == pace_s(0.02, 3, 2, Budget(power=POWER))


def test_k_as_far_as_the_budget_goes() -> None:
    assert most_drafts(5, Budget()) == 5
    assert most_drafts(5, Budget(max_draft_tokens=2)) == 2
    assert most_drafts(1, Budget(max_draft_tokens=2)) == 1


def test_uneven_waits_are_right_in_the_mean_and_never_alike() -> None:
    waits = [uneven(0.1, turn) for turn in range(1, 9)]
    assert sum(waits) / len(waits) == pytest.approx(0.1, rel=0.1)
    assert len({round(wait, 4) for wait in waits}) == len(waits)
    assert min(waits) >= 0.05 and max(waits) < 0.15
    assert uneven(0.0, 3) == 0.0
    assert uneven(math.inf, 3) == math.inf
