"""Whose prompts make whose answers faster: counted in what engines are fed, never in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from scheduling import MODEL, Reader, ask, request, running, serve

from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.several import Several
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.reuse import BLOCK
from edge_runtime.scheduler.request import Request
from edge_runtime.testing import FakeEngine, FakeModel

SECRET = [(7 * place * place + 3) % 61 for place in range(90)]
OTHER = [(5 * place * place + 11) % 61 for place in range(90)]
DRAFTER = FakeModel(agreement=0.7)


@dataclass(frozen=True)
class Cost:
    """All that a client could feel of an answer, but for the time that it takes."""

    cached: int
    prompt: int
    target: tuple[int, ...]
    """Rows of the forwards."""
    draft: tuple[int, ...]
    drafted: int
    accepted: int


def cost_after(before: Request, wanted: Request, slots: int, shared: bool = False) -> Cost:
    """Of ``wanted``, asked once ``before`` was answered."""
    target, draft = FakeEngine(MODEL, slots=slots), FakeEngine(DRAFTER, slots=slots)
    drafter = Several("all", [SuffixCache(1024, shared=shared, secret=b"\x00")], [DraftModel(draft, target.info)])
    served = serve(target, drafter, k=2)
    with running(served) as scheduler:
        ask(scheduler, served, before, first := Reader())
        assert first.result
        fed, drafted = len(rows(target)), len(rows(draft))
        ask(scheduler, served, wanted, reader := Reader())
        result = reader.result
    begun = reader.begun
    return Cost(
        cached=begun.cached_tokens,
        prompt=begun.prompt_tokens,
        target=rows(target)[fed:],
        draft=rows(draft)[drafted:],
        drafted=result.drafted,
        accepted=result.accepted,
    )


def rows(engine: FakeEngine) -> tuple[int, ...]:
    return tuple(call.rows for call in engine.calls if call.kind == "forward")


def asked(prompt: list[int], **who: object) -> Request:
    return request(prompt, 12, **who)


SALT = {"salt": "x", "private": True}
APART: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "the one who asks has a salt": ({"client": 1}, {"client": 2, "salt": "mine", "private": True}),
    "the one who asked has a salt": ({"client": 1, "salt": "mine", "private": True}, {"client": 2}),
    "both have the same salt": ({"client": 1, **SALT}, {"client": 2, **SALT}),
    "one user, two salts": ({"client": 1, **SALT}, {"client": 1, "salt": "y", "private": True}),
    "one user, with and without a salt": ({"client": 1}, {"client": 1, "salt": "y", "private": True}),
    "all are private": ({"client": 1, "private": True}, {"client": 2, "private": True}),
    "root is private": ({"client": 1, "private": True}, {"client": 0, "private": True}),
    "over TCP": ({"client": -1, "private": True}, {"client": -1, "private": True}),
    "over TCP, with a salt": ({"client": -1, **SALT}, {"client": -1, "private": True}),
}


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", APART)
def test_what_is_private_shows_in_no_step_of_anybody_elses(name: str, slots: int) -> None:
    """With one slot the two take the same, and what drafters remember of it; the suffix cache is one for all."""
    before, after = APART[name]
    for shared in (False, True):
        known = cost_after(asked(SECRET, **before), asked(SECRET, **after), slots, shared)
        unknown = cost_after(asked(OTHER, **before), asked(SECRET, **after), slots, shared)
        assert known == unknown and known.cached == 0


@pytest.mark.parametrize("slots", [1, 2])
def test_what_is_shared_shows(slots: int) -> None:
    """So the test above can fail; and by the block alone, for the draft's cache lends nothing."""
    known = cost_after(asked(SECRET, client=1), asked(SECRET, client=2), slots)
    unknown = cost_after(asked(OTHER, client=1), asked(SECRET, client=2), slots)
    assert (known.cached, unknown.cached) == (BLOCK, 0)
    assert sum(unknown.target) == sum(known.target) + BLOCK and known.draft == unknown.draft


@pytest.mark.parametrize("who", [{"client": 1}, {"client": 1, "private": True}, {"client": -1, "salt": "x"}])
def test_own_prompts_are_remembered_whole(who: dict[str, object]) -> None:
    who = {**who, "private": "salt" in who or "private" in who}
    known = cost_after(asked(SECRET, **who), asked([*SECRET, 5], **who), 2)
    assert known.cached == len(SECRET)


def near(right: int) -> Callable[[int], Request]:
    return lambda client: asked([*SECRET[:right], *OTHER[: 80 - right]], client=client)


@pytest.mark.parametrize("slots", [1, 2])
def test_between_users_a_guess_shows_only_where_a_whole_block_is_right(slots: int) -> None:
    costs = [cost_after(asked(SECRET, client=1), near(right)(2), slots) for right in (0, 1, 17, BLOCK - 1)]
    assert [one.cached for one in costs] == [0] * 4
    # The texts differ, and so may what is drafted; what is fed of a prompt does not.
    assert len({one.target[:5] for one in costs}) == 1 and len({one.draft[:5] for one in costs}) == 1
    assert cost_after(asked(SECRET, client=1), near(BLOCK)(2), slots).cached == BLOCK
