"""What is decoded beside what, and in which order. Pure: knows no engine and no clock.

A *cell* is a bundle and a method. The cells of a group decode the same prompt back to back, and the order turns round
with the rounds: what else the machine does meets all of them. Rounds go through all domains before the next begins, so
that a run that is stopped has seen each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ...bundle import TARGET, Manifest
from ...errors import ConfigError
from ...loading import CHUNK_ROWS, LoadedBundle
from ..methods import AUTO, DEFAULT, PLAIN, Method
from ..prompts import Domain
from ..texts import Law

ARTICLE_DOMAINS = ("technology", "law", "poetry", "programming", "medicine")
ARTICLE_LENGTHS = (20, 50, 100)
LENGTHS = (4, *ARTICLE_LENGTHS)
"""A short one for scale."""
MOST_LENGTH = 255
_PAIR = 2
"""Lengths that share a plain text."""

Part = Literal["rounds", "lengths"]
"""Rounds: plain against drafted, of one bundle or of two. Lengths: drafts of fixed length."""
Which = Literal["main", "beside"]


@dataclass(frozen=True, slots=True)
class Cell:
    bundle: Which
    method: Method


@dataclass(frozen=True, slots=True)
class Group:
    part: Part
    number: int
    """Within the part, round, domain and law."""
    cells: tuple[Cell, ...]
    """In the order in which they decode."""


@dataclass(frozen=True, slots=True)
class Plan:
    laws: tuple[Law, ...]
    domains: tuple[Domain, ...]
    rounds: int = 10
    tokens: int = 200
    """Of each text."""
    lengths: tuple[Method, ...] = ()
    """Of fixed K; none leaves that part out."""
    length_rounds: int = 1
    two: bool = False
    """Whether there is a bundle beside."""

    @property
    def compared(self) -> tuple[Cell, ...]:
        """Of each round: two cells, or the four of two precisions, with and without drafts."""
        bundles: tuple[Which, ...] = ("beside", "main") if self.two else ("main",)
        return tuple(Cell(bundle, method) for bundle in bundles for method in (PLAIN, DEFAULT))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All that decode anything."""
        return (*self.compared, *(Cell("main", method) for method in self.lengths))

    def episodes(self) -> Iterator[tuple[int, Domain]]:
        for number in range(self.rounds):
            for domain in self.domains:
                yield number, domain

    def groups(self, number: int) -> tuple[Group, ...]:
        """Of one law in one episode of that round."""
        found = [Group("rounds", 0, _turned(self.compared, number))]
        if number < self.length_rounds:
            plain = Cell("main", PLAIN)
            for place, start in enumerate(range(0, len(self.lengths), _PAIR)):
                cells = [Cell("main", method) for method in self.lengths[start : start + _PAIR]]
                found.append(Group("lengths", place, _turned((plain, *cells), number + place)))
        return tuple(found)

    def count(self, cell: Cell, episodes: Sequence[tuple[int, Domain]]) -> int:
        """Texts that a cell decodes in these."""
        each = {number: sum(group.cells.count(cell) for group in self.groups(number)) for number, _ in episodes}
        return len(self.laws) * sum(each[number] for number, _ in episodes)


def _turned(cells: tuple[Cell, ...], number: int) -> tuple[Cell, ...]:
    return cells if number % 2 == 0 else cells[::-1]


def prompt_of(domain: Domain, number: int) -> int:
    """Which of a domain's prompts a round decodes: they take turns."""
    return number % len(domain.prompts)


def lengths_named(text: str) -> tuple[int, ...]:
    """``4,20,50,100``; an empty text is none. Raises ``ConfigError``."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    for name in names:
        if not (name.isdecimal() and name.isascii() and 1 <= int(name) <= MOST_LENGTH):
            raise ConfigError(f"lengths: {name!r} is no number from 1 to {MOST_LENGTH}")
    return tuple(sorted({int(name) for name in names}))


def rows_for(lengths: Sequence[int]) -> int:
    """Of a forward, so that a draft of each length and the token before it fit."""
    return max(CHUNK_ROWS, max(lengths, default=0) + 1)


def fixed_lengths(bundle: LoadedBundle, drafter: str, lengths: Sequence[int]) -> tuple[Method, ...]:
    """Of one drafter: the bundle's first that thinks for ``auto``, else lookup. Raises ``ConfigError``."""
    offered = [name for name in bundle.drafters() if name != AUTO]
    if drafter != AUTO and drafter not in offered:
        raise ConfigError(f"drafter {drafter}: bundle {bundle.manifest.name!r} has {', '.join(offered)}")
    name = drafter if drafter != AUTO else offered[min(1, len(offered) - 1)]
    longest = bundle.target.info.max_rows - 1
    too_long = [length for length in lengths if length > longest]
    if too_long:
        raise ConfigError(
            f"lengths: the engine of bundle {bundle.manifest.name!r} runs drafts of at most {longest} tokens, not "
            f"{too_long[0]}; give --lengths"
        )
    return tuple(Method(name, str(length)) for length in lengths)


def refuse_other_model(main: Manifest, beside: Manifest) -> None:
    """Two precisions of one model have its vocabulary and its shape. Raises ``ConfigError``."""
    ours, theirs = main.tokenizer, beside.tokenizer
    wanted = "give another precision of the same model"
    if main.files == beside.files:
        raise ConfigError(f"beside: it is the same bundle, {main.name!r}; {wanted}")
    if (ours.pieces_sha256, ours.vocab_size) != (theirs.pieces_sha256, theirs.vocab_size):
        raise ConfigError(f"beside: {beside.name!r} has another vocabulary than {main.name!r}; {wanted}")
    one, other = _shape(main), _shape(beside)
    if one != other:
        raise ConfigError(f"beside: {beside.name!r} is another model ({other}) than {main.name!r} ({one}); {wanted}")


def _shape(manifest: Manifest) -> str:
    target = manifest.model(TARGET)
    return f"{manifest.family}, {len(target.layers)} layers, rows of {target.hidden_size}"
