"""A scheduler whose rounds a test takes one by one, and a plain model of what it owes. Knows no rules."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from scheduling import serve

from edge_runtime.budget import Budget
from edge_runtime.cost import CostTable
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.mtp import MultiToken
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.drafters.self_draft import SelfDraft
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.errors import EdgeError
from edge_runtime.generation import Generation, Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.entry import Entry
from edge_runtime.scheduler.governing import Governing
from edge_runtime.scheduler.request import Event, Failed, Finished, Limits, Request, Started
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served
from edge_runtime.session import Session
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, FakeModel, FakeMultiToken, FakeSelfDraft, ManualClock
from edge_runtime.text.stream import TextStream

CAPACITY = 40
VOCAB = 16
EOS = 15
COST = CostTable(body_s=tuple(0.01 + 0.002 * rows for rows in range(1, 17)), head_s=(0.001,) * 17, draft_s=0.0)
LETTERS = "abcdefghijklmnop"
DRAFTERS = ("none", "lookup", "suffix", "draft", "mtp", "self")


class _Taken(threading.Condition):
    """Whoever waits for the engine's thread takes its next round; where the thread itself would wait, time goes by."""

    def __init__(self, scheduler: Stepped, clock: ManualClock) -> None:
        super().__init__()
        self._scheduler, self._clock, self._inside = scheduler, clock, False

    def wait(self, timeout: float | None = None) -> bool:
        if self._inside:
            self._clock.advance(min(1.0, timeout or 1.0))
        else:
            self.take()
        return True

    def take(self) -> bool:
        self._inside = True
        try:
            return self._scheduler._round()
        finally:
            self._inside = False


class Stepped(Scheduler):
    """Without a thread of its own."""

    def __init__(self, served: Served, limits: Limits, clock: ManualClock, governing: Governing) -> None:
        super().__init__(served, limits, clock, governing)
        self._changed: _Taken = _Taken(self, clock)
        self.turned: list[int] = []
        """Whose turns there were, by number."""

    def take(self) -> bool:
        return self._changed.take()

    def _turn(self, entry: Entry) -> None:
        self.turned.append(entry.ticket.number)
        super()._turn(entry)


class Told(Governing):
    """Allows what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = Budget()

    def ask(self, now_s: float, waiting: bool) -> Budget:
        self.budget = self.wanted
        return self.budget


@dataclass(eq=False)
class Model:
    """One that is served, with its engines at hand."""

    served: Served
    target: FakeEngine
    draft: FakeEngine | None
    seed: int
    closed: int = 0


def model_of(kind: str, slots: int, max_rows: int, k: int, clock: ManualClock, seed: int) -> Model:
    law = FakeModel(VOCAB, seed)
    near = FakeModel(VOCAB, seed, agreement=0.8)
    target = FakeEngine(
        law, slots=slots, capacity=CAPACITY, max_rows=max_rows, keeps_hidden=kind == "mtp", clock=clock, cost=COST
    )
    draft: FakeEngine | None = None
    drafter: Drafter | None = None
    if kind == "draft":
        draft = FakeEngine(near, slots=slots, capacity=CAPACITY, max_rows=max_rows)
        drafter = DraftModel(draft, target.info)
    elif kind == "mtp":
        draft = FakeMultiToken(near, slots=slots, capacity=CAPACITY, max_rows=5)
        drafter = MultiToken(draft, target.info)
    elif kind == "self":
        draft = FakeSelfDraft(target, near)
        drafter = SelfDraft(draft, target.info)
    elif kind == "lookup":
        drafter = PromptLookup(2, 1)
    elif kind == "suffix":
        drafter = SuffixCache(1024, secret=b"\x00")
    made = serve(target, drafter, k, f"model {seed}", (EOS,))

    def close() -> None:
        model.closed += 1

    def forget(slots: object) -> None:
        for slot in slots:  # type: ignore[attr-defined]
            target.forget(slot)

    served = Served(made.name, made.decoder, lambda token: LETTERS[token].encode(), (EOS,), close, forget)
    model = Model(served, target, draft, seed)
    return model


@dataclass(frozen=True)
class Wish:
    """A request in plain values, from which its one right answer follows."""

    prompt: tuple[int, ...]
    temperature: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    top_logprobs: int | None = None
    client: int = 0
    priority: int = 0
    deadline_s: float | None = None
    max_draft_tokens: int | None = None
    prediction: tuple[int, ...] | None = None

    def request(self) -> Request:
        return Request(
            np.array(self.prompt, np.int64), SamplingParams(self.temperature), self.max_tokens, self.stops, self.seed,
            shaping=ShapingParams(self.presence_penalty), top_logprobs=self.top_logprobs,
            prediction=None if self.prediction is None else np.array(self.prediction, np.int64),
            max_draft_tokens=self.max_draft_tokens, client=self.client, priority=self.priority,
            deadline_s=self.deadline_s,
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[object, ...]
    text: str
    finish_reason: str | None


@cache
def plain(
    model_seed: int, prompt: tuple[int, ...], temperature: float, seed: int | None, max_tokens: int | None,
    stops: tuple[str, ...], presence_penalty: float, top_logprobs: int | None,
) -> Answer:  # fmt: skip
    """By an engine that has seen nothing else, without drafts."""
    engine = FakeEngine(FakeModel(VOCAB, model_seed), capacity=CAPACITY)
    session = Session(
        engine.info, prompt, SamplingParams(temperature), seed=seed, max_tokens=max_tokens, eos_ids=[EOS],
        shaping=ShapingParams(presence_penalty), top_logprobs=top_logprobs,
    )  # fmt: skip
    made = Generation(
        Decoder(engine, None, FixedLength(0)), session, TextStream(lambda token: LETTERS[token].encode(), stops)
    )
    return answer_of(list(made), str(made.finish_reason))


def answer_of(pieces: list[Piece], finish_reason: str | None) -> Answer:
    return Answer(
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
        tuple(one for piece in pieces for one in piece.top or ()),
        "".join(piece.text for piece in pieces),
        finish_reason,
    )


@dataclass(eq=False)
class Owed:
    """A request that was accepted, and what became of it: the model of an entry, and its reader."""

    number: int
    wish: Wish
    model: Model
    cap: int | None
    """Of tokens, as far as the limits went."""
    deadline_s: float | None
    leader: Owed | None
    machine: Watcher
    raises: bool = False
    """The reader does, at its first piece."""
    cancelled: bool = False
    started: Started | None = None
    pieces: list[Piece] = field(default_factory=list)
    last: Finished | Failed | None = None

    @property
    def waiting(self) -> bool:
        return self.started is None and self.last is None

    @property
    def running(self) -> bool:
        return self.started is not None and self.last is None

    @property
    def error(self) -> EdgeError | None:
        return self.last.error if isinstance(self.last, Failed) else None

    @property
    def right(self) -> Answer:
        wish = self.wish
        return plain(
            self.model.seed, wish.prompt, wish.temperature, wish.seed, self.cap, wish.stops, wish.presence_penalty,
            wish.top_logprobs,
        )  # fmt: skip

    def __call__(self, event: Event) -> None:
        try:
            self._hear(event)
        except AssertionError as problem:  # a scheduler outlives its readers: the rule that took the round is told
            self.machine.wrong.append(problem)
        if self.raises and isinstance(event, Piece):
            raise RuntimeError("the reader is broken")

    def _hear(self, event: Event) -> None:
        assert self.last is None, "an event behind the last one"
        if isinstance(event, Started):
            assert self.started is None, "started twice"
            self.machine.starts(self, event)
            self.started = event
        elif isinstance(event, Piece):
            assert self.started is not None, "a piece before the start"
            self.pieces.append(event)
            self.check_so_far()
        else:
            self.last = event
            self.machine.ends(self, event)

    def check_so_far(self) -> None:
        found, right = answer_of(self.pieces, None), self.right
        assert found.tokens == right.tokens[: len(found.tokens)]
        assert found.logprobs == right.logprobs[: len(found.logprobs)]
        assert right.text.startswith(found.text), (found.text, right.text)
        assert found.top == right.top[: len(found.top)]
        assert len(found.top) == (0 if self.wish.top_logprobs is None else len(found.tokens))


class Watcher:
    """Told of what readers are told."""

    wrong: list[AssertionError]

    def starts(self, owed: Owed, event: Started) -> None: ...

    def ends(self, owed: Owed, event: Finished | Failed) -> None: ...
