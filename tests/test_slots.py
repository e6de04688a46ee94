"""Where a prompt goes, against a plain model of what the slots hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_runtime.engines.protocol import Ids
from edge_runtime.reuse import BLOCK, Owner
from edge_runtime.scheduler.slots import Placement, Slots

CAPACITY = 96


def ids(*parts: range | list[int]) -> Ids:
    return np.array([token for part in parts for token in part], np.int64)


def filled(*texts: Ids, worth: int = 16) -> Slots:
    """Every text in a slot of its own, released in this order."""
    slots = Slots(len(texts), CAPACITY, worth)
    for slot in range(len(texts)):
        assert slots.place(ids([1000 + slot])) == Placement(slot, slot, 0)
    for slot, text in enumerate(texts):
        slots.release(slot, text, float(slot))
    return slots


A, B, C = ids(range(60)), ids(range(100, 160)), ids(range(200, 260))


def test_a_continued_text_stays_where_it_is() -> None:
    slots = filled(A, B, C)
    assert slots.place(ids(range(100, 160), [1, 2])) == Placement(1, 1, 60)
    assert slots.held(1).tolist() == B.tolist()


def test_a_text_that_differs_near_its_end_is_continued_in_place() -> None:
    assert filled(A, B, C).place(ids(range(200, 250), [1, 2])) == Placement(2, 2, 50)


def test_a_branch_is_copied_into_the_least_recently_used() -> None:
    slots = filled(A, B, C)
    assert slots.place(ids(range(200, 230), [1, 2])) == Placement(0, 2, 30)
    assert slots.held(0).tolist() == list(range(200, 230)) and slots.held(2).tolist() == C.tolist()
    assert slots.place(ids([1, 2, 3])) == Placement(1, 1, 0)


def test_empty_slots_come_before_used_ones() -> None:
    slots = filled(A, B, ids([]))
    assert slots.place(ids([1, 2])) == Placement(2, 2, 0)


def test_a_busy_slot_lends_its_prefix_as_far_as_it_has_come() -> None:
    slots = filled(ids([]), ids([]))
    assert slots.place(A) == Placement(0, 0, 0)
    slots.grow(0, A[:40])
    slots.grow(0, A[:50])
    assert slots.place(A) == Placement(1, 0, 50)
    assert slots.place(A) is None and slots.free == 0


def test_the_last_token_is_never_shared() -> None:
    slots = filled(A, B)
    assert slots.place(A[:60]) == Placement(0, 0, 59)
    assert filled(A).place(A[:1]) == Placement(0, 0, 0)


@pytest.mark.parametrize(("shared", "source"), [(15, 0), (16, 1)])
def test_a_short_prefix_is_not_worth_a_copy(shared: int, source: int) -> None:
    slots = filled(A, B)
    assert slots.place(ids(range(100, 100 + shared), [7, 8])) == Placement(0, source, shared if source else 0)


def test_what_is_in_place_counts_against_a_copy() -> None:
    slots = filled(ids(range(20), [50] * 40), ids(range(30), [51] * 40))
    assert slots.place(ids(range(30), [1])) == Placement(0, 0, 20), "a copy would save ten tokens"


def test_a_repeated_prompt_leaves_the_answer_to_it_alone() -> None:
    """The next turn of that conversation may come."""
    slots = filled(ids(range(30), range(200, 250)), B)
    assert slots.place(ids(range(30))) == Placement(0, 0, 29), "it is the least recently used itself"
    slots = filled(B, ids(range(30), range(200, 250)))
    assert slots.place(ids(range(30))) == Placement(0, 1, 29)


def test_what_was_lost_is_not_shared() -> None:
    slots = filled(A, B)
    placement = slots.place(A)
    assert placement is not None
    slots.release(placement.slot, ids([]), 9.0)
    assert slots.place(A) == Placement(placement.slot, placement.slot, 0)


@pytest.mark.parametrize(
    ("mine", "others", "lent"),
    [
        (Owner(1), Owner(1), 70),
        (Owner(-1), Owner(-1), 70),
        (Owner(1, "a", True), Owner(1, "a", True), 70),
        (Owner(-1, "a", True), Owner(-1, "a", True), 70),
        # Between users who do not mind: whole blocks.
        (Owner(1), Owner(2), BLOCK),
        (Owner(1), Owner(-1), BLOCK),
        # And nothing in either direction where one of them does.
        (Owner(1, private=True), Owner(2), 0),
        (Owner(1), Owner(2, private=True), 0),
        (Owner(1), Owner(1, private=True), 0),
        (Owner(1, "a", True), Owner(1, "b", True), 0),
        (Owner(1, "a", True), Owner(2, "a", True), 0),
        (Owner(1, "a", True), Owner(1), 0),
        # Who cannot be told apart from others gets nothing of "his own" either.
        (Owner(-1, private=True), Owner(-1, private=True), 0),
    ],
)
def test_who_may_start_from_whose_text(mine: Owner, others: Owner, lent: int) -> None:
    text, slots = ids(range(70)), Slots(2, CAPACITY)
    assert slots.place(text, others) == Placement(0, 0, 0)
    slots.release(0, text, 0.0)
    placement = slots.place(ids(range(70), [99]), mine)
    assert placement is not None and placement.shared == lent
    assert slots.held(placement.slot).tolist() == list(range(lent))
    assert placement.moved == (placement.slot == 0 and lent < 70)


def test_a_block_that_is_all_but_right_is_lent_not_at_all() -> None:
    """So that a text cannot be guessed a token at a time."""
    for right in range(BLOCK):
        slots = Slots(2, CAPACITY)
        slots.place(A, Owner(1))
        slots.release(0, ids(range(90)), 0.0)
        placement = slots.place(ids(range(right), [99] * 20), Owner(2))
        assert placement is not None and placement.shared == 0
        assert slots.held(placement.slot).tolist() == []


def test_status() -> None:
    slots = filled(A, ids([]), ids([]))
    slots.place(ids([5, 6]))
    first, second, _ = slots.status(10.0)
    assert (first.slot, first.busy, first.tokens, first.idle_s) == (0, False, 60, 10.0)
    assert (second.slot, second.busy, second.tokens, second.idle_s) == (1, True, 0, None)


class SlotsAgainstLists(RuleBasedStateMachine):
    """``Slots`` is given the same as lists of tokens; a slot may only promise what its list has."""

    @initialize(count=st.integers(1, 4), worth=st.integers(1, 6))
    def make(self, count: int, worth: int) -> None:
        self.slots, self.worth = Slots(count, CAPACITY, worth), worth
        self.held: list[list[int]] = [[] for _ in range(count)]
        self.prompts: dict[int, list[int]] = {}
        """Busy ones, with all that they will feed."""
        self.order: list[int] = []
        """Free ones that were used, the longest ago first."""
        self.owners: list[Owner | None] = [None] * count

    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=30)

    owners = st.builds(Owner, st.integers(-1, 1), st.sampled_from(["", "", "salt"]), st.booleans())

    @rule(data=st.data(), tail=tokens, keep=st.integers(0, 30), owner=owners)
    def place(self, data: st.DataObject, tail: list[int], keep: int, owner: Owner) -> None:
        start = data.draw(st.sampled_from(range(len(self.held))))
        prompt = (self.held[start][:keep] + tail)[: BLOCK - 1]
        placement = self.slots.place(np.array(prompt, np.int64), owner)
        free = [slot for slot in range(len(self.held)) if slot not in self.prompts]
        if not free:
            assert placement is None
            return
        assert placement is not None and placement.slot in free
        # Others' texts here are too short to be lent.
        own = [mine == owner and (owner.client >= 0 or owner.salt or not owner.private) for mine in self.owners]
        shares = [_shared(held, prompt[:-1]) if mine else 0 for held, mine in zip(self.held, own, strict=True)]
        slot, source, shared = placement.slot, placement.source, placement.shared
        assert shared == shares[source] <= len(prompt) - 1
        assert source == slot or shared - shares[slot] >= self.worth
        assert shared == max(shares) or max(shares) - shares[slot] < self.worth
        assert placement.moved == (self.owners[slot] is not None and not own[slot])
        self.owners[slot] = owner
        lost = len(self.held[slot]) - shares[slot]
        if not (shares[slot] and lost <= self.worth):
            used = [slot for slot in self.order if self.held[slot]]
            empty = [slot for slot in free if not self.held[slot]]
            assert slot in empty if empty else slot == used[0]
        self.held[slot] = prompt[:shared]
        self.prompts[slot] = prompt
        self.order = [other for other in self.order if other != slot]

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), count=st.integers(1, 9))
    def feed(self, data: st.DataObject, count: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        self.held[slot] = self.prompts[slot][: len(self.held[slot]) + count]
        self.slots.grow(slot, np.array(self.held[slot], np.int64))

    @precondition(lambda self: self.prompts)
    @rule(data=st.data(), lost=st.booleans(), back=st.integers(0, 3))
    def release(self, data: st.DataObject, lost: bool, back: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.prompts)))
        held = self.held[slot]
        self.held[slot] = [] if lost else held[: max(0, len(held) - back)]
        del self.prompts[slot]
        self.order.append(slot)
        self.slots.release(slot, np.array(self.held[slot], np.int64), float(len(self.order)))

    @invariant()
    def holds_what_the_lists_hold(self) -> None:
        assert [self.slots.held(slot).tolist() for slot in range(len(self.held))] == self.held
        assert self.slots.free == len(self.held) - len(self.prompts)
        assert [status.busy for status in self.slots.status(1e9)] == [s in self.prompts for s in range(len(self.held))]


def _shared(left: list[int], right: list[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


TestSlotsAgainstLists = SlotsAgainstLists.TestCase
