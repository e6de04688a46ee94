"""Earlier texts draft: what followed the longest end of this text in any of them. Knows no model.

Texts lie in pages of a fixed number, and the page unused longest gives way; an index of a fixed size finds the places
where a few tokens stood. After "SuffixDecoding" (Oliaro et al. 2024), with an index in place of a tree.

What one client's text says must not show in how fast another's is answered: a page belongs to a client, and nobody
else's text is drafted from it, unless all clients are told to be one. Clients that cannot be told apart have no texts.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_runtime.engines.protocol import Ids
from edge_runtime.errors import ConfigError
from edge_runtime.reuse import Owner

from ..session import common_prefix
from .protocol import NO_TOKENS, DraftContext, DraftProposal

_PAGE = 256
"""Tokens of a page."""
_SIZES = (3, 8)
"""Tokens that an entry of the index stands for."""
_WAYS = 8
"""Places that it remembers of the same tokens."""
_NOWHERE = -1
_LONGEST = 32
"""Agreeing tokens beyond which one place is no better than another."""
_EVERYBODY = Owner(-1, "everybody")
"""No client is called that: whoever has a salt is private."""
_BREAK = -1
"""Between two texts of one page."""


@dataclass(slots=True)
class _Writing:
    """The text of one slot, as far as it was written down."""

    owner: Owner | None = None
    seed: int = 0
    """What stands for the owner in the index."""
    text: list[int] = field(default_factory=list)
    page: int = -1
    """Which its last tokens went to."""
    turn: int = 0
    """Of that page, to see whether it was given away since."""


class SuffixCache:
    """Proposes what most often followed the longest agreement with the end of the text."""

    name = "suffix"
    window: int | None = None

    def __init__(
        self, tokens: int = 1 << 17, max_k: int = 16, shared: bool = False, secret: bytes | None = None
    ) -> None:
        """``tokens`` of earlier texts are kept, some 40 bytes each. ``shared``: all clients are one. ``secret``: random
        but where a test must find the same every time; at most 64 bytes.

        Raises ``ConfigError``.
        """
        if tokens < 2 * _PAGE:
            raise ConfigError(f"a suffix cache of {tokens} tokens: at least {2 * _PAGE}")
        self.max_k = max_k
        pages = tokens // _PAGE
        self._shared = shared
        self._tokens: NDArray[np.int32] = np.zeros((pages, _PAGE), np.int32)
        self._filled = [0] * pages
        self._owner: list[Owner | None] = [None] * pages
        self._used = [0] * pages
        """When each page was last written to or drafted from."""
        self._turns = [0] * pages
        """How often each page was given away, as far as a mark can tell: a place's mark is (turn, page, offset)."""
        self._most_turns = np.iinfo(np.int32).max // (pages * _PAGE)
        self._now = 0
        buckets = 1 << max(4, (pages * _PAGE - 1).bit_length() - 1)
        self._index: dict[int, NDArray[np.int32]] = {
            size: np.full((buckets, _WAYS), _NOWHERE, np.int32) for size in _SIZES
        }
        """Size -> [buckets, ways] marks of places behind such tokens."""
        self._mask = buckets - 1
        self._secret = secrets.token_bytes(16) if secret is None else secret
        """Nobody can tell which tokens of others share a bucket with own ones, and so see by these when they come."""
        self._writing: dict[int, _Writing] = {}

    @property
    def bytes(self) -> int:
        """What it holds, whatever was written."""
        return int(self._tokens.nbytes + sum(table.nbytes for table in self._index.values()))

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        """Also remembers the text."""
        owner = _EVERYBODY if self._shared and not context.owner.private else context.owner
        if not owner.known:
            return DraftProposal(NO_TOKENS, None, self.name, "this client has no name")
        writing = self._follow(context.slot, owner, context.tokens)
        most = min(k, self.max_k)
        places = self._places(context.tokens, writing) if most > 0 else []
        if not places:
            return DraftProposal(NO_TOKENS, None, self.name, "no earlier text goes on from here")
        tokens = self._following(places, most)
        agreed = max(length for length, _ in places)
        return DraftProposal(np.array(tokens, np.int64), None, self.name, evidence=agreed)

    def observe(self, slot: int, accepted: int) -> None:
        pass

    def reset(self, slot: int) -> None:
        """Forgets whose turn it is in the slot; texts that were written down stay."""
        self._writing.pop(slot, None)

    # Writing

    def _seed(self, owner: Owner) -> int:
        # Not ``hash``, which is another one in each process.
        said = hashlib.blake2b(repr(owner).encode(), digest_size=8, key=self._secret).digest()
        return int.from_bytes(said, "big", signed=True)

    def _follow(self, slot: int, owner: Owner, tokens: Ids) -> _Writing:
        writing = self._writing.setdefault(slot, _Writing())
        known = writing.text
        if writing.owner != owner:
            # Never a page of somebody else's.
            writing.owner, writing.page, known = owner, -1, []
            writing.seed, writing.text = self._seed(owner), known
        count = len(known)
        if count > len(tokens) or known[-_LONGEST:] != tokens[max(0, count - _LONGEST) : count].tolist():
            # Another text, or one that was cut: what the two begin with is written down already.
            del known[common_prefix(np.array(known, np.int64), tokens) :]
            count = len(known)
            self._break(writing)
        for token in tokens[count:].tolist():
            self._write(writing, token)
        return writing

    def _write(self, writing: _Writing, token: int) -> None:
        page = writing.page if self._room(writing) else self._new_page(writing)
        place = self._filled[page]
        mark = (self._turns[page] * len(self._turns) + page) * _PAGE + place
        # Only now have the tokens that end before this one something behind them.
        for size in _SIZES:
            if len(writing.text) >= size:
                row = self._index[size][self._bucket(writing.seed, writing.text[-size:])]
                ways = row.tolist()
                row[ways.index(_NOWHERE) if _NOWHERE in ways else self._way(ways, mark)] = mark
        self._tokens[page, place] = token
        self._filled[page] = place + 1
        self._touch(page)
        writing.text.append(token)

    def _way(self, ways: list[int], mark: int) -> int:
        """Which of a full row gives way. Where all lead somewhere, any: so those that stay are of old texts and new."""
        places = [self._place(one) for one in ways]
        return places.index(None) if None in places else mark % _WAYS

    def _place(self, mark: int) -> int | None:
        """``None`` where there was none, or its page was given away since."""
        turn, place = divmod(mark, len(self._turns) * _PAGE)
        return place if turn == self._turns[place // _PAGE] else None

    def _room(self, writing: _Writing) -> int:
        """Tokens that the page under way still takes; none where it was given away."""
        page = writing.page
        return 0 if page < 0 or self._turns[page] != writing.turn else _PAGE - self._filled[page]

    def _break(self, writing: _Writing) -> None:
        """The page goes on with another text, behind as much of its beginning as an agreement may need."""
        before = [_BREAK, *writing.text[-_LONGEST:]]
        if self._room(writing) > 2 * len(before):
            page, place = writing.page, self._filled[writing.page]
            self._tokens[page, place : place + len(before)] = before
            self._filled[page] = place + len(before)
        else:
            writing.page = -1

    def _new_page(self, writing: _Writing) -> int:
        page = min(range(len(self._used)), key=self._used.__getitem__)
        self._owner[page] = writing.owner
        self._turns[page] = (self._turns[page] + 1) % self._most_turns
        # A page begins with the tokens before it, so that agreements do not end at its edge.
        before = writing.text[-_LONGEST:]
        self._tokens[page, : len(before)] = before
        self._filled[page] = len(before)
        self._touch(page)
        writing.page, writing.turn = page, self._turns[page]
        return page

    def _touch(self, page: int) -> None:
        self._now += 1
        self._used[page] = self._now

    def _bucket(self, seed: int, tokens: list[int]) -> int:
        return hash((seed, *tokens)) & self._mask

    # Reading

    def _places(self, tokens: Ids, reader: _Writing) -> list[tuple[int, int]]:
        """(agreeing tokens, place) of those that agree longest, and of others of nearly that length."""
        end = tokens[-_LONGEST:].astype(np.int32)
        listed = end.tolist()
        for size in reversed(_SIZES):
            if len(listed) < size:
                continue
            row = self._index[size][self._bucket(reader.seed, listed[-size:])].tolist()
            kept = [place for mark in row if (place := self._place(mark)) is not None]
            found = [(self._agreement(place, reader.owner, end), place) for place in kept]
            longest = max((length for length, _ in found), default=0)
            if longest >= size:
                places = [(length, place) for length, place in found if 2 * length > longest and length >= size]
                for _, place in places:
                    self._touch(place // _PAGE)
                return places
        return []

    def _agreement(self, place: int, owner: Owner | None, end: NDArray[np.int32]) -> int:
        page, offset = divmod(place, _PAGE)
        if self._owner[page] != owner or offset >= self._filled[page]:
            return 0
        longest = min(len(end), offset)
        differs = end[len(end) - longest :] != self._tokens[page, offset - longest : offset]
        return longest if not differs.any() else int(differs[::-1].argmax())

    def _following(self, places: list[tuple[int, int]], most: int) -> list[int]:
        """By vote, token by token: longer agreements count more, and who was outvoted falls silent."""
        voices = []
        for length, place in places:
            page, offset = divmod(place, _PAGE)
            said = self._tokens[page, offset : min(offset + most, self._filled[page])].tolist()
            voices.append((length, said[: said.index(_BREAK)] if _BREAK in said else said))
        tokens: list[int] = []
        while len(tokens) < most:
            votes: dict[int, int] = {}
            for length, said in voices:
                if len(said) > len(tokens):
                    votes[said[len(tokens)]] = votes.get(said[len(tokens)], 0) + length
            if not votes:
                break
            token = max(votes, key=lambda one: (votes[one], -one))
            tokens.append(token)
            voices = [(length, said) for length, said in voices if said[len(tokens) - 1 : len(tokens)] == [token]]
        return tokens
