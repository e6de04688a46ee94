"""A model that knows nothing, held to a grammar: random answers with drafts, rejections and forced tokens mixed in.
Knows no test."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import model_fixture as real
import numpy as np
from numpy.typing import NDArray
from tiny_bundle import tiny_tokenizer

from edge_runtime.text.grammar import Grammar, GrammarState
from edge_runtime.text.llguidance_grammar import GrammarCompiler
from edge_runtime.text.tokenizer import Tokenizer

_STRUCTURE = set(b'"{}[],: 0123456789.-+eEtrufalsnb')


@dataclass(frozen=True, slots=True)
class Words:
    """What the walks know of a vocabulary."""

    piece_bytes: Callable[[int], bytes]
    eos_ids: tuple[int, ...]
    structural: NDArray[np.bool_]
    """[vocab_size] pieces of which JSON is built, which a uniform choice would hardly ever meet"""

    @classmethod
    def of(cls, piece_bytes: Callable[[int], bytes], pieces: int, eos_ids: tuple[int, ...], vocab_size: int) -> Words:
        structural = np.zeros(vocab_size, np.bool_)
        for token in range(pieces):
            spelt = piece_bytes(token)
            structural[token] = bool(spelt) and set(spelt) <= _STRUCTURE
        return cls(piece_bytes, eos_ids, structural)

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.piece_bytes, tokens)).decode("utf-8")


class Walk:
    """One answer. ``tokens`` is what was accepted and not taken back."""

    def __init__(self, grammar: Grammar, words: Words, chance: random.Random) -> None:
        self.grammar, self.words, self.chance = grammar, words, chance
        self.state: GrammarState = grammar.start()
        self.tokens: list[int] = []

    def answer(self, most: int) -> str:
        """To its end: as it comes for ``most`` tokens, then by the shortest way."""
        while not self.ended:
            self.step(hurry=len(self.tokens) >= most)
            assert len(self.tokens) < most + 2000, f"never ends: {self.words.text(self.tokens)[-200:]!r}"
        return self.words.text(self.tokens[:-1])

    @property
    def ended(self) -> bool:
        return bool(self.tokens) and self.tokens[-1] in self.words.eos_ids

    def step(self, *, hurry: bool) -> None:
        """As a decoder does: a draft, some of it kept, then one token more."""
        if not hurry and self.chance.random() < 0.3:
            self._draft()
        if not self.ended:
            self._accept(self._choose(hurry))

    def replay(self) -> GrammarState:
        """A state that never went astray, at the same place."""
        fresh = self.grammar.start()
        for token in self.tokens:
            fresh.accept(token)
        return fresh

    def _draft(self) -> None:
        forced = self.state.forced(self.chance.randint(0, 6))
        assert self.state.valid_prefix(forced) == len(forced)
        draft = list(forced)
        for token in forced:
            assert np.flatnonzero(self.state.allowed()).tolist() == [token]
            self._accept(token)
        for _ in range(self.chance.randint(0, 3)):
            if self.ended:
                break
            draft.append(self._choose(hurry=False))
            self._accept(draft[-1])
        rejected = self.chance.randint(0, len(draft))
        self.state.rollback(rejected)
        del self.tokens[len(self.tokens) - rejected :]
        kept = len(draft) - rejected
        assert self.state.valid_prefix(draft[kept:]) == rejected

    def _accept(self, token: int) -> None:
        self.state.accept(token)
        self.tokens.append(token)

    def _choose(self, hurry: bool) -> int:
        allowed = self.state.allowed()
        assert allowed.any()
        if hurry:
            return self._nearest_end(allowed)
        structural = allowed & self.words.structural
        if structural.any() and self.chance.random() < 0.7:
            allowed = structural
        return int(self.chance.choice(np.flatnonzero(allowed)))

    def _nearest_end(self, allowed: NDArray[np.bool_]) -> int:
        ends = [token for token in self.words.eos_ids if allowed[token]]
        if ends:
            return ends[0]
        ids = np.flatnonzero(allowed & self.words.structural)
        if not len(ids):
            ids = np.flatnonzero(allowed)[:64]
        spelt = {self.words.piece_bytes(int(token)): int(token) for token in ids[:4096]}
        close = next((spelt[end] for end in (b'"', b"}", b"]") if end in spelt), None)
        # Not always: inside a string that has to hold something first, a bracket is one more character.
        return int(self.chance.choice(ids)) if close is None or self.chance.random() < 0.3 else close


PADDED = 3
"""Rows of the head that are no piece."""
REAL_EOS, TINY_EOS = (1, 106), (1, 6)


@cache
def tiny() -> tuple[GrammarCompiler, Words, Tokenizer]:
    tokenizer = real.load_tokenizer(tiny_tokenizer())
    rows = tokenizer.vocab_size + PADDED
    words = Words.of(tokenizer.piece_bytes, tokenizer.vocab_size, TINY_EOS, rows)
    return GrammarCompiler(tokenizer, TINY_EOS, rows), words, tokenizer


@cache
def gemma() -> tuple[GrammarCompiler, Words, Tokenizer]:
    tokenizer = real.tokenizer()
    words = Words.of(tokenizer.piece_bytes, 256000, REAL_EOS, tokenizer.vocab_size)
    return GrammarCompiler(tokenizer, REAL_EOS, tokenizer.vocab_size), words, tokenizer


def obj(required: str = "", additional: object = False, **properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": additional,
    }


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
