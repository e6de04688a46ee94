"""Structured output. Knows no engine and no request: a grammar says which tokens may come next.

``Grammar`` is a request's wish, compiled once (errors at that moment, as one line); ``GrammarState`` is one answer's
place in it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class GrammarState(Protocol):
    """Where one answer stands."""

    def allowed(self) -> NDArray[np.bool_]:
        """[vocab_size] tokens that may come next, end-of-text ids included where the text may end; a view that the
        next call of any method makes void. Never all false."""
        ...

    def allows(self, token: int) -> bool:
        """The same for one token, cheaper: ``allowed()[token]``."""
        ...

    def forced(self, most: int) -> list[int]:
        """Tokens that must come next whatever the model says; at most so many, perhaps none. Each is the only one that
        is allowed where it stands: where a text is certain, so is its spelling, the tokenizer's own."""
        ...

    def valid_prefix(self, tokens: list[int]) -> int:
        """How many of ``tokens`` could come next, one after the other. Changes nothing."""
        ...

    def accept(self, token: int) -> None:
        """Go on by a token that is allowed."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` accepted tokens."""
        ...


class Grammar(Protocol):
    """A compiled wish; frozen, shared between answers."""

    def start(self) -> GrammarState: ...
