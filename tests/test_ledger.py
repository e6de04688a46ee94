"""Drafting may lose only so much of a text's time, whatever the drafts are worth."""

from __future__ import annotations

import random

import pytest
from choosing import choosing
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.cost import CostTable, step_seconds
from edge_runtime.decoder import Decoder
from edge_runtime.ledger import Ledger, affordable_k
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, ManualClock, ScriptedDraft, decode

TABLE = CostTable(body_s=(0.010, 0.012, 0.014, 0.017), head_s=(0.005, 0.006, 0.008, 0.011), draft_s=0.0)


def may_lose_s(plain_s: float, plain_step_s: float) -> float:
    """What is promised, in figures: of a text that takes ``plain_s`` without drafts."""
    return plain_step_s + 0.01 * plain_s


def test_a_text_starts_with_what_a_step_buys() -> None:
    plain_s = step_seconds(0, TABLE)
    k = affordable_k(Ledger(), TABLE, 3)
    assert step_seconds(k, TABLE) - plain_s <= may_lose_s(0.0, plain_s) < step_seconds(k + 1, TABLE) - plain_s


def test_what_is_won_pays_for_longer_drafts() -> None:
    plain_s = step_seconds(0, TABLE)
    won = Ledger().after(3, step_seconds(2, TABLE), plain_s)
    assert affordable_k(won, TABLE, 3) == 3
    lost = Ledger()
    for allowed in (3, 0):
        assert affordable_k(lost, TABLE, 3) == allowed
        lost = lost.after(1, step_seconds(allowed, TABLE), plain_s)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.integers(1, 3))
def test_no_run_of_luck_loses_more_than_the_credit(kept: list[bool], k_max: int) -> None:
    plain_s, ledger = step_seconds(0, TABLE), Ledger()
    spent = plain = 0.0
    for good in kept:
        k = affordable_k(ledger, TABLE, k_max)
        step_s, committed = step_seconds(k, TABLE), k + 1 if good else 1
        spent, plain = spent + step_s, plain + committed * plain_s
        ledger = ledger.after(committed, step_s, plain_s)
        assert spent <= plain + may_lose_s(plain, plain_s) + 1e-9


@pytest.mark.parametrize("wrong_share", [1.0, 0.9, 0.5, 0.0])
@pytest.mark.parametrize("tokens", [32, 64, 256])
def test_a_primed_policy_is_never_slower_by_more_than_its_ledger(wrong_share: float, tokens: int) -> None:
    """Drafts wrong at random places: all of them, many, half, none."""
    clock, model = ManualClock(), FakeModel(vocab_size=64)
    target = FakeEngine(model, capacity=512, clock=clock, cost=TABLE)
    greedy = SamplingParams(temperature=0.0)
    plain = Session(target.info, [1, 2, 3], greedy, max_tokens=tokens)
    decode(Decoder(target, clock=clock), plain)
    generator = random.Random(5)
    wrong = [place for place in range(3, 3 + tokens) if generator.random() < wrong_share]
    drafter = ScriptedDraft(plain.tokens, wrong, max_k=3)
    session = Session(target.info, [1, 2, 3], greedy, max_tokens=tokens)
    decode(choosing(target, TABLE, models=[drafter], k_max=3, clock=clock), session)
    assert session.tokens.tolist() == plain.tokens.tolist()
    spent, base = (s.totals.draft_s + s.totals.verify_s + s.totals.overhead_s for s in (session, plain))
    assert spent <= base + may_lose_s(base, step_seconds(0, TABLE)) + 1e-6
    if wrong_share == 0.0:
        assert spent < 0.6 * base
