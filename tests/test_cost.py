"""The price of a step, the K it leads to, and estimates that do not fool themselves."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.cost import (
    Choice,
    CostTable,
    best_k,
    cost_lines,
    dense_by_rows,
    expected_tokens,
    head_seconds,
    paced_seconds,
    price,
    speculation_gain,
    step_seconds,
    stop_below,
    survival,
)
from edge_runtime.estimate import (
    AcceptanceEstimate,
    Climb,
    climbed,
    fixed_length,
    observe,
    prompt_length,
)

# 4-bit Gemma 3 270M on two CPU threads: the head takes half of a step.
CPU = CostTable(
    body_s=(0.0067, 0.0111, 0.0132, 0.0128, 0.0156, 0.0184, 0.0212, 0.024),
    head_s=(0.0055, 0.0073, 0.0098, 0.0132, 0.016, 0.019, 0.022, 0.025),
    draft_s=0.001,
)
BOARD = CostTable(body_s=(1.0, 1.05, 1.1, 1.15, 1.2), head_s=(0.0,), draft_s=0.05)
DEAR_DRAFT = replace(BOARD, draft_s=0.6)
TABLES = {"cpu": CPU, "board": BOARD, "dear": DEAR_DRAFT}

rates = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6)


@given(rates)
def test_expected_tokens_is_the_mean_over_all_outcomes(acceptance: list[float]) -> None:
    mean = 0.0
    for outcome in itertools.product((True, False), repeat=len(acceptance)):
        chance = math.prod(a if kept else 1.0 - a for a, kept in zip(acceptance, outcome, strict=True))
        mean += chance * (1 + len(list(itertools.takewhile(bool, outcome))))
    assert expected_tokens(acceptance) == pytest.approx(mean)
    assert expected_tokens([]) == 1.0


@pytest.mark.parametrize(
    ("a", "c", "v", "k", "gain"),
    [(0.6, 0.1, 0.15, 2, 1.31), (0.8, 0.03, 0.05, 6, 2.67), (0.5, 0.2, 0.1, 1, 1.15)],
)
def test_published_gains(a: float, c: float, v: float, k: int, gain: float) -> None:
    assert round(speculation_gain(a, c, v, k), 2) == gain
    assert max(range(20), key=lambda n: speculation_gain(a, c, v, n)) == k
    rows = tuple(1.0 + v * i for i in range(21))
    choice = best_k([a], CostTable(body_s=rows, head_s=(0.0,), draft_s=c), 20)
    assert (choice.k, round(choice.gain, 2)) == (k, gain)
    assert speculation_gain(1.0, 0.0, 0.0, 4) == 5.0


def test_rows_between_and_beyond_the_measured_ones() -> None:
    assert dense_by_rows({1: 1.0, 2: 2.0, 4: 3.0}) == (1.0, 2.0, 2.5, 3.0)
    assert dense_by_rows({2: 5.0}) == (5.0, 5.0)
    with pytest.raises(ValueError, match="at least one"):
        dense_by_rows({})
    table = CostTable(body_s=(1.0, 1.0, 2.0, 3.0), head_s=(0.5,), draft_s=0.0)
    assert table.body(4) == 3.0
    assert table.body(6) == 5.0  # the slope of the second half goes on
    assert table.head(9) == 0.5
    assert CostTable(body_s=(1.0, 2.0), head_s=(0.0,), draft_s=0.0).body(4) == 4.0
    falling = CostTable(body_s=(1.0, 1.4, 1.3, 1.2), head_s=(0.0,), draft_s=0.0)
    assert falling.body(10) == 1.2


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=8), st.integers(1, 20))
def test_costs_never_fall_beyond_the_table(body: list[float], rows: int) -> None:
    table = CostTable(body_s=tuple(body), head_s=(0.0,), draft_s=0.0)
    assert table.body(len(body) + rows) >= table.body(len(body) + rows - 1)


def test_a_deterministic_engine_pays_for_two_rows() -> None:
    table = replace(CPU, min_rows=2)
    assert step_seconds(0, table) == pytest.approx(0.0111 + 0.0073)
    assert step_seconds(1, table) == pytest.approx(0.0111 + 0.0073 + 0.001)
    # A second row is free there, so that drafting pays at almost any acceptance.
    assert best_k([0.1], table, 4).k == 1
    assert best_k([0.1], CPU, 4).k == 0
    assert price(3, [0.6] * 3, table).head_mode == 2  # never groups of one


def test_a_table_is_checked() -> None:
    for change in ({"body_s": ()}, {"head_s": (math.nan,)}, {"draft_s": -1.0}, {"min_rows": 0}):
        with pytest.raises(ValueError, match="cost"):
            replace(CPU, **change)
    with pytest.raises(ValueError, match="cost something"):
        CostTable(body_s=(0.0,), head_s=(0.0,), draft_s=0.0)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), max_size=5), st.integers(1, 6), st.sampled_from([1, 2]))
def test_a_head_in_groups_costs_the_mean_over_all_outcomes(acceptance: list[float], group: int, min_rows: int) -> None:
    table = replace(CPU, min_rows=min_rows)
    rows, mean = len(acceptance) + 1, 0.0
    for outcome in itertools.product((True, False), repeat=len(acceptance)):
        chance = math.prod(a if kept else 1.0 - a for a, kept in zip(acceptance, outcome, strict=True))
        needed = 1 + len(list(itertools.takewhile(bool, outcome)))
        starts = [first for first in range(0, rows, group) if first < needed]
        mean += chance * sum(table.head(min(group, rows - first)) for first in starts)
    assert head_seconds(survival(acceptance), table, group) == pytest.approx(mean)


def test_groups_of_two_save_a_tenth_where_the_head_is_half_the_step() -> None:
    lazy = price(3, [0.6] * 3, CPU)
    assert lazy.head_mode == 2
    assert lazy.step_s / step_seconds(3, CPU) == pytest.approx(0.89, abs=0.02)
    assert lazy.step_s == pytest.approx(step_seconds(3, CPU, 2, [0.6] * 3))
    assert price(3, [0.6] * 3, BOARD).head_mode == "batched"
    assert price(3, [1.0] * 3, CPU).head_mode == "batched"


@settings(deadline=None)
@given(rates, st.integers(0, 8), st.sampled_from(sorted(TABLES)), st.sampled_from([1, 2]))
def test_best_k_is_the_best(acceptance: list[float], k_max: int, name: str, min_rows: int) -> None:
    table = replace(TABLES[name], min_rows=min_rows)
    extended = acceptance + [acceptance[-1]] * k_max
    choices = [price(k, extended, table) for k in range(k_max + 1)]
    best = best_k(acceptance, table, k_max)
    assert best == max(choices, key=lambda choice: choice.tokens_per_s)  # max takes the first, the smallest K
    assert best.gain >= 1.0
    assert best.tokens_per_s == pytest.approx(best.gain / step_seconds(0, table))
    for choice in choices:
        assert choice.step_s <= step_seconds(choice.k, table) + 1e-15


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=4),
    st.sampled_from(["batched", 1, 2, 3]),
)
def test_drafts_that_stop_early_cost_the_mean_of_their_lengths(steps: list[tuple[float, float]], mode: object) -> None:
    """Each position: how many go on to it, and how many of those that asked for it are kept."""
    k = len(steps)
    going = [1.0]
    for share, _ in steps[1:]:
        going.append(going[-1] * share)
    rates = [rate for _, rate in steps]
    mean = 0.0
    for length in range(1, k + 1):
        share = going[length - 1] - (going[length] if length < k else 0.0)
        modes = ["batched"] if mode == "batched" or mode > length else [mode]  # type: ignore[operator]
        mean += share * step_seconds(length, CPU, modes[0], rates)  # type: ignore[arg-type]
    choice = price(k, rates, CPU, going)
    assert choice.step_s <= mean + 1e-12
    if choice.head_mode == mode:
        assert choice.step_s == pytest.approx(mean)
    assert choice.expected_tokens == pytest.approx(expected_tokens(rates))
    assert price(k, rates, CPU, [1.0] * k) == price(k, rates, CPU)


def test_a_draft_goes_on_while_one_more_pays() -> None:
    """prod a > S (c + v) / a, by hand: a row of verification and a draft of it, at the plain speed."""
    table = CostTable(body_s=(1.0, 1.1, 1.2), head_s=(0.0,), draft_s=0.05)
    assert stop_below(2, 0.5, table, 1.0) == pytest.approx((0.05 + 0.1) / 0.5)
    assert stop_below(1, 0.5, table, 1.0) == 0.0
    assert stop_below(3, 0.0, table, 1.0) == 1.0
    # Dearer rows ask for surer drafts.
    assert stop_below(3, 0.6, CPU, 80.0) > stop_below(3, 0.6, BOARD, 1.0)


def test_cost_lines_show_what_a_lazy_head_saves() -> None:
    lines = cost_lines([0.6], CPU, 4)
    assert [line.k for line in lines] == [0, 1, 2, 3, 4]
    assert lines[0].lazy_s == lines[0].batched_s and lines[0].group is None and lines[0].batched_gain == 1.0
    for line in lines[1:]:
        assert line.batched_s == pytest.approx(step_seconds(line.k, CPU))
        assert line.lazy_s == min(step_seconds(line.k, CPU, group, [0.6] * line.k) for group in (1, 2, 3, 4))
        assert line.lazy_gain == pytest.approx(line.expected_tokens * step_seconds(0, CPU) / line.lazy_s)
    # A tenth of a step of K=3, as measured where the head is half of it.
    assert lines[3].group == 2 and lines[3].lazy_s / lines[3].batched_s == pytest.approx(0.89, abs=0.02)
    assert all(line.lazy_s >= line.batched_s for line in cost_lines([0.6], BOARD, 3))


def test_limits_of_best_k() -> None:
    plain_s = step_seconds(0, CPU)
    assert best_k([], CPU, 4) == Choice(0, "batched", 1.0, plain_s, 1.0 / plain_s, 1.0)
    assert best_k([0.0], CPU, 4, k_min=1).gain < 1.0
    for acceptance, k_max in (([], 4), ([0.5], 0)):
        with pytest.raises(ValueError, match="no K"):
            best_k(acceptance, CPU, k_max, k_min=1)
    for wrong_price in (
        lambda: price(2, [0.5], CPU),
        lambda: step_seconds(-1, CPU),
        lambda: step_seconds(2, CPU, 2),
        lambda: step_seconds(1, CPU, 0, [0.5]),
    ):
        with pytest.raises(ValueError, match=r"\d|priced"):
            wrong_price()


def test_paced_seconds_meets_the_mean_power() -> None:
    assert paced_seconds(0.1, 1.0, idle_w=5.0, allowed_w=15.0) == 0.1  # 10 W: free
    paced = paced_seconds(0.1, 2.5, idle_w=5.0, allowed_w=15.0)
    assert (2.5 + 5.0 * (paced - 0.1)) / paced == pytest.approx(15.0)
    assert paced_seconds(0.1, 1.0, idle_w=5.0, allowed_w=5.0) == math.inf


# --- estimates ---


def test_a_fully_accepted_draft_is_censored() -> None:
    state = AcceptanceEstimate()
    for _ in range(50):
        state = observe(state, 2, 2)
    first, second, third, fourth = state.rates(4)
    assert first > 0.85
    assert third == pytest.approx(second * state.deeper)
    assert fourth == pytest.approx(third * state.deeper)
    assert len(state.tried) == 2


def test_a_rejection_hides_what_comes_behind() -> None:
    state = observe(AcceptanceEstimate(), 4, 1)
    assert state.tried == (1.0, 1.0)
    assert state.accepted == (1.0, 0.0)
    assert observe(state, 0, 0) == state
    for drafted, accepted in ((1, 2), (1, -1)):
        with pytest.raises(ValueError, match="drafted"):
            observe(state, drafted, accepted)


@pytest.mark.parametrize("true_rates", [(0.9, 0.5, 0.7), (0.3, 0.8, 0.1), (0.0, 0.0, 0.0)])
def test_estimates_find_conditional_rates(true_rates: tuple[float, ...]) -> None:
    rng, state = random.Random(1), AcceptanceEstimate(keep=0.999, fade=1.0)
    for _ in range(4000):
        accepted = 0
        while accepted < 3 and rng.random() < true_rates[accepted]:
            accepted += 1
        state = observe(state, 3, accepted)
    for position in range(len(state.tried)):
        tolerance = 0.01 + 2.0 / math.sqrt(state.tried[position])
        assert state.rates(3)[position] == pytest.approx(true_rates[position], abs=tolerance)


def test_a_weighted_trial_equals_as_many_trials() -> None:
    once, thrice = observe(AcceptanceEstimate(), 1, 1, weight=3.0), AcceptanceEstimate()
    for _ in range(3):
        thrice = observe(thrice, 1, 1)
    assert once.tried == pytest.approx(thrice.tried)
    assert once.accepted == pytest.approx(thrice.accepted)


def test_named_policies() -> None:
    assert [prompt_length(n, 100) for n in (0, 200, 500, 2000)] == [80, 80, 50, 20]
    assert prompt_length(500, 100, "chat") == 30
    assert prompt_length(500, 100, "summary") == 60
    assert prompt_length(500, 7) == 7
    assert [fixed_length(3, room) for room in (-1, 0, 2, 9)] == [0, 0, 2, 3]


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 2, 2), (0.5, 2, 4), (0.75, 3, 7), (1.0, 10, 10)])
def test_a_climb_stands_a_little_above_what_is_kept(rate: float, low: int, high: int) -> None:
    state, seen, rng = Climb(), [], random.Random(2)
    for _ in range(300):
        accepted = 0
        while accepted < state.k and rng.random() < rate:
            accepted += 1
        state = climbed(state, accepted)
        seen.append(state.k)
    assert low <= sum(seen[100:]) / 200 <= high and max(seen) <= 10
