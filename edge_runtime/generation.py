"""One answer, from a session to pieces of text. Knows no engine, no drafter and no client.

A generation may be left at any piece and taken up again: between two pieces session and text always agree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from .decoder import Clock, Decoder, Progress
from .health import Drafted, notes
from .session import FinishReason, Session, StepResult, Top, Totals


class Text(Protocol):
    """What a generation asks of ``text.stream.TextStream``."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        ...

    def push(self, token: int) -> str:
        """Text that is now certain: whole characters, and no possible start of a stop string."""
        ...

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added. Text may lag behind tokens, since characters and stop strings span them."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of ``tokens``, see ``Session.logprobs``."""
    finish_reason: FinishReason | None
    top: tuple[Top, ...] | None = None
    """The best alternatives of each of ``tokens``, as many as the session asked for; ``None``: it did not."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """The answer so far and how it was made. ``None``: there was nothing to measure."""

    tokens: tuple[int, ...]
    """The one that ended the text included."""
    text: str
    finish_reason: FinishReason | None
    """``None``: the consumer left."""
    prompt_tokens: int
    ttft_s: float | None
    """From the start to the first token."""
    tpot_s: float | None
    """Per later token. Time that the consumer took is not in it."""
    prefill_s: float
    draft_s: float
    """Of the steps behind the prefill, as the next two."""
    verify_s: float
    overhead_s: float
    steps: int
    drafted: int
    accepted: int
    acceptance_rate: float | None
    """Accepted per drafted token."""
    acceptance_length: float | None
    """Committed tokens per step, the recovered or bonus token included."""
    accepted_length: float | None
    """Accepted drafts per step: what some papers call acceptance length."""
    acceptance_by_position: tuple[float, ...]
    """Of a draft token that was judged, by its place in the draft."""
    mean_log_likelihood: float | None
    """Per token, under the target at the request's temperature (1 for greedy)."""
    steps_by_drafted: tuple[int, ...]
    """[0..K] steps that drafted so many."""
    drafter: str
    reason: str
    """Why the last step with room to draft drafted what it did: whether drafting runs, and why not. What ended the
    text, where that was its repeating itself."""
    predicted: int = 0
    """Tokens of the client's prediction that were judged."""
    predicted_accepted: int = 0
    drafting: Drafted = Drafted()
    """What ``health`` judges, and the shares of time."""
    sources: tuple[SourceFigures, ...] = ()
    """Who drafted what, by falling number of tokens."""
    joules: float | None = None
    """That the whole board took for it, idle power included; ``None``: nobody reads it."""

    @property
    def joules_per_token(self) -> float | None:
        return None if self.joules is None or not self.tokens else self.joules / len(self.tokens)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where drafting missed a mark of health."""
        return notes(self.drafting)


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """What one source of drafts brought."""

    source: str
    steps: int
    drafted: int
    accepted: int
    draft_s: float


def figures_of(totals: Totals) -> tuple[SourceFigures, ...]:
    found = [
        SourceFigures(source, one.steps, one.drafted, one.accepted, one.draft_s)
        for source, one in totals.by_source.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.drafted, one.source)))


class Generation:
    """Iterate over it for the pieces; ``result`` may be asked at any time."""

    def __init__(
        self,
        decoder: Decoder,
        session: Session,
        text: Text,
        *,
        progress: Progress | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.session = session
        self._decoder, self._text, self._progress, self._clock = decoder, text, progress, clock
        self.last: StepResult | None = None
        """The last step, that of the prefill included."""
        self._pieces: list[str] = []
        self._reason = ""
        self._seconds = 0.0
        """Inside this generation, the consumer's time left out."""
        self._ttft_s: float | None = None

    def __iter__(self) -> Iterator[Piece]:
        """One piece for each step, from where the session stands."""
        while self.session.finish_reason is None:
            piece = self.turn()
            if piece is not None:
                yield piece

    @property
    def finish_reason(self) -> FinishReason | None:
        """``None``: more turns follow."""
        return self.session.finish_reason

    def turn(self) -> Piece | None:
        """One turn among other generations' (``Decoder.advance``); ``None``: only the cache was filled.

        After an ``EngineError`` it may be repeated. Raises ``ValueError`` once the answer is finished.
        """
        started = self._clock()
        prompt_only = self.session.length == self.session.prompt_len
        piece: Piece | None = None
        try:
            result = self._decoder.advance(self.session)
            if result is not None:
                piece = self._read(result)
            if prompt_only and self._progress is not None:
                self._progress(min(self.session.kv_len, self.session.prompt_len), self.session.prompt_len)
        finally:
            # Also when an engine fails: the time went by, and the session can go on.
            self._seconds += self._clock() - started
            if piece is not None and self._ttft_s is None:
                self._ttft_s = self._seconds
        return piece

    def _read(self, result: StepResult) -> Piece:
        """Token by token, so that a stop string cuts where plain decoding would have ended."""
        session, text = self.session, ""
        self.last = result
        if result.finish_reason is None or not self._reason:
            self._reason = result.reason
        count = 0
        for token in result.tokens:
            count += 1
            if token in session.eos_ids:
                break
            text += self._text.push(token)
            if self._text.stopped:
                session.cut(session.length - (len(result.tokens) - count))
                session.finish_reason = "stop"
                break
        if session.finish_reason is not None and not self._text.stopped:
            text += self._text.flush()
        self._pieces.append(text)
        top = None if result.top is None else result.top[:count]
        return Piece(text, result.tokens[:count], result.logprobs[:count], session.finish_reason, top)

    def result(self) -> GenerationResult:
        session, totals = self.session, self.session.totals
        count = len(session.generated)
        later_s = self._seconds - (self._ttft_s or 0.0)
        largest = max(totals.steps_by_drafted, default=-1)
        return GenerationResult(
            tokens=tuple(session.generated.tolist()),
            text="".join(self._pieces),
            finish_reason=session.finish_reason,
            prompt_tokens=session.prompt_len,
            ttft_s=self._ttft_s,
            tpot_s=later_s / (count - 1) if count > 1 else None,
            prefill_s=session.prefill_s,
            draft_s=totals.draft_s,
            verify_s=totals.verify_s,
            overhead_s=totals.overhead_s,
            steps=totals.steps,
            drafted=totals.drafted,
            accepted=totals.accepted,
            acceptance_rate=totals.accepted / totals.drafted if totals.drafted else None,
            acceptance_length=totals.committed / totals.steps if totals.steps else None,
            accepted_length=totals.accepted / totals.steps if totals.steps else None,
            acceptance_by_position=totals.acceptance_by_position,
            mean_log_likelihood=session.log_likelihood / count if count else None,
            steps_by_drafted=tuple(totals.steps_by_drafted.get(k, 0) for k in range(largest + 1)),
            drafter=self._decoder.drafter.name,
            reason=session.repetition if session.finish_reason == "length" and session.repetition else self._reason,
            predicted=totals.predicted,
            predicted_accepted=totals.predicted_accepted,
            drafting=totals.drafting,
            sources=figures_of(totals),
        )
