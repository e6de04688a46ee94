"""What the tests of the scheduler share: served fakes, readers that remember, an engine that waits to be let go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.engines.protocol import Engine, StepInput, StepOutput
from edge_runtime.errors import EdgeError
from edge_runtime.generation import GenerationResult, Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.request import Event, Failed, Finished, Limits, Request, Sink, Started, Ticket
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served
from edge_runtime.session import Session
from edge_runtime.testing import FakeEngine, FakeModel, decode

GREEDY = SamplingParams(temperature=0.0)
MODEL = FakeModel()
_LIMITS = Limits()
PATIENCE_S = 120.0
"""For what must happen at once; only a broken test waits so long."""


def serve(
    engine: Engine | None = None,
    drafter: Drafter | None = None,
    k: int = 0,
    name: str = "fake",
    eos_ids: tuple[int, ...] = (),
    close: Callable[[], None] = lambda: None,
) -> Served:
    engine = engine or FakeEngine(MODEL, slots=4)
    decoder = Decoder(engine, drafter, FixedLength(k))
    return Served(name, decoder, lambda token: chr(0x100 + token).encode(), eos_ids, close)


def request(prompt: Sequence[int], max_tokens: int | None = 8, **more: object) -> Request:
    return Request(np.array(prompt, np.int64), GREEDY, max_tokens, **more)  # type: ignore[arg-type]


def cold(prompt: Sequence[int], max_tokens: int, model: FakeModel = MODEL, capacity: int = 128) -> list[int]:
    """The answer of an engine that has seen nothing else."""
    engine = FakeEngine(model, capacity=capacity)
    session = Session(engine.info, prompt, GREEDY, max_tokens=max_tokens)
    decode(Decoder(engine), session)
    return session.generated.tolist()


class Reader:
    """A sink that remembers, and may act on what it reads."""

    def __init__(self, act: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.started, self.first, self.done = threading.Event(), threading.Event(), threading.Event()
        self._act = act

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Started):
            self.started.set()
        elif isinstance(event, Piece):
            self.first.set()
        else:
            self.done.set()
        self._act(event)

    def wait(self) -> Reader:
        assert self.done.wait(PATIENCE_S), "no last event"
        return self

    @property
    def begun(self) -> Started:
        (started,) = [event for event in self.events if isinstance(event, Started)]
        return started

    @property
    def pieces(self) -> list[Piece]:
        return [event for event in self.events if isinstance(event, Piece)]

    @property
    def result(self) -> GenerationResult:
        last = self.wait().events[-1]
        assert isinstance(last, Finished), last
        return last.result

    @property
    def tokens(self) -> list[int]:
        return list(self.result.tokens)

    @property
    def error(self) -> EdgeError:
        last = self.wait().events[-1]
        assert isinstance(last, Failed), last
        return last.error

    def check_order(self) -> None:
        """Started, pieces, and exactly one last event behind them."""
        *before, last = self.events
        assert isinstance(last, Finished | Failed)
        assert not any(isinstance(event, Finished | Failed) for event in before)
        if isinstance(last, Finished) or before:
            assert isinstance(before[0], Started)
            assert all(isinstance(event, Piece) for event in before[1:])
        if isinstance(last, Finished):
            assert last.result.text == "".join(piece.text for piece in self.pieces)
            assert last.result.tokens == tuple(token for piece in self.pieces for token in piece.tokens)


class GatedEngine(FakeEngine):
    """Each forward waits until it is let through, so that a test knows where the engine's thread is."""

    def __init__(self, **settings: object) -> None:
        super().__init__(MODEL, **{"slots": 4, **settings})  # type: ignore[arg-type]
        self._arrived, self._permits, self._open = threading.Semaphore(0), threading.Semaphore(0), False

    def forward(self, step: StepInput) -> StepOutput:
        if not self._open:
            self._arrived.release()
            assert self._permits.acquire(timeout=PATIENCE_S), "nobody lets this forward through"
        return super().forward(step)

    def wait_inside(self) -> None:
        """Until the thread stands in a forward."""
        assert self._arrived.acquire(timeout=PATIENCE_S), "no forward came"

    def let(self, count: int = 1) -> None:
        """Let the forward in which the thread stands through, and those behind it; it then stands in the next."""
        for _ in range(count):
            self._permits.release()
            self.wait_inside()

    def let_last(self) -> None:
        """Let the forward in which the thread stands through; none follows."""
        self._permits.release()

    def open(self) -> None:
        self._open = True
        self._permits.release()


@contextmanager
def running(served: Served, limits: Limits = _LIMITS, **more: object) -> Iterator[Scheduler]:
    """A started scheduler, closed afterwards; its thread must be gone then, and nobody left waiting."""
    scheduler = Scheduler(served, limits, **more)  # type: ignore[arg-type]
    scheduler.start()
    try:
        yield scheduler
    finally:
        target = served.decoder.target
        if isinstance(target, GatedEngine):
            target.open()
        scheduler.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "edge-engine"]
        check_empty(scheduler)


def check_empty(scheduler: Scheduler) -> None:
    seen = scheduler.snapshot()
    requests = seen.requests
    assert requests.running == requests.waiting == 0 and seen.running == ()
    assert requests.received == requests.finished + requests.failed + requests.cancelled + requests.refused
    assert not any(slot.busy for slot in seen.slots)


def until(holds: Callable[[], object]) -> None:
    """For what another thread does in a moment and tells nobody."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0)


def ask(scheduler: Scheduler, served: Served, wanted: Request, sink: Sink) -> Ticket:
    (ticket,) = scheduler.submit(served, [(wanted, sink)])
    return ticket
