"""What a scheduler has done since it was made. Pure; knows no thread and no request.

Counts, and samples of the last few: nothing here grows with what was counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..generation import figures_of
from ..health import notes
from ..session import StepResult, Totals
from ..status import SourceStatus, SpeculationStatus, SpeedStatus

_LATENCIES = 256
_STEPS = 64
_RATE_S = 5
"""Seconds that ``tokens_per_s`` looks back."""


def _samples(most: int) -> deque[float]:
    return deque(maxlen=most)


@dataclass(slots=True)
class Tally:
    received: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    fault: str = ""
    """Why the last answer failed that an engine, or the daemon itself, ended;"""
    fault_s: float = 0.0
    """and when."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafts: int = 0
    """Steps that drafted."""
    totals: Totals = field(default_factory=Totals)
    """Of the steps of decoding; as many places and sources as there are."""
    reason: str = ""
    """Of the last step's K."""
    _k: deque[float] = field(default_factory=lambda: _samples(_STEPS))
    _ttft_s: deque[float] = field(default_factory=lambda: _samples(_LATENCIES))
    _tpot_s: deque[float] = field(default_factory=lambda: _samples(_LATENCIES))
    _by_second: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RATE_S + 1))
    """(second, tokens sent in it)"""

    def start(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def sent(self, count: int, now_s: float) -> None:
        """So many tokens went to their reader."""
        self.generated_tokens += count
        second = int(now_s)
        if self._by_second and self._by_second[-1][0] == second:
            count += self._by_second.pop()[1]
        self._by_second.append((second, count))

    def step(self, result: StepResult) -> None:
        """A step of decoding, which a prefill's is not."""
        self.totals.add(result)
        self.drafts += result.drafted > 0
        if result.finish_reason is None or not self.reason:
            self.reason = result.reason  # the last step of a text has no room to draft, and says just that
        self._k.append(result.drafted)

    def waited(self, ttft_s: float) -> None:
        """From a request's arrival to its first token."""
        self._ttft_s.append(ttft_s)

    def took(self, tpot_s: float) -> None:
        """Per later token of an answer that is over, others' turns included."""
        self._tpot_s.append(tpot_s)

    def speculation(self) -> SpeculationStatus:
        totals, seen = self.totals, self.totals.drafting
        draft_share, verify_share, host_share = seen.shares or (None, None, None)
        return SpeculationStatus(
            running=any(self._k),
            reason=self.reason,
            num_draft_tokens=sum(self._k) / len(self._k) if self._k else 0.0,
            drafts=self.drafts,
            draft_tokens=totals.drafted,
            accepted_tokens=totals.accepted,
            acceptance_rate=seen.acceptance_rate,
            acceptance_length=totals.committed / totals.steps if totals.steps else None,
            acceptance_by_position=totals.acceptance_by_position,
            draft_mean_log_likelihood=seen.mean_log_likelihood,
            draft_share=draft_share,
            verify_share=verify_share,
            host_share=host_share,
            sources=tuple(SourceStatus(one.source, one.steps, one.drafted, one.accepted) for one in figures_of(totals)),
            notes=notes(seen),
        )

    def speed(self, now_s: float) -> SpeedStatus:
        return SpeedStatus(
            tokens_per_s=self._rate(now_s),
            ttft_ms_p50=_percentile_ms(self._ttft_s, 0.50),
            ttft_ms_p95=_percentile_ms(self._ttft_s, 0.95),
            tpot_ms_p50=_percentile_ms(self._tpot_s, 0.50),
            tpot_ms_p95=_percentile_ms(self._tpot_s, 0.95),
            generated_tokens=self.generated_tokens,
            prompt_tokens=self.prompt_tokens,
            cached_prompt_tokens=self.cached_tokens,
        )

    def _rate(self, now_s: float) -> float:
        recent = [(second, count) for second, count in self._by_second if second > now_s - _RATE_S]
        if not recent:
            return 0.0
        # Since the first of them at most, so that a burst after a pause is not thinned by the pause.
        return sum(count for _, count in recent) / max(1.0, now_s - recent[0][0])


def _percentile_ms(samples_s: deque[float], share: float) -> float | None:
    if not samples_s:
        return None
    ordered = sorted(samples_s)
    return 1000.0 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]
