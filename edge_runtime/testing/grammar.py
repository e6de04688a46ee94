"""A grammar by a rule. Knows no text and no library of grammars."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Rule = Callable[[tuple[int, ...]], Collection[int]]
"""The answer so far -> the tokens that may come next, end-of-text ids among them."""


class FakeGrammar:
    """Implements ``text.grammar.Grammar`` by a rule."""

    def __init__(self, rule: Rule, vocab_size: int = 64) -> None:
        self.rule, self.vocab_size = rule, vocab_size

    @staticmethod
    def one_of(texts: Collection[Sequence[int]], eos: int, vocab_size: int = 64) -> FakeGrammar:
        """One of some texts, and then the end."""

        def rule(prefix: tuple[int, ...]) -> set[int]:
            count = len(prefix)
            left = [text for text in texts if tuple(text[:count]) == prefix]
            return {eos if len(text) == count else text[count] for text in left}

        return FakeGrammar(rule, vocab_size)

    def start(self) -> FakeGrammarState:
        return FakeGrammarState(self)


class FakeGrammarState:
    """Forces what the rule leaves no choice about."""

    def __init__(self, grammar: FakeGrammar) -> None:
        self._grammar = grammar
        self.accepted: list[int] = []
        self._mask = np.zeros(grammar.vocab_size, np.bool_)

    def _next(self, *more: int) -> Collection[int]:
        return self._grammar.rule((*self.accepted, *more))

    def allowed(self) -> NDArray[np.bool_]:
        self._mask[:] = False
        self._mask[list(self._next())] = True
        return self._mask

    def allows(self, token: int) -> bool:
        self._mask[:] = False  # as promised: the view is void now
        return token in self._next()

    def forced(self, most: int) -> list[int]:
        self._mask[:] = False
        forced: list[int] = []
        while len(forced) < most and len(only := list(self._next(*forced))) == 1:
            forced += only
        return forced

    def valid_prefix(self, tokens: list[int]) -> int:
        self._mask[:] = False
        return next((i for i, token in enumerate(tokens) if token not in self._next(*tokens[:i])), len(tokens))

    def accept(self, token: int) -> None:
        if not self.allows(token):
            raise ValueError(f"token {token} is not allowed behind {self.accepted}")
        self.accepted.append(token)

    def rollback(self, count: int) -> None:
        self._mask[:] = False
        if not 0 <= count <= len(self.accepted):
            raise ValueError(f"cannot take back {count} of {len(self.accepted)} tokens")
        del self.accepted[len(self.accepted) - count :]
