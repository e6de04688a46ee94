"""Steps become figures: medians with intervals, speed-ups at a set acceptance, the share of our own code. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ...cost import expected_tokens
from ..stats import Middle, Ratio, middle, paired_ratio
from .record import Contexts, Facts, ModelRun, Report, Sessions, Shared, Step, Way


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Of steps of one kind."""

    verify_s: Middle
    """Without the draft."""
    draft_s: float | None
    """A drafted token, median; ``None``: plain."""


def step_figures(steps: Sequence[Step], context: int, k: int) -> StepFigures | None:
    """Of those that drafted as much as they were asked for; ``None``: there was none."""
    found = [step for step in steps if (step.context, step.k, step.drafted) == (context, k, k)]
    if not found:
        return None
    drafts = [step.draft_s / step.drafted for step in found if step.drafted]
    return StepFigures(middle([step.verify_s for step in found]), median(drafts) if drafts else None)


def prefill_s(contexts: Contexts, context: int) -> Middle | None:
    found = [one.seconds for one in contexts.prefills if one.context == context]
    return middle(found) if found else None


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Where the time of a step goes, medians."""

    total_s: float
    loop_s: float
    """Of our loop, outside of any engine."""
    around_s: float | None
    """Beside the graphs: inside engines, and between a drafter's forwards; ``None``: the engine does not say."""
    share: Middle | None
    """Of both, in the step."""


def host_figures(steps: Sequence[Step], k: int) -> HostFigures | None:
    """``None``: there was no such step."""
    found = [step for step in steps if step.k == step.drafted == k]
    if not found:
        return None
    hosts = [(step, step.host_s) for step in found]
    known = [(step, host_s) for step, host_s in hosts if host_s is not None]
    return HostFigures(
        total_s=median(step.total_s for step in found),
        loop_s=median(step.loop_s for step in found),
        around_s=median(max(0.0, host_s - step.loop_s) for step, host_s in known) if known else None,
        share=middle([host_s / step.total_s for step, host_s in known]) if known else None,
    )


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """Of all runs of so many sessions."""

    tokens_per_s: Middle
    """All sessions together."""
    tpot_s: Middle
    ttft_s: Middle
    loop_s: float
    resident_bytes: int


def shared_figures(sessions: Sessions, count: int, way: Way) -> SharedFigures | None:
    found: list[Shared] = [run for run in sessions.runs if (run.sessions, run.way) == (count, way)]
    if not found:
        return None
    return SharedFigures(
        tokens_per_s=middle([run.window_tokens / run.window_s for run in found]),
        tpot_s=middle([run.tpot_s for run in found]),
        ttft_s=middle([run.ttft_s for run in found]),
        loop_s=median(run.loop_s for run in found),
        resident_bytes=max(run.resident.now for run in found),
    )


def over_one(sessions: Sessions, count: int, way: Way) -> Ratio | None:
    """Tokens a second of all sessions over those of one, round by round."""
    rates = {(run.round, run.sessions): run.window_tokens / run.window_s for run in sessions.runs if run.way == way}
    pairs = [(rates[key], rate) for key, rate in _beside(rates, count)]
    return paired_ratio([rate for _, rate in pairs], [one for one, _ in pairs]) if pairs and count > 1 else None


def _beside(rates: dict[tuple[int, int], float], count: int) -> Iterator[tuple[tuple[int, int], float]]:
    for (number, sessions), rate in rates.items():
        if sessions == count and (number, 1) in rates:
            yield (number, 1), rate


@dataclass(frozen=True, slots=True)
class Replay:
    """Drafts of K kept at a rate that was set."""

    k: int
    acceptance: float
    speedup: Ratio
    """Over the plain steps of the same round."""


def replay(run: ModelRun, k: int, acceptance: float) -> Replay | None:
    """Seconds are measured. Tokens a step are those that follow from the rate: a coin tossed few times would add noise.

    ``None``: there was no such step beside a plain one.
    """
    tokens = expected_tokens([acceptance] * k)
    by_round: dict[int, list[float]] = {}
    for step in run.steps:
        if step.k == 0:
            by_round.setdefault(step.round, []).append(step.total_s)
    plain = {number: median(seconds) for number, seconds in by_round.items()}
    found = [
        step
        for step in run.steps
        if (step.k, step.drafted, step.acceptance) == (k, k, acceptance) and step.round in plain
    ]
    if not found:
        return None
    return Replay(k, acceptance, paired_ratio([tokens * plain[s.round] for s in found], [s.total_s for s in found]))


def coins(run: ModelRun) -> tuple[float, float]:
    """(tokens a step that the drafted steps of all rates made, those that follow from the rates)."""
    found = [step for step in run.steps if step.k and step.acceptance is not None]
    wanted = [expected_tokens([step.acceptance or 0.0] * step.k) for step in found]
    count = max(1, len(found))
    return sum(step.accepted + 1 for step in found) / count, sum(wanted) / count


def stepped(report: Report) -> Iterator[tuple[Facts, int, tuple[Step, ...]]]:
    """Whose steps, behind which context; of the contexts, the shortest and the longest."""
    if report.context is not None:
        known = sorted({step.context for step in report.context.steps})
        for context in sorted({*known[:1], *known[-1:]}):
            yield report.facts, context, tuple(s for s in report.context.steps if s.context == context)
    for run in report.models:
        yield run.facts, run.context, run.steps
