"""A comparison on fake engines: what is decoded beside what, and what a projection's clock says."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from compare_runs import fake_bundle

from edge_runtime.bench.compare.figures import DEFAULT_LABEL, cell, chosen
from edge_runtime.bench.compare.pricing import Curve, VirtualClock, curves, draft_share, priced
from edge_runtime.bench.compare.quality import NEAR_TIE, judged
from edge_runtime.bench.compare.record import DomainRecord, Part
from edge_runtime.bench.compare.study import Plan, Study
from edge_runtime.bench.methods import (
    DEFAULT,
    PLAIN,
    Method,
    decoder_for,
    fixed_methods,
    named_methods,
)
from edge_runtime.bench.prompts import Domain, DomainPrompt
from edge_runtime.bench.reading import read
from edge_runtime.bench.texts import Desk, Held, Law, Spoken, Task, check_fits
from edge_runtime.errors import ConfigError, InputError
from edge_runtime.loading import LoadedBundle
from edge_runtime.sampling import SamplingParams
from edge_runtime.testing import FakeModel

GREEDY = Law("greedy", SamplingParams(temperature=0.0))
SAMPLED = Law("sampled", SamplingParams(temperature=1.0))
FILTERED = Law("filtered", SamplingParams(temperature=1.0, top_k=4))
TASK = Task("law", "one", (1, 5, 9, 3, 5))
FLAT = Curve("flat", "made up", {1: 10.0, 8: 10.0}, 0.05)
STEEP = Curve("steep", "made up", {1: 10.0, 8: 80.0}, 0.05)
TOKENS = 24


def speak(desk: Desk, method: Method, law: Law = GREEDY, number: int = 0) -> Spoken:
    return desk.speak(method, TASK, law, number, TOKENS)


# Methods


def test_methods_are_those_that_the_bundle_offers() -> None:
    labels = [one.label for one in named_methods(fake_bundle(), (), ())]
    assert "lookup auto" in labels and "lookup prompt-length" in labels
    assert "lookup auto threshold" in labels and "auto auto threshold" in labels
    # The default is measured by itself, and the chooser has no rule but its own.
    assert DEFAULT_LABEL not in labels and "auto prompt-length" not in labels
    # A strategy is a model's; only one that goes back can look ahead.
    assert "lookup auto top-k" not in labels
    labels = [one.label for one in named_methods(fake_bundle(FakeModel()), (), ())]
    assert {"draft auto", "draft auto top-k", "draft auto beam", "draft auto exact", "draft confidence"} <= set(labels)


@pytest.mark.parametrize(
    ("method", "greedy", "sampled"),
    [(DEFAULT, True, True), (Method("draft", "2"), True, True), (Method("draft", "auto", "threshold"), True, False),
     (Method("draft", "auto", "exact"), False, True), (Method("draft", "auto", strategy="top-k"), False, True),
     (Method("draft", "auto", strategy="beam"), True, True)],
)  # fmt: skip
def test_a_method_runs_where_it_is_something_of_its_own(method: Method, greedy: bool, sampled: bool) -> None:
    assert (method.differs(greedy=True), method.differs(greedy=False)) == (greedy, sampled)


def test_methods_can_be_chosen() -> None:
    bundle = fake_bundle(FakeModel())
    assert [one.label for one in named_methods(bundle, ("draft",), ("auto", "3"))] == ["draft auto", "draft K=3"]
    assert [one.label for one in fixed_methods(bundle, ("draft", "auto"), (1, 2))] == ["draft K=1", "draft K=2"]


@pytest.mark.parametrize(
    ("drafters", "policies", "words"),
    [(("lokup",), (), "did you mean 'lookup'"), (("draft",), (), "draft"), ((), ("prompt-lenght",), "did you mean"),
     ((), ("8",), "a K from 1 to 7"), ((), ("0",), "a K from 1 to 7")],
)  # fmt: skip
def test_a_method_that_is_none(drafters: tuple[str, ...], policies: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        named_methods(fake_bundle(), drafters, policies)


def test_a_rule_may_ask_for_longer_drafts_than_the_head_reads_at_once() -> None:
    bundle = fake_bundle()
    assert decoder_for(bundle, Method("lookup", "prompt-length"), VirtualClock()).drafter.max_k == 63
    assert decoder_for(bundle, Method("lookup", "3"), VirtualClock()).drafter.max_k == bundle.max_head_rows - 1 == 7


# Texts


@pytest.mark.parametrize("law", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_texts_do_not_depend_on_what_was_decoded_before(law: Law) -> None:
    def fresh() -> Desk:
        return Desk(fake_bundle(FakeModel(agreement=0.9)), Held())

    alone = {method: speak(fresh(), method, law).result.tokens for method in (PLAIN, Method("draft", "3"))}
    desk = fresh()
    for method in (Method("draft", "3"), PLAIN, Method("draft", "3"), Method("draft", "1")):
        found = speak(desk, method, law)
        assert len(found.result.tokens) == TOKENS
        if method in alone:
            assert found.result.tokens == alone[method]
    if law is GREEDY:
        assert len(set(alone.values())) == 1


def test_two_drafters_of_one_engine_do_not_believe_in_each_other_s_cache() -> None:
    desk = Desk(fake_bundle(FakeModel()), Held())
    for method in (Method("draft", "2"), Method("draft", "4"), Method("draft", "2")):
        found = speak(desk, method, FILTERED)
        # A model that drafts for itself is always right, unless its cache holds something else.
        assert found.result.accepted == found.result.drafted > 10


def test_who_drafted_is_counted_by_steps() -> None:
    found = speak(Desk(fake_bundle(FakeModel()), Held()), Method("draft", "3"))
    assert sum(found.sources.values()) == found.totals.steps
    assert found.sources["draft_model"] >= found.totals.steps - 1


# Quality


def test_the_target_reads_what_decoding_noted() -> None:
    bundle = fake_bundle(FakeModel(agreement=0.5))
    desk = Desk(bundle, Held())
    for method in (PLAIN, Method("draft", "3")):
        one = speak(desk, method, SAMPLED)
        reading = read(bundle.target, TASK.ids, one.result.tokens, bundle.max_head_rows)
        assert one.result.mean_log_likelihood == pytest.approx(-reading.nll, abs=1e-5)
        assert reading.regrets.min() >= 0.0
    greedy = speak(desk, PLAIN)
    assert read(bundle.target, TASK.ids, greedy.result.tokens, 8).regrets.max() < 1e-5


@pytest.mark.parametrize(("other", "same"), [("own", "identical"), ("near", "near-tie"), ("far", "differs")])
def test_greedy_texts_may_part_at_a_near_tie_only(other: str, same: str) -> None:
    bundle = fake_bundle()
    plain = speak(Desk(bundle, Held()), PLAIN)
    theirs = read(bundle.target, TASK.ids, plain.result.tokens, 8)
    tokens = list(plain.result.tokens)
    if other != "own":
        # A candidate of this place, near or far by a scale of the logits.
        tokens[4] = int(theirs.candidate_ids[4, 1])
        gap = float(theirs.candidate_logits[4, 0] - theirs.candidate_logits[4, 1])
        theirs.candidate_logits[4] *= (0.5 if other == "near" else 2.0) * NEAR_TIE / gap
    spoken = dataclasses.replace(plain, result=dataclasses.replace(plain.result, tokens=tuple(tokens)))
    found = judged(theirs, theirs, TASK, "greedy", "x", spoken, plain, greedy=True)
    assert (found.same_as_plain, found.differs_at) == (same, None if other == "own" else 4)


# Pricing


@pytest.mark.parametrize(("rows", "flat_ms", "steep_ms"), [(1, 18.1, 18.8), (4, 18.1, 29.7), (8, 18.1, 50.4)])
def test_the_curves_are_the_published_ones(rows: int, flat_ms: float, steep_ms: float) -> None:
    flat, steep = curves()
    assert 1e3 * flat.step_s(rows) == pytest.approx(flat_ms) and 1e3 * steep.step_s(rows) == pytest.approx(steep_ms)


def test_a_curve_between_and_behind_its_points() -> None:
    curve = Curve("c", "", {1: 10.0, 3: 20.0, 4: 22.0}, 0.05)
    assert [1e3 * curve.step_s(rows) for rows in (2, 3, 4, 6)] == pytest.approx([15.0, 20.0, 22.0, 26.0])


@pytest.mark.parametrize(
    ("role", "share"),
    [("target", 1.0), ("draft", 0.1), ("mtp", 0.05), ("heads", 0.08), ("self", 0.7), ("pruned", 0.34)],
)
def test_a_draft_is_priced_by_the_bytes_that_it_reads(role: str, share: float) -> None:
    assert draft_share(fake_bundle().manifest, role, 0.05) == pytest.approx(share)


def _desk(bundle: LoadedBundle, curve: Curve) -> Desk:
    clock = VirtualClock()
    return Desk(priced(bundle, curve, clock), Held(), clock)


def test_plain_decoding_costs_a_step_a_token() -> None:
    assert speak(_desk(fake_bundle(), STEEP), PLAIN).seconds_per_token == pytest.approx(0.01)


def test_a_fixed_draft_costs_what_the_curve_says() -> None:
    """A perfect draft of K = 3: each step commits 4 tokens for one forward of 4 rows and 3 of the draft."""
    bundle = fake_bundle(FakeModel())
    found = _desk(bundle, STEEP).speak(Method("draft", "3"), TASK, GREEDY, 0, 1 + 5 * 4)
    assert found.totals.steps == 5 and found.result.accepted == 15
    # The draft shares no weights and has a tenth of the bytes. It is fed what a full acceptance leaves: two rows at
    # first in each step, and the prompt, but for its last token, before the first.
    draft_rows = [[4, 2, 1, 1]] + [[2, 1, 1]] * 4
    draft_s = sum(0.1 * STEEP.step_s(rows) for step in draft_rows for rows in step)
    assert found.totals.draft_s == pytest.approx(draft_s)
    assert found.totals.verify_s == pytest.approx(5 * STEEP.step_s(4))
    assert found.totals.overhead_s == pytest.approx(0.0, abs=1e-12)
    assert found.seconds_per_token == pytest.approx((draft_s + 5 * STEEP.step_s(4)) / 20)


def test_a_projection_is_the_same_every_time() -> None:
    def seconds() -> float:
        return speak(_desk(fake_bundle(FakeModel(agreement=0.8)), STEEP), DEFAULT, SAMPLED).seconds_per_token

    assert seconds() == seconds()


def _projected(curve: Curve, agreement: float, texts: int = 6) -> tuple[float, float]:
    """Speed-up and drafts a step of the default, once it has learnt."""
    desk = _desk(fake_bundle(FakeModel(agreement=agreement)), curve)
    method = Method("draft", "auto")
    found = [desk.speak(method, TASK, GREEDY, number, 64) for number in range(texts)][texts // 2 :]
    steps = sum(one.totals.steps for one in found)
    speedup = curve.step_s(1) * len(found) / sum(one.seconds_per_token for one in found)
    return speedup, sum(one.totals.drafted for one in found) / steps


def test_the_policy_decides_by_the_curve_and_not_by_this_machine() -> None:
    free, often = _projected(FLAT, 1.0)
    dear, seldom = _projected(STEEP, 0.3)
    assert free > 2.0 and often > 3.0
    # Where each row costs as much as a plain step, a bad draft is parked and loses next to nothing.
    assert 0.95 < dear <= 1.05 and seldom < 0.3


# The study

DOMAIN = Domain("law", "open", "made up", tuple(DomainPrompt(f"p{i}", f"prompt number {i}") for i in range(3)))


def _study(plan: Plan, bundle: LoadedBundle | None = None) -> DomainRecord:
    bundle = bundle or fake_bundle(FakeModel(agreement=0.8))
    return Study(bundle, bundle, plan).domain(DOMAIN)


@pytest.fixture(scope="module")
def plan() -> Plan:
    bundle = fake_bundle(FakeModel(agreement=0.8))
    return Plan(
        laws=(GREEDY, SAMPLED), named=named_methods(bundle, (), ()), fixed=fixed_methods(bundle, (), (1, 3)),
        curves=(FLAT,), rounds=2, named_rounds=1, finalists=1, priced_rounds=2, prompts=2, tokens=16,
    )  # fmt: skip


@pytest.fixture(scope="module")
def record(plan: Plan) -> DomainRecord:
    return _study(plan)


def test_every_part_has_its_texts(plan: Plan, record: DomainRecord) -> None:
    found = Counter((one.part, one.law) for one in record.runs if one.part != "again")
    for law, greedy in (("greedy", True), ("sampled", False)):
        assert found["named", law] == 2 * sum(one.differs(greedy) for one in plan.named)
    assert found["search", "greedy"] == found["search", "sampled"] == 2 * len(plan.fixed)
    assert found["final", "greedy"] == found["final", "sampled"] == 2 * 2 * 2
    others = len(plan.priced_methods())
    assert found["priced", "greedy"] == 2 * (1 + others) and found["priced", "sampled"] == 2 * (2 + others)


def test_the_estimate_counts_what_is_decoded(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real: Callable[..., Spoken] = Desk.speak

    def speak(self: Desk, *given: object) -> Spoken:
        decoded.append(given)
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Desk, "speak", speak)
    small = dataclasses.replace(plan, prompts=1)
    found = _study(small)
    again = sum(one.part == "again" for one in found.runs)
    assert len(decoded) - 2 * again == small.texts([DOMAIN])


def test_greedy_texts_of_all_lossless_methods_are_plain_s(record: DomainRecord) -> None:
    greedy = [one for one in record.quality if one.law == "greedy" and "threshold" not in one.method]
    assert {one.same_as_plain for one in greedy} == {"identical"} and len(greedy) > 8
    assert all(abs(one.recorded_nll_off) < 1e-4 for one in record.quality)
    assert {one.same_as_plain for one in record.quality if one.law == "sampled"} == {None}


def test_texts_are_kept_to_be_looked_at(record: DomainRecord) -> None:
    kept = {(one.law, one.method) for one in record.samples}
    assert {("greedy", DEFAULT_LABEL), ("sampled", DEFAULT_LABEL), ("greedy", PLAIN.label)} <= kept


def test_figures_come_out_of_a_study(record: DomainRecord) -> None:
    found = cell(chosen([record], law="greedy", parts=("final",), method=DEFAULT_LABEL))
    assert found is not None and found.prompts == 2 and found.speedup.pairs == 4
    assert np.isfinite(found.speedup.median) and found.plain_nll == pytest.approx(found.nll, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [({"named": ()}, {"search", "final", "priced"}), ({"fixed": ()}, {"named", "final", "priced"}),
     ({"curves": ()}, {"named", "search", "final"})],
)  # fmt: skip
def test_parts_can_be_left_out(plan: Plan, changes: dict[str, object], parts: set[Part]) -> None:
    small = dataclasses.replace(plan, laws=(GREEDY,), prompts=1, **changes)  # type: ignore[arg-type]
    assert {one.part for one in _study(small).runs} - {"again"} == parts


def test_a_prompt_that_does_not_fit_is_told_before_anything_runs(plan: Plan) -> None:
    bundle = fake_bundle(capacity=31)
    with pytest.raises(InputError, match=r"law: p0 has \d+ tokens, and the context of 31"):
        check_fits(bundle, [DOMAIN], plan.prompts, plan.tokens)
