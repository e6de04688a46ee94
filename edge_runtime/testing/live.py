"""Engines of drafters that live on their target. Know no drafter.

A hidden row holds exactly what a ``FakeEngine`` knows of a text, so that a drafter which hands over the right rows can
be perfect. One that hands over another row, or leaves entries of its cache out, is not: what does not follow from what
stands before it is spoilt, and so is all that follows from it. What an engine feeds itself is marked as a guess: good
to go on with, and nothing that a true row may stand behind.
"""

from __future__ import annotations

from typing import Any

from ..engines.protocol import Floats, StepInput
from .engine import UNWRITTEN, FakeEngine
from .model import ROW, FakeModel, digest_of, rows_of

_SPOILT = -3
_GUESS = 1 << 52
"""The bit above a digest: the engine's own word, not its target's."""


class FakeSelfDraft(FakeEngine):
    """The target's own first layers: writes to its caches, of which the deeper layers then know nothing."""

    def __init__(self, target: FakeEngine, model: FakeModel | None = None, **settings: Any) -> None:
        info = target.info
        super().__init__(model or target.model, capacity=info.capacity, slots=info.slots, **settings)
        self.cache, self.digests, self.shallow = target.cache, target.digests, target.shallow

    def take(self, step: StepInput) -> list[int]:
        stop = step.position + len(step.tokens)
        for place, token in enumerate(step.tokens.tolist(), start=step.position):
            self.cache[step.slot, place] = token
            self.shallow[step.slot][place] = self.behind(step.slot, self.shallow[step.slot], place, range(place))
            self.digests[step.slot][place] = UNWRITTEN
        return self.shallow[step.slot][step.position : stop]


class FakeMultiToken(FakeEngine):
    """One layer over [token; hidden row], with a cache of its own. Its model must look at the whole text."""

    def __init__(self, model: FakeModel | None = None, **settings: Any) -> None:
        super().__init__(model, hidden_input=ROW, **settings)
        _refuse_order(self.model)

    def take(self, step: StepInput) -> list[int]:
        assert step.hidden is not None  # it was checked
        entries, first = self.digests[step.slot], step.position
        for place, (token, row) in enumerate(zip(step.tokens.tolist(), step.hidden, strict=True), start=first):
            told = digest_of(row)
            # The row behind the token before is what the entry of that token knows.
            before = entries[place - 1] if place else told
            follows = before in (told, told & ~_GUESS)
            digest = self.model.extend(told & ~_GUESS if follows else _spoilt(self.model, told), token)
            self.cache[step.slot, place] = token
            entries[place] = digest | (told & _GUESS)
        return [digest & ~_GUESS for digest in entries[first : first + len(step.tokens)]]

    def feed(self, known: list[int]) -> Floats:
        return rows_of([digest | _GUESS for digest in known])


class FakeHeads(FakeEngine):
    """Parallel heads, each as good as greedy decoding would be: the next tokens behind one row, at once."""

    def __init__(self, model: FakeModel | None = None, fan_out: int = 4, **settings: Any) -> None:
        super().__init__(model, hidden_input=ROW, fan_out=fan_out, **settings)
        _refuse_order(self.model)

    def take(self, step: StepInput) -> list[int]:
        assert step.hidden is not None  # it was checked
        known = []
        for token, row in zip(step.tokens.tolist(), step.hidden, strict=True):
            digest = self.model.extend(digest_of(row), token)
            for _ in range(self.info.fan_out):
                known.append(digest)
                best = int(self._ids[self.model.logits(digest, self._ids).argmax()])
                digest = self.model.extend(digest, best)
        return known


class FakeAssistant(FakeEngine):
    """Queries only: looks at the target's cache up to one place, which all drafts of a step share."""

    def __init__(self, target: FakeEngine, model: FakeModel | None = None, **settings: Any) -> None:
        info = target.info
        super().__init__(model or target.model, capacity=info.capacity, slots=info.slots, hidden_input=ROW, **settings)
        _refuse_order(self.model)
        self._target = target
        self._fed: tuple[int, int, int] | None = None
        """(slot, position, what it said) of the last forward."""

    def take(self, step: StepInput) -> list[int]:
        assert step.hidden is not None  # it was checked
        if len(step.tokens) != 1:
            raise ValueError("an assistant drafts one token at a time")
        told, place = digest_of(step.hidden[0]), step.position
        # The row at its place first, then what it said itself, always at the same place.
        follows = told == self._target.digests[step.slot][place] or (step.slot, place, told) == self._fed
        digest = self.model.extend(told & ~_GUESS if follows else _spoilt(self.model, told), int(step.tokens[0]))
        self._fed = (step.slot, place, digest | _GUESS)
        return [digest]

    def feed(self, known: list[int]) -> Floats:
        return rows_of([digest | _GUESS for digest in known])


def _spoilt(model: FakeModel, digest: int) -> int:
    return model.extend(digest, _SPOILT)


def _refuse_order(model: FakeModel) -> None:
    if model.order is not None:
        raise ValueError("a row says nothing of the last tokens alone")
