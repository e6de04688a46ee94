"""Bytes of tokens to certain text: characters split over tokens, stop strings split over parts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.errors import InputError
from edge_runtime.text.detokenizer import Detokenizer
from edge_runtime.text.stop import StopStrings
from edge_runtime.text.stream import TextStream

# Whole characters, their fragments, and bytes that never belong to one.
FRAGMENTS = st.sampled_from(["a", "é", "中", "🦙", "👩‍👩‍👧", "e\u0301", "\ufffd", "\x00"]).map(str.encode)
PIECES = st.lists(FRAGMENTS | st.binary(max_size=4) | st.sampled_from([b"\xf0", b"\x9f", b"\xe4\xb8", b"\xff"]))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(PIECES)
def test_any_split_decodes_as_one(pieces: list[bytes]) -> None:
    detokenizer = Detokenizer(pieces.__getitem__)
    text = "".join(detokenizer.push(i) for i in range(len(pieces))) + detokenizer.flush()
    assert text == b"".join(pieces).decode("utf-8", "replace")


@given(st.text(), st.lists(st.integers(0, 10**6)))
def test_a_character_never_shows_in_part(text: str, places: list[int]) -> None:
    pieces = cut(text.encode(), places)
    detokenizer = Detokenizer(pieces.__getitem__)
    shown = ""
    for i in range(len(pieces)):
        shown += detokenizer.push(i)
        # Whatever is whole is out, and nothing else is.
        assert shown == b"".join(pieces[: i + 1]).decode("utf-8", "ignore")
    assert detokenizer.flush() == ""


def test_broken_bytes_show_as_soon_as_they_are_known() -> None:
    pieces = [b"\xf0\x9f", b"a", b"\xff", b"\xe4"]
    detokenizer = Detokenizer(pieces.__getitem__)
    assert [detokenizer.push(i) for i in range(4)] == ["", "\ufffda", "\ufffd", ""]
    assert detokenizer.flush() == "\ufffd"


def stopped(text: str, stops: list[str]) -> tuple[str, str | None]:
    """One character at a time, from the definition: the first moment at which the text ends in a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


# So few letters that stop strings overlap, nest and repeat.
LETTERS = st.text("ab", max_size=24)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@given(st.lists(LETTERS, max_size=8), STOPS)
def test_stop_strings_of_any_split(parts: list[str], stops: list[str]) -> None:
    stop_strings = StopStrings(stops)
    shown, seen = "", ""
    for part in parts:
        shown += stop_strings.push(part)
        seen += part
        expected, matched = stopped(seen, stops)
        assert stop_strings.matched == matched
        if matched is not None:
            assert shown == expected
        else:
            # Held back is exactly what may still become a stop string.
            held = seen[len(shown) :]
            assert seen == shown + held
            doubtful = [n for s in stops for n in range(1, len(s)) if seen.endswith(s[:n])]
            assert len(held) == max(doubtful, default=0)
    assert shown + stop_strings.flush() == stopped(seen, stops)[0]


def test_the_stop_that_is_complete_first_ends_the_text() -> None:
    assert stopped("xabcd", ["abcd", "c"]) == ("xab", "c")
    for parts in (["xabcd"], list("xabcd")):
        stop_strings = StopStrings(["abcd", "c"])
        assert "".join(map(stop_strings.push, parts)) == "xab"
        assert stop_strings.matched == "c"
        assert stop_strings.flush() == stop_strings.push("more") == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        StopStrings(["a", ""])


@given(st.text("ab中🦙", max_size=12), st.lists(st.integers(0, 100)), st.lists(st.text("ab中", min_size=1, max_size=3)))
def test_a_stream_is_cut_at_the_token_that_completes_the_stop(text: str, places: list[int], stops: list[str]) -> None:
    pieces = cut(text.encode(), places)
    stream = TextStream(pieces.__getitem__, stops)
    shown, count = "", 0
    while count < len(pieces) and not stream.stopped:
        shown += stream.push(count)
        count += 1
    expected, matched = stopped(text, stops)
    assert stream.stopped == (matched is not None)
    if matched is None:
        assert shown + stream.flush() == text
        assert stream.shown_tokens == len(pieces)
        return
    assert shown == expected
    # One token fewer, and the stop string is not there yet.
    whole = b"".join(pieces[: count - 1]).decode("utf-8", "ignore")
    assert stopped(whole, stops)[1] is None
    # The tokens that made what is shown, and none that made only the stop string.
    kept = stream.shown_tokens
    size = len(expected.encode())
    assert len(b"".join(pieces[:kept])) >= size
    assert kept == 0 or len(b"".join(pieces[: kept - 1])) < size


def test_tokens_without_text() -> None:
    pieces = [b"", b"a", b"", b"\n", b"\n"]
    stream = TextStream(pieces.__getitem__, ["\n\n"])
    assert [stream.push(i) for i in range(5)] == ["", "a", "", "", ""]
    assert stream.stopped
    assert stream.shown_tokens == 2
