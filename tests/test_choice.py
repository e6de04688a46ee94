"""Who drafts, and how much: what is lost to wrong guesses is bounded, and what pays is found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cost import BOARD, CPU, TABLES

from edge_runtime.choice import Candidate, KPolicy, SourceState, TextChoice, decide, judged, refill_steps
from edge_runtime.cost import CostTable, best_k, head_seconds, step_seconds
from edge_runtime.estimate import AcceptanceEstimate, observe
from edge_runtime.ledger import Ledger

Rate = Callable[[int], float]
"""Tokens of the text so far -> acceptance."""


@dataclass(frozen=True, slots=True)
class Source:
    rate: Rate
    draft_s: float = 0.0
    offered: Callable[[int], int] = lambda step: 99
    """Step -> tokens that it has; 0: none."""


@dataclass(frozen=True, slots=True)
class Told:
    gain: float
    """Over plain decoding."""
    probes: float
    """Share of the time that probes cost."""
    lost_s: float
    """Most that the text was ever behind plain decoding, beyond what the ledger allows."""
    reasons: list[str]
    sources: list[str]


def decode(
    table: CostTable, sources: Mapping[str, Source], tokens: int, seed: int, k_max: int = 6, prior: float = 0.6
) -> Told:
    """A simulated text."""
    rng, policy, plain_s = random.Random(seed), KPolicy(), step_seconds(0, table)
    tables = {name: replace(table, draft_s=source.draft_s) for name, source in sources.items()}
    estimates = dict.fromkeys(sources, AcceptanceEstimate(prior_mean=prior))
    states = dict.fromkeys(sources, SourceState())
    text, ledger = TextChoice(), Ledger()
    spent = probes_s = lost_s = 0.0
    count, reasons, who = 0, [], []
    while count < tokens:
        candidates = []
        for name, source in sources.items():
            most = min(k_max, source.offered(text.step))
            if most:
                best = best_k(estimates[name].rates(most), tables[name], most, k_min=1)
                candidates.append(Candidate(name, name, estimates[name], tables[name], most, best, states[name]))
        made = decide(candidates, k_max, table, text, ledger, policy)
        text = made.text
        states |= made.states
        own, accepted = tables.get(made.source, table), 0
        while accepted < made.k and rng.random() < sources[made.source].rate(count):
            accepted += 1
        mattered = [1.0] * (accepted + 1) + [0.0] * (made.k - accepted)
        step_s = own.draft(made.k) + own.body(made.k + 1) + own.overhead_s
        step_s += head_seconds(mattered, own, made.head_mode)
        if made.reason.startswith("probe"):
            probes_s += max(0.0, step_s - (plain_s if made.k == 1 else step_seconds(made.k - 1, own)))
        if made.k:
            estimates[made.key] = observe(estimates[made.key], made.k, accepted, made.weight)
            wait = refill_steps(own, policy)
            states[made.key] = judged(states[made.key], accepted > 0, text.step, wait, policy)
        count, spent = count + accepted + 1, spent + step_s
        ledger = ledger.after(accepted + 1, step_s, plain_s)
        lost_s = max(lost_s, spent - 1.01 * count * plain_s - plain_s)
        reasons.append(made.reason)
        who.append(made.source)
    return Told(count * plain_s / spent, probes_s / spent, lost_s, reasons, who)


def steady(rate: float) -> Rate:
    return lambda count: rate


# --- one source


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_never_much_slower_than_plain_and_near_the_best(name: str, rate: float) -> None:
    table = TABLES[name]
    source = Source(steady(rate), table.draft_s)
    found = [decode(table, {"one": source}, 600, seed) for seed in range(4)]
    assert min(one.gain for one in found) > 0.97
    assert max(one.probes for one in found) < 0.015
    assert sum(one.gain for one in found) / 4 > 0.94 * best_k([rate], table, 6).gain


def test_it_parks_and_says_why() -> None:
    found = decode(CPU, {"mtp": Source(steady(0.0), 0.001)}, 300, seed=0)
    assert found.gain > 0.97
    told = [reason for reason in found.reasons if not reason.startswith("probe")]
    assert told[-1].startswith("mtp parked: K=1 would give 0.")


def test_one_rejection_does_not_park() -> None:
    estimate = observe(AcceptanceEstimate(), 1, 0)
    best = best_k(estimate.rates(4), CPU, 4, k_min=1)
    one = Candidate("a", "a", estimate, CPU, 4, best, SourceState())
    assert best.gain < 1.0
    made = decide([one], 4, CPU, TextChoice(), Ledger(balance_s=1.0), KPolicy())
    assert made.k == 1 and made.states["a"].doubt_s > 0.0 and not made.states["a"].parked


@pytest.mark.parametrize("seed", range(4))
def test_a_parked_source_is_looked_at_again(seed: int) -> None:
    late = Source(lambda count: 0.0 if count < 300 else 0.9, BOARD.draft_s)
    found = decode(BOARD, {"one": late}, 1500, seed)
    assert found.gain > 1.5 and found.probes < 0.015
    assert any(reason.startswith("probe: one K=1, parked because K=") for reason in found.reasons)
    assert "parked" not in found.reasons[-1]


def test_probes_back_off() -> None:
    found = decode(CPU, {"one": Source(steady(0.0), 0.001)}, 3000, seed=0)
    at = [place for place, reason in enumerate(found.reasons) if reason.startswith("probe: one K=1")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)][1:]
    assert gaps == sorted(gaps) and len(gaps) > 3
    assert KPolicy().longest_wait <= gaps[-1] <= KPolicy().longest_wait + 2


def test_hysteresis_keeps_a_parked_source_parked_inside_the_gap() -> None:
    def made(prior: float, state: SourceState) -> str:
        estimate = AcceptanceEstimate(prior_mean=prior)  # .13: K=1 gives 1.13 / 1.10
        best = best_k(estimate.rates(1), BOARD, 1, k_min=1)
        return decide(
            [Candidate("a", "a", estimate, BOARD, 1, best, state)], 1, BOARD, TextChoice(), Ledger(), KPolicy()
        ).reason

    assert made(0.13, SourceState()) == "a K=1: expected 1.03x"
    assert made(0.13, SourceState(parked=True, due=9)) == "a parked: K=1 would give 1.03x"
    assert made(0.3, SourceState(parked=True, due=9)) == "a K=1: expected 1.18x"


def test_what_a_source_lacks_must_be_paid_for() -> None:
    estimate = AcceptanceEstimate(prior_mean=0.9)
    best = best_k(estimate.rates(4), BOARD, 4, k_min=1)
    one = Candidate("a", "a", estimate, BOARD, 4, best, SourceState(), upfront_s=3.0, charged_s=3.0)
    policy = KPolicy()
    assert decide([one], 4, BOARD, TextChoice(), Ledger(), policy).reason == "K=0: a draft must pay first"
    assert decide([one], 4, BOARD, TextChoice(), Ledger(balance_s=4.0), policy).k > 1
    # Of two that are equally good, the one that lacks nothing runs.
    other = replace(one, key="b", source="b", upfront_s=0.0, charged_s=0.0)
    assert decide([one, other], 4, BOARD, TextChoice(), Ledger(balance_s=4.0), policy).source == "b"


# --- several


def test_the_best_of_several_is_found() -> None:
    sources = {
        "bad": Source(steady(0.1), 0.05),
        "good": Source(steady(0.8), 0.05),
        "dear": Source(steady(0.9), 0.6),
        "fair": Source(steady(0.5), 0.05),
    }
    best = best_k([0.8], BOARD, 6).gain
    found = [decode(BOARD, sources, 800, seed) for seed in range(4)]
    for one in found:
        assert one.sources[-100:].count("good") > 90
    assert sum(one.gain for one in found) / 4 > 0.92 * best


def test_each_half_of_a_text_has_its_own_best() -> None:
    sources = {
        "early": Source(lambda count: 0.85 if count < 600 else 0.0, 0.05),
        "late": Source(lambda count: 0.0 if count < 600 else 0.85, 0.05),
    }
    for seed in range(4):
        found = decode(BOARD, sources, 1200, seed)
        assert found.gain > 0.88 * best_k([0.85], BOARD, 6).gain
        assert found.sources[20:100].count("early") > 70 and found.sources[-80:].count("late") > 70


def test_a_free_offer_goes_first_where_it_is_better_and_only_there() -> None:
    """A copy now and then, a model otherwise."""
    sources = {
        "copy": Source(steady(0.95), 0.0, lambda step: 6 if step % 3 == 0 else 0),
        "model": Source(steady(0.6), 0.05),
    }
    found = decode(BOARD, sources, 600, seed=1)
    assert found.sources[30::3].count("copy") > 0.9 * len(found.sources[30::3])
    assert found.sources[31::3].count("model") > 0.9 * len(found.sources[31::3])


HALVES = st.sampled_from([0.0, 0.2, 0.5, 0.9])
"""Acceptance in one half of a text."""


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(HALVES, HALVES, st.sampled_from([0.0, 0.2, 0.6])),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(sorted(TABLES)),
    st.integers(20, 200),
    st.integers(0, 99),
)
def test_no_set_of_drafters_loses_more_than_the_ledger_allows(
    rates: Sequence[tuple[float, float, float]], name: str, tokens: int, seed: int
) -> None:
    """Good in one half and useless in the other, several useless at once, dear ones: one bound for all together."""
    table = TABLES[name]
    plain_s = step_seconds(0, table)
    sources = {
        str(number): Source(
            lambda count, one=early, other=late: one if count < tokens / 2 else other,  # type: ignore[misc]
            dear * plain_s,
            lambda step, every=number + 1: 6 if step % every == 0 else 0,  # type: ignore[misc]
        )
        for number, (early, late, dear) in enumerate(rates)
    }
    assert decode(table, sources, tokens, seed).lost_s <= 1e-9


@pytest.mark.parametrize("name", sorted(TABLES))
def test_probes_of_many_parked_drafters_share_one_budget(name: str) -> None:
    table = TABLES[name]
    sources = {str(number): Source(steady(0.0), table.draft_s) for number in range(4)}
    found = decode(table, sources, 1000, seed=2, prior=0.05)
    assert found.probes < 0.015
    looked_at = {reason.split()[1] for reason in found.reasons if reason.startswith("probe")}
    assert len(looked_at) > 2, "they take turns"


def test_reasons_name_those_that_park_and_what_they_would_give() -> None:
    found = decode(CPU, {"mtp": Source(steady(0.0), 0.004), "self": Source(steady(0.0), 0.008)}, 400, seed=0)
    first, second = found.reasons[-1].split("; ")
    assert first.startswith("mtp parked: K=1 would give 0.") and second.startswith("self parked: K=1 would give 0.")
