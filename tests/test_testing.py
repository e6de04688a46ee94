"""The fake engine keeps the contract, and can be told from one that a caller misuses."""

from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.cost import CostTable
from edge_runtime.engines.protocol import Engine, Floats, HeadOutput, HeadRequest, StepInput
from edge_runtime.errors import EngineError
from edge_runtime.testing import (
    FakeAssistant,
    FakeEngine,
    FakeHeads,
    FakeModel,
    FakeMultiToken,
    FakeSelfDraft,
    ManualClock,
    ScriptedDraft,
)
from edge_runtime.testing.model import digest_of, rows_of

MODEL = FakeModel()
IDS = np.arange(64)


def forward(engine: Engine, tokens: list[int], position: int, slot: int = 0, first: int = 0) -> HeadOutput:
    step = StepInput(slot, np.array(tokens, np.int64), position, HeadRequest(first, len(tokens)))
    head = engine.forward(step).head
    assert head is not None
    return head


def rows(engine: FakeEngine, count: int) -> list[Floats]:
    return [engine.logits(row).copy() for row in range(count)]


@pytest.mark.parametrize("order", [None, 1, 3])
def test_whole_chunked_and_rolled_back_are_equal(order: int | None) -> None:
    model = FakeModel(order=order)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    whole, chunked = FakeEngine(model), FakeEngine(model)
    forward(whole, tokens, 0)
    wanted = rows(whole, 8)
    forward(chunked, [3, 1, 4, 7, 7, 7], 0)
    forward(chunked, [1, 5, 9], 3)
    forward(chunked, [2, 6], 6)
    assert np.array_equal(rows(chunked, 2), wanted[6:])
    for position, row in enumerate(wanted):
        assert np.array_equal(row, model.logits(model.digest(np.array(tokens[: position + 1])), IDS))


def test_what_a_caller_forgot_changes_the_logits() -> None:
    right = FakeEngine(MODEL)
    forward(right, [3, 1, 4, 1, 5], 0)
    wanted = rows(right, 5)[4]
    hole, stale, misplaced, polluted = (FakeEngine(MODEL) for _ in range(4))
    forward(hole, [3, 1, 4], 0)
    forward(hole, [5], 4)
    forward(stale, [3, 1, 4, 7], 0)
    forward(stale, [5], 4)
    forward(misplaced, [3, 1, 4, 1], 0)
    forward(misplaced, [5], 3)
    # Written behind a wrong token that is put right afterwards: an entry keeps what it was made from.
    forward(polluted, [3, 1, 7, 1], 0)
    forward(polluted, [4], 2)
    forward(polluted, [5], 4)
    for engine in (hole, stale, misplaced, polluted):
        assert not np.array_equal(engine.logits(0), wanted)


def test_the_padded_row_is_garbage_that_is_overwritten() -> None:
    padded, plain = FakeEngine(MODEL, min_rows=2, capacity=4), FakeEngine(MODEL, capacity=4)
    for position, token in enumerate([3, 1, 4, 1]):
        forward(padded, [token], position)
        forward(plain, [token], position)
        assert np.array_equal(padded.logits(0), plain.logits(0))


def test_agreement_is_what_it_says() -> None:
    texts = [np.array([a, b]) for a in range(20) for b in range(20)]

    def agreed(agreement: float) -> float:
        other = FakeModel(agreement=agreement)
        same = [
            MODEL.logits(MODEL.digest(t), IDS).argmax() == other.logits(other.digest(t), IDS).argmax() for t in texts
        ]
        return sum(same) / len(same)

    assert agreed(1.0) == 1.0
    assert agreed(0.9) > agreed(0.6) > agreed(0.3) > agreed(-1.0) == 0.0
    assert agreed(0.0) < 0.05


def test_it_fails_when_told_to_and_once() -> None:
    engine = FakeEngine(MODEL)
    engine.fail_after = 1
    forward_only = StepInput(0, np.array([1]), 0, None)
    engine.forward(forward_only)
    with pytest.raises(EngineError):
        engine.forward(forward_only)
    engine.forward(forward_only)


def test_hidden_rows_hold_what_the_model_knows_and_come_with_a_prefix() -> None:
    tokens = [3, 1, 4, 1, 5, 9]
    engine = FakeEngine(MODEL, slots=2, keeps_hidden=True)
    output = engine.forward(StepInput(0, np.array(tokens), 0, None))
    wanted = [MODEL.digest(np.array(tokens[: place + 1])) for place in range(6)]
    assert [digest_of(row) for row in output.hidden] == wanted
    assert [digest_of(row) for row in engine.hidden_rows(0)[:6]] == wanted
    engine.forward(StepInput(0, np.array([8, 8]), 4, None))
    assert [digest_of(row) for row in engine.hidden_rows(0)[:4]] == wanted[:4]
    engine.copy_prefix(0, 1, 4)
    assert [digest_of(row) for row in engine.hidden_rows(1)[:5]] == [*wanted[:4], 0]
    for digest in (0, 1, 2**52 - 1, 2**52 + 5, 123456789012345):
        assert digest_of(rows_of([digest])[0]) == digest
    with pytest.raises(ValueError, match="keeps no hidden rows"):
        FakeEngine(MODEL).hidden_rows(0)


def test_engines_that_read_hidden_rows_notice_what_does_not_follow() -> None:
    tokens = [3, 1, 4, 1, 5, 9]
    true = rows_of([MODEL.digest(np.array(tokens[: place + 1])) for place in range(6)])

    def best(engine: FakeEngine, first: int, last: int, hidden: Floats, place: int) -> int:
        """What it says behind ``tokens[last]``, fed with those from ``first`` on."""
        fed = np.array(tokens[first : last + 1])
        head = engine.forward(StepInput(0, fed, place, HeadRequest(len(fed) - 1, len(fed)), hidden)).head
        assert head is not None
        return int(head.argmax[0])

    wanted = [int(MODEL.logits(MODEL.digest(np.array(tokens[: place + 1])), IDS).argmax()) for place in range(6)]
    whole = FakeMultiToken(MODEL)
    assert best(whole, 1, 3, true[:3], 0) == wanted[3]
    assert best(whole, 4, 5, true[3:5], 3) == wanted[5]
    assert best(FakeMultiToken(MODEL), 1, 3, true[1:4], 0) != wanted[3], "rows that are one ahead"
    hole = FakeMultiToken(MODEL)
    assert best(hole, 1, 3, true[:3], 0) == wanted[3]
    assert best(hole, 5, 5, true[4:5], 4) != wanted[5], "an entry is missing"
    guessing = FakeMultiToken(MODEL)
    output = guessing.forward(StepInput(0, np.array(tokens[1:4]), 0, None, true[:3]))
    assert output.feed is not None
    assert best(guessing, 4, 4, output.feed[-1:], 3) == wanted[4], "it may go on with its own word"
    assert best(guessing, 5, 5, true[4:5], 4) != wanted[5], "and a true row may not stand behind that"
    assert best(guessing, 4, 5, true[3:5], 3) == wanted[5]
    target = FakeEngine(MODEL)
    target.forward(StepInput(0, np.array(tokens), 0, None))
    assert best(FakeAssistant(target), 5, 5, true[4:5], 4) == wanted[5]
    assert best(FakeAssistant(target), 5, 5, true[4:5], 3) != wanted[5], "another place"
    with pytest.raises(ValueError, match="one token at a time"):
        best(FakeAssistant(target), 4, 5, true[3:5], 3)
    for kind in (FakeMultiToken, FakeHeads):
        with pytest.raises(ValueError, match="last tokens alone"):
            kind(FakeModel(order=2))
        with pytest.raises(ValueError, match="hidden rows of shape None"):
            kind(MODEL).forward(StepInput(0, np.array([1]), 0, None))
    with pytest.raises(ValueError, match="hidden rows of shape"):
        target.forward(StepInput(0, np.array([1]), 0, None, true[:1]))


def test_deep_layers_know_nothing_of_what_a_self_draft_wrote() -> None:
    target = FakeEngine(MODEL)
    shallow = FakeSelfDraft(target)
    target.forward(StepInput(0, np.array([3, 1, 4]), 0, None))
    wanted = MODEL.logits(MODEL.digest(np.array([3, 1, 4, 1])), IDS)
    assert forward(shallow, [1], 3).argmax[0] == wanted.argmax()
    forward(target, [5], 4)
    assert not np.array_equal(target.logits(0), MODEL.logits(MODEL.digest(np.array([3, 1, 4, 1, 5])), IDS))
    forward(target, [1, 5], 3, first=1)
    assert np.array_equal(target.logits(0), MODEL.logits(MODEL.digest(np.array([3, 1, 4, 1, 5])), IDS))


def test_clock_and_cost() -> None:
    clock = ManualClock()
    cost = CostTable(body_s=(1.0, 2.0), head_s=(0.25, 0.5), draft_s=0.0, min_rows=2)
    engine = FakeEngine(MODEL, clock=clock, cost=cost)
    engine.forward(StepInput(0, np.array([1]), 0, None))
    assert clock() == 2.0
    engine.head(HeadRequest(0, 1))
    assert clock() == 2.5
    assert (engine.rows_of("forward"), engine.rows_of("head")) == ([1], [1])


def test_the_script_is_wrong_where_told() -> None:
    draft = ScriptedDraft([10, 20, 30], wrong_at=[1])
    assert draft.max_k == 8 and draft._text.tolist() == [10, 21, 30]
