"""Whose turn it is, whoever comes and goes: nobody that is there waits for more than so many turns of others."""

from __future__ import annotations

from any_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.scheduler.turns import Turns

SLOTS, CHEAP_S, DEAR_S = 4, 0.01, 0.04


kinds = st.tuples(st.sampled_from([1, 1, 2, 30]), st.integers(-1, 1), st.booleans())
"""Turns of an answer, its priority, and whether its turns are dear ones."""


@examples(100)
@given(st.lists(kinds, min_size=1, max_size=SLOTS - 1), st.lists(kinds, min_size=1, max_size=4), st.integers(1, 3))
def test_no_stream_of_answers_however_short_keeps_another_waiting(
    long: list[tuple[int, int, bool]], stream: list[tuple[int, int, bool]], others: int
) -> None:
    """Some are there for good; through the other slots answers of a few turns follow one another, again and again."""
    asked = [(10_000, priority, dear) for _, priority, dear in long]
    slots = len(long) + others
    turns, left, last = Turns(), {}, {}  # type: ignore[var-annotated]
    weights = [2.0**-priority for _, priority, _ in (*long, *stream)]
    ratio = (DEAR_S / CHEAP_S) * max(weights) / min(weights)
    most = 2 * slots * (ratio + 2)
    number, cost_s = 0, {}
    for turn in range(600):
        while len(left) < slots:
            count, priority, dear = asked[number] if number < len(asked) else stream[number % len(stream)]
            turns.join(number, priority)
            left[number], last[number], cost_s[number] = count, turn, DEAR_S if dear else CHEAP_S
            number += 1
            if turn:  # one at a time
                break
        chosen = turns.next()
        assert chosen is not None
        turns.charge(chosen, cost_s[chosen])
        left[chosen] -= 1
        last[chosen] = turn
        if not left[chosen]:
            turns.leave(chosen)
            del left[chosen], last[chosen]
        assert all(turn - since <= most for since in last.values()), (turn, last, most)


@examples(20)
@given(st.integers(2, SLOTS), st.integers(1, 20))
def test_turns_that_took_no_time_go_round(answers: int, rounds: int) -> None:
    """By a clock that is coarser than a turn."""
    turns = Turns()
    for number in range(answers):
        turns.join(number, 0)
    chosen = []
    for _ in range(answers * rounds):
        found = turns.next()
        assert found is not None
        turns.charge(found, 0.0)
        chosen.append(found)
    assert [chosen.count(number) for number in range(answers)] == [rounds] * answers


@examples(100)
@given(st.lists(st.tuples(st.integers(-2, 2), st.floats(0.001, 0.1)), min_size=2, max_size=4), st.integers(0, 60))
def test_a_newcomer_has_its_first_turn_within_one_of_each_other(answers: list[tuple[int, float]], before: int) -> None:
    turns = Turns()
    costs_s = [seconds for _, seconds in answers]
    for number, (priority, _) in enumerate(answers[:-1]):
        turns.join(number, priority)
    for _ in range(before):
        chosen = turns.next()
        assert chosen is not None
        turns.charge(chosen, costs_s[chosen])
    newcomer, waits_s = len(answers) - 1, [0.0] * len(answers)
    turns.join(newcomer, 0)
    while (chosen := turns.next()) != newcomer:
        assert chosen is not None
        turns.charge(chosen, costs_s[chosen])
        waits_s[chosen] += costs_s[chosen]
    # Who is behind its share by then has at most the share of one turn to catch up with, and one turn more.
    longest = max(cost * 2.0**priority for priority, cost in answers[:-1])
    for number, (priority, cost) in enumerate(answers[:-1]):
        assert waits_s[number] <= longest * 2.0**-priority + cost + 1e-9
