"""Earlier texts draft: what followed the longest agreement, for their own client only, in a memory of fixed size."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.protocol import DraftContext
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.errors import ConfigError
from edge_runtime.reuse import Owner
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, decode

GREEDY = SamplingParams(temperature=0.0)
TEXT = random.Random(1).choices(range(1000), k=900)


def ask(cache: SuffixCache, tokens: list[int], k: int = 4, slot: int = 0, client: int = 7) -> list[int]:
    context = DraftContext(np.array(tokens, np.int64), slot, GREEDY, None, lambda: 0.5, owner=Owner(client))
    return cache.propose(context, k).tokens.tolist()


def filled(*texts: list[int], client: int = 7) -> SuffixCache:
    cache = SuffixCache(8192)
    for text in texts:
        ask(cache, text, client=client)
    return cache


def test_it_goes_on_as_an_earlier_text_did() -> None:
    cache = filled(TEXT)
    for end in range(20, 890, 7):
        # A new text each time, in a slot of its own: across the edges of pages too.
        found = ask(cache, [5000 + end, *TEXT[end - 6 : end]], slot=1)
        assert found and found == TEXT[end : end + len(found)]
    assert ask(cache, [6000, 6001, 6002], slot=1) == []


def test_the_longest_agreement_wins_and_among_equals_the_majority() -> None:
    start = list(range(2000, 2010))
    cache = filled([*start, 1, 1], [9, *start, 2, 2], [8, *start, 2, 3], [*start[2:], 4, 4, 4])
    assert ask(cache, [7, *start], k=1, slot=1) == [2]
    assert ask(cache, [3, *start[5:]], k=1, slot=1) == [2]
    # Twice as long an agreement silences all shorter ones.
    longer = [*range(50, 63), *start]
    ask(cache, [*longer, 6, 6], slot=2)
    assert ask(cache, longer, k=1, slot=1) == [6]


def test_a_vote_follows_one_text_to_its_end() -> None:
    start = [1, 2, 3, 4]
    cache = filled([9, *start, 5, 6, 7, 8], [8, *start, 5, 6, 1, 1], [7, *start, 5, 6, 7, 9])
    assert ask(cache, [0, *start], k=3, slot=1) == [5, 6, 7]


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=12),
    st.booleans(),
)
def test_nothing_of_one_client_is_drafted_for_another(history: list[tuple[int, int, int]], collide: bool) -> None:
    """Their tokens are told apart by their range, and the ends of their texts agree. Nor where equal
    tokens of theirs share a bucket: it is not the index alone that keeps them apart."""
    cache = SuffixCache(1024)
    if collide:
        cache._seed = lambda owner: 0  # type: ignore[method-assign]
    for slot, client, seed in history:
        own = random.Random(seed).choices(range(100 * client + 100, 100 * client + 200), k=20)
        text = [*own, 1, 2, 3, 4, 5, *own, 1, 2, 3, 4]
        for end in range(1, len(text) + 1):
            found = ask(cache, text[:end], slot=slot, client=client)
            assert all(token < 6 or token // 100 - 1 == client for token in found)


def test_clients_that_are_one_by_configuration_share() -> None:
    cache = SuffixCache(8192, shared=True)
    ask(cache, TEXT, client=1)
    assert ask(cache, [9, *TEXT[50:60]], client=2, slot=1) == TEXT[60:64]
    assert ask(cache, [8, *TEXT[50:60]], client=-1, slot=1) == TEXT[60:64]


def test_clients_that_cannot_be_told_apart_have_no_texts() -> None:
    cache = SuffixCache(8192)
    ask(cache, TEXT, client=-1)
    assert ask(cache, [9, *TEXT[50:60]], client=-1, slot=1) == []
    assert ask(cache, [9, *TEXT[50:60]], client=0, slot=1) == []


@pytest.mark.parametrize("secret", [None, *(bytes([number]) for number in range(8))])
def test_it_holds_what_it_holds(secret: bytes | None) -> None:
    """However much is written, and by however many; the text unused longest gives way, and nothing in use does for
    the sake of what leads nowhere any more, whichever texts share a bucket."""
    cache = SuffixCache(2048, secret=secret)
    size = cache.bytes
    kept = TEXT[:200]
    ask(cache, kept)
    for number in range(40):
        ask(cache, random.Random(number).choices(range(1000, 2000), k=300), slot=1, client=number % 3)
        # In use, and so not the one that goes.
        assert ask(cache, [3000 + number, *kept[60:80]], slot=2) == kept[80:84]
    assert cache.bytes == size
    for number in range(40, 60):
        ask(cache, random.Random(number).choices(range(1000, 2000), k=300), slot=1)
    assert ask(cache, [5000, *kept[60:80]], slot=2) == []


@pytest.mark.parametrize("cut", [0, 3, 30, 100])
def test_a_text_that_was_cut_goes_on_otherwise(cut: int) -> None:
    cache = SuffixCache(8192)
    for end in (*range(90, 130), *range(cut, cut + 20)):
        ask(cache, TEXT[: end + 1])
    other = [*TEXT[:cut], *range(4000, 4040)]
    for end in range(cut, len(other)):
        ask(cache, other[: end + 1])
    assert ask(cache, [7, *range(4005, 4015)], slot=1) == list(range(4015, 4019))
    assert ask(cache, [7, *TEXT[100:110]], slot=1) == TEXT[110:114]


def test_a_conversation_is_written_down_once() -> None:
    """The next turn of it begins with all that went before."""
    cache = filled(TEXT[:300])
    ask(cache, TEXT[:600])
    ask(cache, TEXT[:900])
    places = sum(int((table >= 0).sum()) for table in cache._index.values())
    assert places <= 2 * 900


def test_it_drafts_a_second_answer_from_the_first() -> None:
    model = FakeModel(scale=3.0)
    engine = FakeEngine(model, capacity=256, slots=2)
    decoder = Decoder(engine, SuffixCache(4096), FixedLength(4))
    shares = []
    for slot in (0, 1, 1):
        session = Session(engine.info, [5, 9, 2], GREEDY, max_tokens=100, slot=slot, owner=Owner(slot // 2))
        decode(decoder, session)
        shares.append(session.totals.accepted / 100)
    assert shares[0] < 0.1 < 0.7 < shares[1]
    stranger = Session(engine.info, [5, 9, 2], GREEDY, max_tokens=100, owner=Owner(3))
    decode(decoder, stranger)
    assert stranger.totals.accepted < 10


def test_it_refuses() -> None:
    with pytest.raises(ConfigError, match="at least 512"):
        SuffixCache(100)
