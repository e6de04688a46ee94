"""One answer as its events come in, and what is counted of it. Knows no format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..generation import GenerationResult, Piece
from ..scheduler.request import Started
from .logprobs import LogprobLine, TokenLogprob


class Answer:
    def __init__(self, index: int, line: LogprobLine | None, asked_s: float) -> None:
        """``line`` where log-probabilities were asked for."""
        self.index = index
        self.started: Started | None = None
        self.result: GenerationResult | None = None
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.tokens = 0
        self._line, self._asked_s = line, asked_s
        self._first_s = self._last_s = asked_s

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def take(self, piece: Piece, at_s: float) -> list[TokenLogprob]:
        """Log-probabilities that go out with the piece's text."""
        if not self.tokens:
            self._first_s = at_s
        self._last_s = at_s
        self.tokens += len(piece.tokens)
        self.texts.append(piece.text)
        found = [] if self._line is None else self._line.take(piece)
        self.logprobs += found
        return found

    @property
    def ttft_s(self) -> float | None:
        """From the request to the first token, as the client sees it."""
        return self._first_s - self._asked_s if self.tokens else None

    @property
    def tpot_s(self) -> float | None:
        return (self._last_s - self._first_s) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def e2e_s(self) -> float:
        return self._last_s - self._asked_s


def usage(answers: Sequence[Answer], choices: int) -> dict[str, Any]:
    """Of all answers to one request; ``choices`` of them share a prompt. Counts tokens that were made, the one that
    ended a text included, and never drafts."""
    started = [answer.started for answer in answers]
    prompt = sum(one.prompt_tokens for one in started[::choices] if one is not None)
    # What every choice found in the cache: a sum over choices would be more than the prompt.
    cached = sum(
        min((one.cached_tokens for one in started[first : first + choices] if one is not None), default=0)
        for first in range(0, len(started), choices)
    )
    results = [answer.result for answer in answers if answer.result is not None]
    made = sum(answer.tokens for answer in answers)
    predicted = sum(result.predicted for result in results)
    accepted = sum(result.predicted_accepted for result in results)
    joules = [result.joules for result in results if result.joules is not None]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": predicted - accepted,
        },
        # Ours: of the whole board while it worked on this, and waited to stay within its power.
        "energy": {
            "joules": round(sum(joules), 3) if joules else None,
            "joules_per_token": round(sum(joules) / made, 4) if joules and made else None,
        },
    }


def timings(answers: Sequence[Answer]) -> dict[str, Any]:
    """Ours. Of several answers: the first token of all, the mean later token, the longest wait."""
    ttft = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    tpot = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    queued = [answer.started.queued_s for answer in answers if answer.started is not None]
    results = [answer.result for answer in answers if answer.result is not None]
    return {
        "ttft_ms": _ms(min(ttft)) if ttft else None,
        "tpot_ms": _ms(sum(tpot) / len(tpot)) if tpot else None,
        "queued_ms": _ms(max(queued)) if queued else None,
        "draft_n": sum(result.drafted for result in results),
        "draft_n_accepted": sum(result.accepted for result in results),
        "draft_by_source": _by_source(results),
        "notes": list(dict.fromkeys(note for result in results for note in result.notes)),
    }


def _by_source(results: Sequence[GenerationResult]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in (figures for result in results for figures in result.sources):
        counts = found.setdefault(one.source, {"drafted": 0, "accepted": 0})
        counts["drafted"] += one.drafted
        counts["accepted"] += one.accepted
    return found


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
