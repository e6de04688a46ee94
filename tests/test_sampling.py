"""The candidates' law against the full row's, and both against a plain reading of the filters."""

from __future__ import annotations

import math
import timeit

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.errors import EngineError, InputError
from edge_runtime.sampling import (
    Distribution,
    SamplingParams,
    law_from_candidates,
    law_from_logits,
    law_over_candidates,
    probability,
)


def falling(logits: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-logits, kind="stable")[:count]


def log_sum_exp(logits: np.ndarray, params: SamplingParams) -> float:
    scaled = logits.astype(np.float64) * params.inverse_temperature
    return float(scaled.max() + math.log(np.exp(scaled - scaled.max()).sum()))


def from_candidates(logits: np.ndarray, count: int, params: SamplingParams) -> Distribution | None:
    ids = falling(logits, count)
    return law_from_candidates(ids, logits[ids], log_sum_exp(logits, params), params, len(logits))


def plain_reading(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """The filters one after the other, renormalised after each: slow and obvious."""
    if params.greedy:
        return {int(np.argmax(logits)): 1.0}
    scaled = logits.astype(np.float64) * params.inverse_temperature
    probs = np.exp(scaled - scaled.max())
    order = [int(i) for i in falling(logits, len(logits))]
    law = {i: float(probs[i]) for i in order if probs[i] > 0.0}
    if params.top_k:
        law = dict(list(law.items())[: params.top_k])
    if params.top_p < 1.0:
        total, mass, kept = math.fsum(law.values()), 0.0, {}
        for token, weight in law.items():
            if mass >= params.top_p * total:
                break
            kept[token] = weight
            mass += weight
        law = kept
    best = max(law.values())
    law = {token: weight for token, weight in law.items() if weight >= params.min_p * best}
    total = math.fsum(law.values())
    return {token: weight / total for token, weight in law.items()}


def assert_same(a: Distribution, b: Distribution) -> None:
    assert np.array_equal(a.ids, b.ids)
    assert np.array_equal(a.probs, b.probs)


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.25, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 16, 40, 1000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.25, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
# Few distinct values make many ties; wide ones are nearly degenerate.
logits_strategy = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=40),
    st.lists(st.sampled_from([-math.inf, -900.0, 0.0, 1.0, 88.0]), min_size=1, max_size=40),
).map(lambda values: np.array(values, dtype=np.float32))


@settings(max_examples=400, deadline=None)
@given(logits_strategy, params_strategy, st.integers(1, 40))
def test_candidates_agree_exactly_with_the_full_row(logits: np.ndarray, params: SamplingParams, count: int) -> None:
    if np.isneginf(logits).all():
        return
    law = from_candidates(logits, min(count, len(logits)), params)
    full = law_from_logits(logits, params)
    if law is not None:
        assert_same(law, full)
    contained = params.greedy or 0 < params.top_k <= count or count >= len(logits)
    assert law is not None or not contained


@settings(max_examples=300, deadline=None)
@given(logits_strategy, params_strategy)
def test_full_row_agrees_with_a_plain_reading(logits: np.ndarray, params: SamplingParams) -> None:
    if np.isneginf(logits).all():
        return
    law = law_from_logits(logits, params)
    assert (np.diff(law.ids) > 0).all() and (law.probs > 0.0).all()
    assert law.probs.sum() == pytest.approx(1.0, abs=1e-12)
    expected = plain_reading(logits, params)
    if params.top_p < 1.0 and set(expected) != set(law.ids.tolist()):
        # Where a mass meets top_p exactly, the order of float additions decides one token.
        assert abs(len(expected) - len(law.ids)) <= 1
        return
    assert set(expected) == set(law.ids.tolist())
    for token, prob in expected.items():
        assert law.prob(token) == pytest.approx(prob, abs=1e-12)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=5),
        SamplingParams(top_k=5000),
        SamplingParams(top_p=0.5),
        SamplingParams(top_p=0.999),
        SamplingParams(top_k=3000, top_p=0.95),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=0.5, top_p=0.9, min_p=0.02),
    ],
)
def test_large_vocabulary_sorts_in_parts(params: SamplingParams) -> None:
    rng = np.random.default_rng(3)
    logits = (np.round(rng.standard_normal(20_000) * 16) / 8).astype(np.float32)  # many ties
    law = law_from_logits(logits, params)
    expected = plain_reading(logits, params)
    assert law.ids.tolist() == sorted(expected)
    np.testing.assert_allclose(law.probs, [expected[i] for i in law.ids.tolist()], atol=1e-12)


def test_which_laws_the_candidates_contain() -> None:
    logits = np.linspace(4.0, -4.0, 100, dtype=np.float32)
    assert from_candidates(logits, 8, SamplingParams(temperature=0.0)) is not None
    assert from_candidates(logits, 8, SamplingParams(top_k=8)) is not None
    assert from_candidates(logits, 8, SamplingParams(top_k=9)) is None
    assert from_candidates(logits, 8, SamplingParams()) is None
    assert from_candidates(logits, 100, SamplingParams()) is not None
    assert from_candidates(logits, 8, SamplingParams(top_p=0.2)) is not None
    assert from_candidates(logits, 8, SamplingParams(top_p=0.9)) is None
    assert from_candidates(logits, 8, SamplingParams(min_p=0.8)) is not None
    assert from_candidates(logits, 8, SamplingParams(min_p=0.1)) is None
    # A top_k beyond the candidates still answers where top_p or min_p cuts well inside them.
    assert from_candidates(logits, 20, SamplingParams(top_k=22, top_p=0.3)) is not None
    assert from_candidates(logits, 8, SamplingParams(top_k=50, top_p=0.9, min_p=0.8)) is not None


def test_a_tie_that_may_go_on_past_the_candidates_is_not_contained() -> None:
    logits = np.zeros(10, dtype=np.float32)
    assert from_candidates(logits, 4, SamplingParams(min_p=1.0)) is None
    assert from_candidates(logits, 4, SamplingParams(top_p=0.2)) is None  # on the edge: within the slack
    law = from_candidates(logits, 4, SamplingParams(top_p=0.25))
    assert law is not None and law.ids.tolist() == [0, 1, 2]


def test_a_float32_log_sum_exp_changes_no_law() -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        logits = (rng.standard_normal(300) * 4).astype(np.float32)
        params = SamplingParams(temperature=0.8, top_p=float(rng.uniform(0.05, 0.95)))
        ids = falling(logits, 64)
        near = float(np.float32(log_sum_exp(logits, params)))
        law = law_from_candidates(ids, logits[ids], near, params, len(logits))
        if law is not None:
            assert_same(law, law_from_logits(logits, params))


def test_extreme_temperature_and_masked_rows() -> None:
    logits = np.array([-np.inf, 80.0, -1e4, 79.0], dtype=np.float32)
    law = law_from_logits(logits, SamplingParams(temperature=1e-4))
    assert law.ids.tolist() == [1] and law.probs.tolist() == [1.0]
    assert 0 not in law_from_logits(logits, SamplingParams(temperature=100.0)).ids
    assert SamplingParams(temperature=1e-9).greedy


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_broken_row_is_an_engine_error(bad: float) -> None:
    logits = np.array([bad, 1.0, 0.0], dtype=np.float32)
    with pytest.raises(EngineError, match="not usable"):
        law_from_logits(logits, SamplingParams())
    with pytest.raises(EngineError, match="not usable"):
        law_from_candidates(np.arange(3), logits, 1.0, SamplingParams(top_k=2), 10)
    with pytest.raises(EngineError):
        law_from_logits(np.full(4, -np.inf, dtype=np.float32), SamplingParams())


def test_probability_of_one_logit_equals_the_law() -> None:
    logits = np.array([1.0, 0.5, -2.0, 3.0], dtype=np.float32)
    params = SamplingParams(temperature=0.7)
    law = law_from_logits(logits, params)
    for token in range(4):
        got = probability(float(logits[token]), log_sum_exp(logits, params), params)
        assert got == pytest.approx(law.prob(token), abs=1e-12)
    with pytest.raises(ValueError, match="pure temperature"):
        probability(1.0, 2.0, SamplingParams(top_k=3))


def test_a_draft_law_needs_no_vocabulary() -> None:
    law = law_over_candidates(np.array([9, 4, 7]), np.array([2.0, 1.0, 0.0], dtype=np.float32), SamplingParams(top_k=2))
    assert law.ids.tolist() == [4, 9]
    assert law.prob(9) == pytest.approx(math.e / (1.0 + math.e))


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_k": True},
        {"top_k": 1.5},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 1.5},
    ],
)
def test_params_are_checked_in_one_line(values: dict[str, float]) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert next(iter(values)) in str(caught.value) and "\n" not in str(caught.value)


def test_distribution() -> None:
    law = Distribution.of(np.array([7, 2, 5]), np.array([1.0, 3.0, 0.0]))
    assert law.ids.tolist() == [2, 7] and law.probs.tolist() == [0.75, 0.25]
    assert [law.prob(i) for i in (2, 5, 7, 99)] == [0.75, 0.0, 0.25, 0.0]
    assert law.probs_at(np.array([99, 7, 0])).tolist() == [0.0, 0.25, 0.0]
    assert Distribution.one_hot(3).prob(3) == 1.0
    for ids, weights in (([1, 1], [0.5, 0.5]), ([1, 2], [0.5]), ([1], [0.0]), ([1], [math.nan])):
        with pytest.raises(ValueError, match="distribution"):
            Distribution.of(np.array(ids), np.array(weights))


def test_a_row_costs_microseconds() -> None:
    rng = np.random.default_rng(0)
    ids = np.sort(rng.permutation(262_144)[:64])
    logits = -np.sort(-(rng.standard_normal(64) * 3 + 20)).astype(np.float32)
    for params in (SamplingParams(temperature=0.0), SamplingParams(top_k=64, top_p=0.95, min_p=0.05)):
        best = min(
            timeit.repeat(
                lambda p=params: law_from_candidates(ids, logits, 25.0, p, 262_144),  # type: ignore[misc]
                number=50,
                repeat=20,
            )
        )
        assert best / 50 < 300e-6  # 30 us on a desktop core; the margin is for busy machines
