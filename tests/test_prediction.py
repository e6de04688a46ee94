"""The client's prediction as a draft: it begins, goes on, meets again after edits, and never changes the text."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.cost import CostTable
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.chooser import Chooser
from edge_runtime.drafters.costs import StepCosts
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength, LengthPolicy
from edge_runtime.drafters.prediction import Prediction
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.drafters.several import Several
from edge_runtime.errors import InputError
from edge_runtime.generation import Generation
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session, StepResult
from edge_runtime.testing import FakeEngine, FakeGrammar, FakeModel, ManualClock, decode
from edge_runtime.text.stream import TextStream

PROMPT = [5, 9, 2, 40]
MODEL = FakeModel()
GREEDY = SamplingParams(temperature=0.0)
COST = CostTable(body_s=tuple(0.010 + 0.0015 * rows for rows in range(16)), head_s=(0.002, 0.0025), draft_s=0.0)


def answer(count: int, params: SamplingParams = GREEDY) -> list[int]:
    engine = FakeEngine(MODEL, capacity=256)
    session = Session(engine.info, PROMPT, params, seed=7, max_tokens=count)
    decode(Decoder(engine), session)
    return session.generated.tolist()


TEXT = answer(120)


def measured() -> Chooser:
    """Told nothing: it finds out what a step costs."""
    return Chooser(StepCosts(), [], 5, 31)


def run(
    prediction: list[int],
    length: LengthPolicy | Chooser,
    count: int = 120,
    params: SamplingParams = GREEDY,
    **options: int,
) -> tuple[Session, list[StepResult]]:
    clock = ManualClock()
    engine = FakeEngine(MODEL, capacity=256, max_rows=32, clock=clock, cost=COST)
    session = Session(engine.info, PROMPT, params, seed=7, max_tokens=count, prediction=prediction, **options)  # type: ignore[arg-type]
    drafter: Drafter | None = Several("none", (), ()) if isinstance(length, Chooser) else None
    return session, decode(Decoder(engine, drafter, length, clock=clock), session)


@pytest.mark.parametrize("policy", ["fixed", "measured"])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_k=5)], ids=str)
def test_what_was_predicted_rightly_is_accepted(policy: str, params: SamplingParams) -> None:
    wanted = answer(120, params)
    session, steps = run(wanted, FixedLength(4) if policy == "fixed" else measured(), params=params)
    assert session.generated.tolist() == wanted
    totals = session.totals
    assert totals.predicted == totals.predicted_accepted == totals.accepted
    if policy == "fixed":
        assert {step.drafted for step in steps[1:-1]} == {4}
    else:
        # It grows with what was kept: a handful of steps, where plain decoding takes 120.
        assert max(step.drafted for step in steps) > 16
        assert len(steps) < 25 and totals.predicted_accepted > 90


@pytest.mark.parametrize("policy", ["fixed", "measured"])
def test_it_meets_the_text_again_after_edits(policy: str) -> None:
    edited = [*TEXT[:20], 1, *TEXT[21:50], *TEXT[55:80], 2, 3, 4, *TEXT[80:]]
    session, _ = run(edited, FixedLength(4) if policy == "fixed" else measured())
    assert session.generated.tolist() == TEXT
    totals = session.totals
    assert totals.predicted_accepted > 60
    assert totals.predicted - totals.predicted_accepted <= 4 + 2 * (policy == "measured")


def test_a_wrong_prediction_costs_little_and_changes_nothing() -> None:
    wrong = np.random.default_rng(1).integers(0, 64, 120).tolist()
    session, steps = run(wrong, measured())
    assert session.generated.tolist() == TEXT
    assert session.totals.predicted_accepted < 10
    assert session.totals.predicted < 40
    plain = Decoder(FakeEngine(MODEL))
    assert plain.drafter.name == "none" and all(step.source in ("", "prediction") for step in steps)


def test_it_goes_before_the_drafter_and_the_grammar_before_it() -> None:
    engine = FakeEngine(MODEL, capacity=256)
    prediction = [*TEXT[:30], *[1] * 50]
    # Every fifth token of the text is forced.
    grammar = FakeGrammar(lambda prefix: range(64) if len(prefix) % 5 else [TEXT[len(prefix)]])
    for given, sources in (
        (None, {"", "prediction", "draft_model"}),
        (grammar, {"", "prediction", "draft_model", "grammar"}),
    ):
        draft = DraftModel(FakeEngine(MODEL, capacity=256), engine.info)
        session = Session(engine.info, PROMPT, GREEDY, max_tokens=100, prediction=prediction, grammar=given)
        steps = decode(Decoder(engine, draft, FixedLength(3)), session)
        assert session.generated.tolist() == TEXT[:100]
        assert {step.source for step in steps} == sources
        assert steps[1].source in ("prediction", "grammar")


def test_the_estimates_of_the_drafter_are_its_own() -> None:
    policy = measured()
    clock = ManualClock()
    engine = FakeEngine(MODEL, capacity=256, clock=clock, cost=COST)
    before = policy.record("prompt_lookup", True, 2)
    decoder = Decoder(engine, Several("lookup", [PromptLookup()], ()), policy, clock=clock)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=120, prediction=TEXT)
    decode(decoder, session)
    assert session.totals.predicted > 60
    assert policy.record("prompt_lookup", True, 2) == before
    assert policy.record("prediction", True).rates(1)[0] > 0.9


def test_the_cap_of_the_request_holds() -> None:
    for cap in (0, 1, 3):
        session, steps = run(TEXT, measured(), max_draft_tokens=cap)
        assert session.generated.tolist() == TEXT
        assert max(step.drafted for step in steps) == cap


def test_the_result_counts_them_apart() -> None:
    engine = FakeEngine(MODEL, capacity=256)
    session = Session(engine.info, PROMPT, GREEDY, max_tokens=40, prediction=[*TEXT[:11], 1, *TEXT[12:40]])
    made = Generation(Decoder(engine, None, FixedLength(4)), session, TextStream(lambda token: b"x"))
    list(made)
    result = made.result()
    assert (result.predicted, result.predicted_accepted) == (
        session.totals.predicted,
        session.totals.predicted_accepted,
    )
    assert result.predicted_accepted > 20 and result.predicted - result.predicted_accepted == 1


def follow(prediction: list[int], text: list[int], most: int = 4) -> list[int]:
    return Prediction(prediction, 100).following(np.array(text, np.int64), most).tolist()


@pytest.mark.parametrize(
    ("prediction", "text", "wanted"),
    [
        ([1, 2, 3, 4, 5], [], [1, 2, 3, 4]),
        ([1, 2, 3, 4, 5], [1, 2], [3, 4, 5]),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], []),
        ([1, 2, 3, 4, 5], [1, 9], []),
        ([1, 2, 3, 4, 5], [1, 9, 3], [4, 5]),  # replaced
        ([1, 2, 3, 4, 5], [1, 9, 8, 2], [3, 4, 5]),  # put in
        ([1, 2, 3, 4, 5], [1, 4], [5]),  # left out
        ([1, 2, *range(10, 50), 3, 4, 5], [1, 9, 3], []),  # one token far away is chance
        ([1, 2, *range(10, 50), 3, 4, 5], [1, 9, 3, 4], [5]),  # two are not
        ([1, 2, 3, 7, 1, 2, 3, 8], [1, 2, 3, 7, 1, 2, 3], [8]),  # forward, where both places agree
        ([5, 1, 2, 7, 6, 1, 2, 8], [9, 6, 1, 2], [8]),  # the longer agreement
        ([], [1, 2], []),
    ],
)
def test_where_it_goes_on(prediction: list[int], text: list[int], wanted: list[int]) -> None:
    assert follow(prediction, text) == wanted
    # The same in one go, token by token, and behind a text that was cut.
    made = Prediction(prediction, 100)
    for count in (*range(len(text) + 1), 0, len(text)):
        found = made.following(np.array(text[:count], np.int64), 4)
    assert found.tolist() == wanted


def test_ids_must_exist() -> None:
    for tokens in ([64], [-1]):
        with pytest.raises(InputError) as caught:
            Session(FakeEngine(MODEL).info, PROMPT, GREEDY, prediction=tokens)
        assert caught.value.param == "prediction"
