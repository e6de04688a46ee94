"""Programs side by side: each in a process and a Python of its own, in rounds, back to back on the same prompts. Knows
no figure and no table.

Who fails, hangs or talks nonsense is out, with the reason, and the others go on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from ...errors import EngineError
from ..process import OURS, ROOT, Order, PeerProcess, positive
from .record import Answer, Entrant, FirstToken, PromptKind, Rival

_CONVERTING_S = 1800.0
"""For making a checkpoint into a peer's format, at least."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Question:
    name: str
    kind: PromptKind
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """Two prompts that begin with the same ``prefix`` tokens."""

    prefix: int
    first: tuple[int, ...]
    second: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    questions: tuple[tuple[Question, ...], ...]
    """Of each round, the one before the first, which warms up, ahead of them."""
    documents: tuple[Document, ...]
    """Of each round likewise."""
    sample: tuple[int, ...]
    """For likelihoods."""
    tokens: int
    threads: int
    context: int
    patience_s: float


class Race:
    """A context manager: its processes end with it."""

    def __init__(self, entrants: Sequence[Entrant], plan: Plan) -> None:
        self._entrants, self._plan = tuple(entrants), plan
        self._running: dict[str, PeerProcess] = {}
        self.rivals: dict[str, Rival] = {}

    def __enter__(self) -> Race:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for peer in self._running.values():
            peer.close()
        self._running.clear()

    def load(self, progress: Progress) -> None:
        """Converts what has to be, and starts all."""
        refused: dict[Path, str] = {}
        for count, entrant in enumerate(self._entrants):
            rival = Rival(entrant.kind, entrant.mode)
            self.rivals[rival.name] = rival
            progress(f"load {rival.name}", count, len(self._entrants))
            with self._or_out(rival.name):
                source = self._converted(entrant, rival.name, refused)
                peer = PeerProcess(rival.name, self._order(entrant, source), entrant.python, self._plan.patience_s)
                self._running[rival.name] = peer
                self.rivals[rival.name] = _greeted(rival, peer)

    def rounds(self, progress: Progress) -> Iterator[int]:
        """One after the other, from -1, which warms up; all that was found so far is in ``rivals``."""
        for number in range(-1, len(self._plan.questions) - 1):
            progress("rounds", max(number, 0), len(self._plan.questions) - 1)
            for question in self._plan.questions[number + 1]:
                for name in self._turns(number):
                    with self._or_out(name):
                        self._answer(name, question, number)
            for name in self._turns(number):
                with self._or_out(name):
                    self._first(name, self._plan.documents[number + 1], number)
            yield number

    def finish(self, progress: Progress) -> None:
        """Peaks, and then likelihoods: whole rows of logits are no part of answering."""
        for name in list(self._running):
            with self._or_out(name):
                peak = self._running[name].number("memory")
                self.rivals[name] = replace(self.rivals[name], peak_bytes=int(peak))
        for count, name in enumerate(list(self._running)):
            progress("likelihoods", count, len(self._running))
            with self._or_out(name):
                nll = self._running[name].number("nll", ids=list(self._plan.sample))
                self.rivals[name] = replace(self.rivals[name], nll=nll)

    def _turns(self, number: int) -> list[str]:
        """Who still runs, each round from another one on."""
        names = list(self._running)
        first = number % len(names) if names else 0
        return names[first:] + names[:first]

    def _answer(self, name: str, question: Question, number: int) -> None:
        seconds, tokens = self._told(name, question.ids, self._plan.tokens, 0)
        if number >= 0:
            answer = Answer(number, question.kind, question.name, seconds, tokens)
            self.rivals[name] = replace(self.rivals[name], answers=(*self.rivals[name].answers, answer))

    def _first(self, name: str, document: Document, number: int) -> None:
        cold_s, _ = self._told(name, document.first, 1, 0)
        # Some keep only a prefix that they were told of when they read it.
        self._told(name, document.first, 1, document.prefix)
        warm_s, _ = self._told(name, document.second, 1, document.prefix)
        if number >= 0:
            first = FirstToken(number, cold_s, warm_s)
            self.rivals[name] = replace(self.rivals[name], firsts=(*self.rivals[name].firsts, first))

    def _told(self, name: str, ids: Sequence[int], count: int, prefix: int) -> tuple[float, tuple[int, ...]]:
        told = self._running[name].ask("generate", ids=list(ids), count=count, prefix=prefix)
        tokens = told.get("tokens") if isinstance(told, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(one, int) and 0 <= one < 1 << 31 for one in tokens):
            raise EngineError(f"bench: {name} answers nonsense: {str(told)[:80]!r} for an answer")
        if len(tokens) != count:
            raise EngineError(f"bench: {name} made {len(tokens)} tokens of {count}")
        return positive(name, "seconds", told.get("seconds")), tuple(tokens)

    def _converted(self, entrant: Entrant, name: str, refused: dict[Path, str]) -> Path:
        """Raises ``EngineError``, at once for a second mode of a format that could not be made."""
        if entrant.missing is not None:
            raise EngineError(entrant.missing)
        if entrant.format is None or entrant.place is None:
            return entrant.source
        told = entrant.place / "source.txt"
        if not told.is_file():
            if entrant.place in refused:
                raise EngineError(refused[entrant.place])
            partial = _emptied(entrant.place)
            order = replace(
                self._order(entrant, entrant.source),
                do="prepare",
                mode=entrant.format,
                place=str(partial),
                directory=None if entrant.directory is None else str(entrant.directory),
            )
            click.echo(f"{entrant.kind}: making {entrant.place}", err=True)
            try:
                with PeerProcess(name, order, entrant.python, max(_CONVERTING_S, self._plan.patience_s)) as peer:
                    made = peer.greeting
                found = _within(partial, name, made)
            except BaseException as problem:  # a signal too: what is half made takes gigabytes
                shutil.rmtree(partial, ignore_errors=True)
                if isinstance(problem, EngineError):
                    refused[entrant.place] = _reason(name, problem)
                raise
            (partial / told.name).write_text(f"{found}\n", encoding="utf-8")
            partial.rename(entrant.place)
        return entrant.place / told.read_text(encoding="utf-8").strip()

    def _order(self, entrant: Entrant, source: Path) -> Order:
        return Order(
            "serve",
            entrant.program,
            str(source.resolve()),
            self._plan.threads,
            self._plan.context,
            entrant.mode,
            root=str(ROOT) if entrant.kind == OURS else None,
            assistant=None if entrant.assistant is None else str(entrant.assistant.resolve()),
        )

    @contextmanager
    def _or_out(self, name: str) -> Iterator[None]:
        """Inside, an ``EngineError`` is one rival's end and nobody else's."""
        try:
            yield
        except EngineError as problem:
            self._out(name, problem)

    def _out(self, name: str, problem: EngineError) -> None:
        self.rivals[name] = replace(self.rivals[name], error=_reason(name, problem))
        click.echo(f"{name} is out: {self.rivals[name].error}", err=True)
        peer = self._running.pop(name, None)
        if peer is not None:
            peer.close()


def _reason(name: str, problem: EngineError) -> str:
    """Without the name, which stands before it wherever it is shown."""
    return str(problem).removeprefix("bench: ").removeprefix(f"{name}: ")


def _emptied(place: Path) -> Path:
    """Where it is made, to be renamed. Raises ``EngineError``."""
    partial = place.with_name(f"{place.name}.part")
    for old in (partial, place):
        shutil.rmtree(old, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
    except OSError as problem:
        raise EngineError(f"{place} cannot be written: {problem.strerror}") from None
    return partial


def _within(place: Path, name: str, made: Any) -> Path:
    """What was made, as seen from ``place``, which is renamed; elsewhere, as it is. Raises ``EngineError``."""
    if not isinstance(made, str) or not Path(made).exists():
        raise EngineError(f"bench: {name} answers nonsense: {str(made)[:80]!r} for what it made")
    path = Path(made).resolve()
    return path.relative_to(place.resolve()) if path.is_relative_to(place.resolve()) else path


def _greeted(rival: Rival, peer: PeerProcess) -> Rival:
    """Raises ``EngineError`` for a greeting that is none."""
    said: Any = peer.greeting
    if not isinstance(said, dict) or not isinstance(said.get("weights"), str):
        raise EngineError(f"bench: {rival.name} answers nonsense: {str(said)[:80]!r} for a greeting")
    versions = said.get("versions")
    known = {str(key): str(value) for key, value in versions.items()} if isinstance(versions, dict) else None
    load_s = positive(rival.name, "load", said.get("load_s"))
    return replace(rival, weights=said["weights"], versions=known, load_s=load_s)
