"""Several drafters at once, on real decoding: the text is the target's, and the time goes where it pays."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from choosing import Named, choosing, seconds, told_costs
from test_cost import CPU
from test_decoder_sampling import LikelyButWrong, chi_square_excess

from edge_runtime.choice import TextChoice, TextMemory, decide
from edge_runtime.cost import CostTable, step_seconds
from edge_runtime.decoder import Decoder
from edge_runtime.drafters import chooser as module
from edge_runtime.drafters.chooser import Ask, Chooser, Offer
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import DraftContext, DraftProposal
from edge_runtime.drafters.several import Several
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.errors import EngineError
from edge_runtime.ledger import Ledger
from edge_runtime.sampling import SamplingParams, law_from_logits
from edge_runtime.session import Session, StepResult, StepTimes
from edge_runtime.testing import FakeEngine, FakeModel, ManualClock, ScriptedDraft, decode

GREEDY = SamplingParams(temperature=0.0)
MODEL = FakeModel()
PROMPT = [5, 9, 2, 40, 5, 9]
FLAT = CostTable(body_s=(0.010, 0.0102, 0.0104, 0.0106, 0.0108, 0.011), head_s=(0.001,), draft_s=0.0)


def draft_engine(agreement: float, clock: ManualClock | None = None, draft_s: float = 0.001) -> FakeEngine:
    cost = CostTable(body_s=(draft_s,), head_s=(0.0,), draft_s=0.0)
    return FakeEngine(replace(MODEL, agreement=agreement), capacity=1024, clock=clock, cost=cost)


def run(
    agreements: dict[str, float],
    table: CostTable = FLAT,
    *,
    params: SamplingParams = GREEDY,
    seed: int | None = None,
    tokens: int = 200,
    texts: int = 1,
) -> tuple[float, list[StepResult], Session]:
    """Gain of the last text over plain decoding."""
    clock = ManualClock()
    target = FakeEngine(MODEL, capacity=1024, clock=clock, cost=table)
    models = [Named(name, draft_engine(agreement, clock), target.info) for name, agreement in agreements.items()]
    drafts = dict.fromkeys(agreements, (0.001, 0.0001))
    decoder = choosing(target, table, free=[PromptLookup()], models=models, drafts=drafts, clock=clock)
    steps: list[StepResult] = []
    for _ in range(texts):
        session = Session(target.info, PROMPT, params, max_tokens=tokens, seed=seed)
        steps = decode(decoder, session)
    plain_s = step_seconds(0, table) * session.totals.committed
    return plain_s / seconds(session.totals), steps, session


def plain(params: SamplingParams = GREEDY, seed: int | None = None, tokens: int = 200) -> list[int]:
    engine = FakeEngine(MODEL, capacity=1024)
    session = Session(engine.info, PROMPT, params, max_tokens=tokens, seed=seed)
    decode(Decoder(engine), session)
    return session.generated.tolist()


SETS: list[dict[str, float]] = [{"good": 1.0, "bad": 0.0}, {"bad": -1.0, "worse": 0.0}, {"half": 0.7}, {}]


@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SamplingParams(0.9, top_k=8), 7)], ids=["greedy", "7"])
@pytest.mark.parametrize("agreements", SETS, ids=str)
def test_the_text_is_the_targets_whoever_drafts(
    agreements: dict[str, float], params: SamplingParams, seed: int | None
) -> None:
    wanted = plain(params, seed, 120)
    for table in (FLAT, CPU):
        assert run(agreements, table, params=params, seed=seed, tokens=120)[2].generated.tolist() == wanted


def test_the_good_one_drafts_and_the_others_park() -> None:
    gain, steps, session = run({"bad": 0.0, "good": 1.0, "worse": -1.0})
    sources = session.totals.by_source
    assert gain > 3.0 and sources["good"].drafted > 0.9 * session.totals.drafted
    assert sources["good"].accepted == sources["good"].drafted
    assert "good K=5: expected" in steps[-10].reason


def test_where_nobody_pays_all_park_with_a_reason() -> None:
    gain, steps, session = run({"bad": 0.0, "worse": -1.0}, CPU)
    assert gain > 0.975 and session.totals.steps_by_drafted[0] > 0.9 * session.totals.steps
    assert "bad parked: K=1 would give 0." in steps[-2].reason and "worse parked" in steps[-2].reason


def test_what_one_text_taught_the_next_one_knows() -> None:
    first, *_ = run({"bad": 0.0, "half": 0.85}, CPU, tokens=60)
    third, steps, _ = run({"bad": 0.0, "half": 0.85}, CPU, tokens=60, texts=3)
    assert third >= first
    assert not any(step.source == "bad" and not step.reason.startswith("probe") for step in steps)


def test_early_stop_drafts_on_while_the_draft_is_sure() -> None:
    """Drafts of different lengths under one K, and what stops early was less likely to be kept."""
    _, steps, _ = run({"half": 0.8}, CPU, tokens=200, texts=2)
    longer = [step for step in steps if step.k >= 3 and step.kind != "ended"]
    assert len({step.drafted for step in longer}) > 1
    assert any(step.drafted < step.k for step in longer)


@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SamplingParams(0.9, top_k=8), 7)], ids=["greedy", "7"])
@pytest.mark.parametrize(("table", "used"), [(FLAT, True), (CPU, False)], ids=["flat", "cpu"])
def test_alternatives_stand_beside_a_chain_where_rows_cost_little(
    table: CostTable, used: bool, params: SamplingParams, seed: int | None
) -> None:
    """The cost table decides; the text is the target's either way."""
    gains, beside, wanted = {}, 0, plain(params, seed, 120)
    for branches in (0, 2):
        clock = ManualClock()
        target = FakeEngine(MODEL, capacity=1024, clock=clock, cost=table, trees=True)
        models = [Named("half", draft_engine(0.75, clock, 0.003), target.info)]
        drafts = {"half": (0.003, 0.0001)}
        decoder = choosing(target, table, models=models, drafts=drafts, clock=clock, branches=branches)
        beside = 0
        for _ in range(3):
            session = Session(target.info, PROMPT, params, max_tokens=120, seed=seed)
            steps = decode(decoder, session)
            beside += sum("2 beside it" in step.reason for step in steps)
            assert session.generated.tolist() == wanted
        gains[branches] = step_seconds(0, table) * session.totals.committed / seconds(session.totals)
    assert (beside > 10) == used
    assert gains[2] > 0.94 * gains[0]


def test_a_policy_needs_several_drafters() -> None:
    with pytest.raises(ValueError, match="needs several"):
        Decoder(FakeEngine(MODEL), PromptLookup(), Chooser(told_costs(FLAT, {}), [], 5, 15))
    with pytest.raises(ValueError, match="one name"):
        Several("auto", [PromptLookup()], [PromptLookup()])


def test_a_drafter_that_draws_is_not_asked_for_nothing() -> None:
    """Whether a drawn draft is handed out would hang on the draw."""

    class Drawing(ScriptedDraft):
        def propose(self, context: DraftContext, k: int) -> DraftProposal:
            return LikelyButWrong().propose(context, k)

    target = FakeEngine(MODEL)
    session = Session(target.info, PROMPT, SamplingParams(), max_tokens=9)
    with pytest.raises(EngineError, match="scripted draws"):
        decode(choosing(target, FLAT, free=[Drawing([1])]), session)


def test_a_drafter_with_nothing_to_say_is_left_alone_for_a_while() -> None:
    class Mute(ScriptedDraft):
        asked = 0

        def propose(self, context: DraftContext, k: int) -> DraftProposal:
            self.asked += 1
            return super().propose(context, 0)

    target, mute = FakeEngine(MODEL, capacity=512), Mute([1])
    session = Session(target.info, PROMPT, GREEDY, max_tokens=200)
    decode(choosing(target, FLAT, models=[mute]), session)
    assert session.generated.tolist() == plain() and 1 <= mute.asked < 16


def test_a_long_prompt_does_not_silence_a_draft_model_for_good() -> None:
    """Feeding it the prompt is due where the answer will win it back, and is not owed by the drafts behind it."""
    table, model = FLAT, MODEL
    for fee_s, drafts in ((0.0005, True), (0.2, False)):
        clock = ManualClock()
        target = FakeEngine(model, capacity=1024, max_rows=64, clock=clock, cost=table)
        draft = Named("good", draft_engine(1.0, clock), target.info)
        decoder = choosing(target, table, models=[draft], drafts={"good": (0.001, fee_s)}, clock=clock)
        prompt = random.Random(3).choices(range(64), k=200)
        session = Session(target.info, prompt, GREEDY, max_tokens=100)
        decode(decoder, session)
        assert (session.totals.drafted > 50) == drafts
        # Where it does not pay, it was not fed at all.
        assert draft.kv_len(0) > 0 or not drafts


def test_a_text_that_drafts_nothing_is_not_thought_about_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a board thinking takes as long as a tenth of a step. An offer is looked at whenever there is one."""
    asked = []
    monkeypatch.setattr(module, "decide", lambda *given: asked.append(given) or decide(*given))
    chooser, memory = Chooser(told_costs(FLAT, {"bad": (0.009, 0.0)}), [("bad", 5)], 5, 31), TextMemory()
    for step in range(400):
        plan = chooser.choose(Ask(40, 50 + step, 49 + step, 64, True), [], memory)
        if plan.k:
            memory.ledger = replace(memory.ledger, balance_s=-1.0)
    assert memory.choice.step == 400 and 100 <= len(asked) <= 110
    offers = [Offer("lookup", np.array([1, 2]), 3)]
    for step in range(20):
        chooser.choose(Ask(40, 450 + step, 449 + step, 64, True), offers if step % 2 else [], memory)
    assert len(asked) >= 110


@pytest.mark.parametrize("offered", [0, 40])
def test_a_model_is_not_fed_a_prompt_for_steps_that_are_drafted_for_nothing(offered: int) -> None:
    """A copying answer leaves it a few steps: they do not win back what the whole prompt takes."""
    chooser, memory = Chooser(told_costs(FLAT, {"good": (0.001, 0.0001)}), [("good", 5)], 5, 31), TextMemory()
    memory.choice, memory.offered = TextChoice(step=40), offered
    plan = chooser.choose(Ask(40, 500, 499, 64, True), [], memory)
    assert (plan.source == "good") == (offered == 0), plan.reason


def test_a_text_that_only_one_half_of_suits_each_drafter() -> None:
    """Scripted, so that who is right where is known; what is lost to the wrong ones stays within the ledger."""
    clock = ManualClock()
    target = FakeEngine(MODEL, capacity=1024, clock=clock, cost=CPU)
    text = [*PROMPT, *plain(tokens=400)]
    middle = len(PROMPT) + 200
    scripts = {
        "early": ScriptedDraft(text, range(middle, len(text))),
        "late": ScriptedDraft(text, range(middle)),
        "never": ScriptedDraft(text, range(len(text))),
    }
    for name, script in scripts.items():
        script.name = name
    decoder = choosing(target, CPU, models=list(scripts.values()), clock=clock)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=400)
    base_s = 400 * step_seconds(0, CPU)
    decoder.prefill(session)
    while session.finish_reason is None:
        decoder.step(session)
        plain_s = session.totals.committed * step_seconds(0, CPU)
        assert seconds(session.totals) <= plain_s * 1.015 + 0.5 * step_seconds(0, CPU) + 1e-9
    assert session.tokens.tolist() == text
    assert base_s / seconds(session.totals) > 1.35
    kept = {name: one.accepted for name, one in session.totals.by_source.items()}
    assert kept["early"] > 100 and kept["late"] > 100 and not kept.get("never", 0)


def result(drafted: int, accepted: int, source: str) -> StepResult:
    tokens = tuple(range(accepted + 1))
    times = StepTimes(0.0, 0.0, 0.0, 0.0, 0.0)
    return StepResult(
        tokens, (0.0,) * len(tokens), drafted, drafted, accepted, "bonus", drafted + 1, "batched", (), 0, source, "",
        times, None,
    )  # fmt: skip


def test_short_matches_that_fail_do_not_speak_for_long_ones() -> None:
    """What they have to go by keeps their estimates apart, and what one text taught holds in the next."""
    chooser, rng = Chooser(told_costs(CPU, {}), [], 5, 31), random.Random(1)
    for _ in range(3):
        memory = TextMemory()
        for step in range(120):
            evidence = rng.choice([2, 20])
            offer = Offer("prompt_lookup", np.arange(31), evidence)
            plan = chooser.choose(Ask(40, 100 + step, 99 + step, 500, True), [offer], memory)
            chooser.observe(plan, result(plan.k, plan.k if evidence > 2 else 0, "prompt_lookup"), 99, memory)
    fresh = TextMemory(Ledger(balance_s=1.0))
    ask = Ask(40, 100, 99, 500, True)
    short = chooser.choose(ask, [Offer("prompt_lookup", np.arange(31), 2)], fresh)
    assert short.k == 0 and "prompt_lookup parked: K=1 would give 0." in short.reason
    assert chooser.choose(ask, [Offer("prompt_lookup", np.arange(31), 20)], fresh).k >= 5
    # A sampled text is another matter: what was learnt on greedy ones does not hold there.
    assert chooser.record("prompt_lookup", False, 20).tried == ()


@pytest.mark.parametrize(
    ("steps", "tried", "accepted"),
    [([[7], [8], [9]], 3, 3), ([[7, 8, 9, 1]], 3, 3), ([[7], [8, 1]], 3, 2), ([[1]], 1, 0), ([[7], [8]], 0, 0)],
)
def test_an_offer_that_is_not_drafted_is_watched(steps: list[list[int]], tried: int, accepted: int) -> None:
    """What it would have brought shows at no cost, as far as the text goes along with it."""
    chooser, memory = Chooser(told_costs(CPU, {}), [], 5, 31), TextMemory()
    ask = Ask(40, 100, 99, 500, True)
    plan = chooser.choose(ask, [Offer("prompt_lookup", np.array([7, 8, 9]), 2)], memory)
    assert plan.k == 0
    for committed in steps:
        chooser.observe(plan, replace(result(0, 0, ""), tokens=tuple(committed)), 99, memory)
        plan = chooser.choose(ask, [], memory)
    record = chooser.record("prompt_lookup", True, 2)
    assert (len(record.tried), round(sum(record.accepted))) == (tried, accepted)


def test_a_copy_that_begins_late_in_a_text_is_found_without_probes() -> None:
    """Short matches fail for long, and then are right: nothing was spent to find that out."""
    target = FakeEngine(MODEL, capacity=1024)
    text = [*PROMPT, *plain(tokens=400)]

    class Copying(ScriptedDraft):
        def propose(self, context: DraftContext, k: int) -> DraftProposal:
            return replace(super().propose(context, k), evidence=2)

    drafter = Copying(text, range(200), max_k=31)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=400)
    steps = decode(choosing(target, CPU, free=[drafter], free_k=31), session)
    assert session.tokens.tolist() == text
    early = [step for step in steps if step.drafted and step.accepted == 0]
    assert len(early) < 3 and session.totals.accepted > 120


def _gains(decoder: Decoder, table: CostTable, texts: int) -> list[float]:
    """Of texts of 64 tokens one after the other, over plain decoding."""
    found = []
    for _ in range(texts):
        session = Session(decoder.target.info, PROMPT, GREEDY, max_tokens=64)
        decode(decoder, session)
        found.append(step_seconds(0, table) * session.totals.committed / seconds(session.totals))
    return found


@pytest.mark.parametrize("factor", [2.0, 2.8])
@pytest.mark.parametrize("offered", [True, False], ids=["offers", "models"])
def test_costs_that_were_measured_in_a_bad_moment_park_nobody_for_good(factor: float, offered: bool) -> None:
    """A warm-up that was disturbed while several rows ran: what nobody drafts by, nobody measures again."""
    clock = ManualClock()
    target = FakeEngine(MODEL, capacity=1024, clock=clock, cost=FLAT)
    first, *others = FLAT.body_s
    wrong = replace(FLAT, body_s=(first, *(factor * one for one in others)))
    text = [*PROMPT, *plain(tokens=200)]
    free = [ScriptedDraft(text, max_k=31)] if offered else []
    models = [] if offered else [Named("good", draft_engine(1.0, clock), target.info)]
    decoder = choosing(target, wrong, free=free, models=models, drafts={"good": (0.001, 0.0001)}, clock=clock)
    speeds = _gains(decoder, FLAT, 30)
    assert speeds[-1] > 1.5 and min(speeds) > 0.95


@pytest.mark.parametrize("offered", [True, False], ids=["offers", "models"])
def test_looking_at_costs_again_costs_next_to_nothing_where_they_are_as_dear(offered: bool) -> None:
    clock = ManualClock()
    dear = replace(FLAT, body_s=tuple(0.010 * rows for rows in range(1, 7)))
    target = FakeEngine(MODEL, capacity=1024, clock=clock, cost=dear)
    free = [ScriptedDraft([7] * 200, range(200), max_k=31)] if offered else []
    models = [] if offered else [Named("bad", draft_engine(-1.0, clock), target.info)]
    decoder = choosing(target, dear, free=free, models=models, drafts={"bad": (0.001, 0.0001)}, clock=clock)
    speeds = _gains(decoder, dear, 40)
    assert min(speeds) > 0.97 and sum(speeds[20:]) / 20 > 0.995


def test_a_prediction_is_one_more_source() -> None:
    clock = ManualClock()
    target = FakeEngine(MODEL, capacity=1024, max_rows=64, clock=clock, cost=FLAT)
    models = [Named("bad", draft_engine(0.0, clock), target.info)]
    wanted = plain()
    decoder = choosing(target, FLAT, models=models, clock=clock, free_k=31)
    session = Session(target.info, PROMPT, GREEDY, max_tokens=200, prediction=wanted)
    steps = decode(decoder, session)
    assert session.generated.tolist() == wanted
    assert len(steps) < 40 and max(step.drafted for step in steps) > 16
    assert session.totals.predicted_accepted == session.totals.predicted > 150


SMALL = FakeModel(vocab_size=32, scale=1.0)


@pytest.mark.parametrize(
    "params", [SamplingParams(0.9, top_k=6), SamplingParams(1.2, top_p=0.5)], ids=["top-k", "top-p"]
)
def test_the_joint_law_of_two_tokens_is_the_targets(params: SamplingParams) -> None:
    """Through the chooser, with drafters of every kind at once: a near copy, one far off, a copy of the prompt, earlier
    texts, one with a law of its own. Who drafts may hang on the text, never on what was drawn."""
    engine = FakeEngine(SMALL, candidates=12)
    prompt = [1, 2, 3, 1, 2]
    near = Named("near", FakeEngine(replace(SMALL, agreement=0.8), candidates=12), engine.info)
    far = Named("far", FakeEngine(replace(SMALL, agreement=0.0), candidates=12), engine.info)
    copies = [PromptLookup(2, 1), SuffixCache(1024, secret=b"\x00")]
    table = replace(FLAT, body_s=(0.01, 0.0101, 0.0102))
    # The best one would draft alone, so there are choosers that do not have it.
    decoders = [
        choosing(engine, table, free=copies, models=[near, far, LikelyButWrong()], k_max=2),
        choosing(engine, table, free=copies, models=[far, LikelyButWrong()], k_max=2),
        choosing(engine, table, free=copies, k_max=2),
        choosing(engine, table, free=copies[1:], models=[far], k_max=2),
    ]
    ids, rng, law = np.arange(32), np.random.default_rng(3), {}
    for first in law_items(law_from_logits(SMALL.logits(SMALL.digest(np.array(prompt)), ids), params)):
        behind = SMALL.digest(np.array([*prompt, first[0]]))
        for second in law_items(law_from_logits(SMALL.logits(behind, ids), params)):
            law[first[0], second[0]] = first[1] * second[1]
    counts: Counter[tuple[int, ...]] = Counter()
    sources: Counter[str] = Counter()
    for number in range(600):
        session = Session(engine.info, prompt, params, rng=rng, max_tokens=2)
        while session.finish_reason is None:
            sources[decoders[number % 4].step(session).source] += 1
        counts[tuple(session.generated.tolist())] += 1
    assert chi_square_excess(counts, law) < 4.0
    assert len(sources) > 3, sources


def law_items(law: object) -> list[tuple[int, float]]:
    return list(zip(law.ids.tolist(), law.probs.tolist(), strict=True))  # type: ignore[attr-defined]
