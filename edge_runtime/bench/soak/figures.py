"""What a soak's record says. Pure; a record that breaks off is judged as far as it goes.

A refusal is due where it says what was done to the daemon at that time, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..live import longest_over_s
from ..stats import Middle, student
from .record import Answer, Checkpoint, End, Happening, Line, Look, Probe, Settings, of

_STOPPED = "critical"
DUE = {_STOPPED: ("hot",), "memory runs out": ("memory",), "not served any more": ("engine", "swap", "back"),
       "the queue is full": ("crowd",)}  # fmt: skip
"""Words of a refusal -> what must have been going on."""
_SLOWED = ("warm", "hot", "memory", "crowd")
_NEAR_C = 2.0
"""Below its limit a board may already be stopped: it will be above it."""
_PAUSED_S = 5.0
"""Between two looks that are made four times a second."""
_MOST_TOKENS = 64
_HAS, _LATELY_S = 0.8, 10.0
"""Mean share of the processors that it wanted, over so long, from which on it had them."""
_RESAMPLES = 1000
_SEED = 20260301
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Quarters:
    """A quantile of the first quarter of the answers and of the last, by time."""

    first: Middle
    last: Middle
    ratio: Middle
    """Last over first, with its 95% bootstrap interval."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Least squares through checkpoints after the warm-up, per hour."""

    per_hour: float
    low: float
    high: float
    """95%, by the spread around the line."""
    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class Heat:
    """Against the temperature limit, where it can be kept."""

    highest_c: float | None
    """Of all that time."""
    over_c: float | None
    """Most above the limit while the daemon had its processors, below 0 where it never was: one that waits for them in
    the middle of a step cannot end it; ``None``: it never had."""
    over_s: float
    """The longest time above it, likewise."""
    judged: float
    """Share of the time in which it had them."""


@dataclass(frozen=True, slots=True)
class SoakFigures:
    settings: Settings
    seconds: float
    ended: str
    pauses: tuple[float, ...]
    """Seconds of each stretch in which whoever soaks did not run."""
    answers: int
    outcomes: dict[str, Counter[str]]
    """Kind of request -> how often each outcome."""
    undue: tuple[str, ...]
    """Refusals that nothing was the cause of,"""
    lost: tuple[str, ...]
    wrong: tuple[str, ...]
    refusals: Counter[str]
    """By what they say."""
    happenings: Counter[str]
    failed: tuple[str, ...]
    """What was done and did not go well."""
    checkpoints: tuple[Checkpoint, ...]
    memory: Slope | None
    """Of anonymous bytes at rest."""
    ttft: Quarters | None
    """p95 in seconds, of streamed answers that no heat and no want of memory held up."""
    tpot: Quarters | None
    probe_ttft: Quarters | None
    """p95 of those that were made at rest, less what others had of the processors,"""
    probe_tpot: Quarters | None
    probe_work: Quarters | None
    """and of the processor time that these took."""
    had: tuple[float, float] | None
    """Share of the time in which these wanted a processor and had one: first and last quarter."""
    heat: Heat
    tokens_while_stopped: int
    """Made after the governor had said that nothing may run."""
    errors: tuple[str, ...]


def summed_up(lines: Sequence[Line]) -> SoakFigures:
    """``lines`` as ``read_lines`` gives them."""
    settings = lines[0]
    assert isinstance(settings, Settings)
    answers, happenings, checkpoints = of(Answer, lines), of(Happening, lines), tuple(of(Checkpoint, lines))
    probes, looks, ends = of(Probe, lines), of(Look, lines), of(End, lines)
    limit_c, outcomes = settings.limit_c, dict[str, Counter[str]]()
    for answer in answers:
        outcomes.setdefault(answer.kind, Counter())[answer.outcome] += 1
    refused = [answer for answer in answers if answer.outcome == "refused"]
    pauses = [(before.at_s, look.at_s) for before, look in pairwise(looks) if look.at_s - before.at_s > _PAUSED_S]
    probes = [one for one in probes if not _within(one.at_s - _whole_s(one), one.at_s, pauses)]
    streamed = [
        answer
        for answer in answers
        if answer.ttft_s is not None
        and not _during(answer, happenings, _SLOWED)
        and not _within(answer.began_s, answer.ended_s, pauses)
    ]
    tpot = [(answer.ended_s, answer.tpot_s) for answer in streamed if answer.tpot_s is not None]
    last_s = max((line.ended_s for line in answers), default=0.0)
    return SoakFigures(
        settings=settings,
        seconds=ends[-1].at_s if ends else max([last_s, *(look.at_s for look in looks)]),
        ended=ends[-1].why if ends else "the record breaks off",
        pauses=tuple(end_s - began_s for began_s, end_s in pauses),
        answers=len(answers),
        outcomes=outcomes,
        undue=tuple(_words(answer) for answer in refused if not is_due(answer, happenings, looks, limit_c)),
        lost=tuple(_words(answer) for answer in answers if answer.outcome == "lost"),
        wrong=tuple(_words(answer) for answer in answers if answer.outcome == "wrong"),
        refusals=Counter(_cause(answer) or answer.why for answer in refused),
        happenings=Counter(one.what for one in happenings if one.went_well is not None),
        failed=tuple(f"{one.what} at {one.began_s:.0f} s: {one.note}" for one in happenings if one.went_well is False),
        checkpoints=checkpoints,
        memory=_slope([(one.at_s, float(one.anonymous)) for one in after_warm_up(checkpoints)]),
        ttft=quarters([(answer.ended_s, answer.ttft_s or 0.0) for answer in streamed], 0.95),
        tpot=quarters(tpot, 0.95),
        probe_ttft=quarters([(probe.at_s, probe.had * probe.ttft_s) for probe in probes], 0.95),
        probe_tpot=quarters([(probe.at_s, probe.had * probe.tpot_s) for probe in probes if probe.tpot_s], 0.95),
        probe_work=quarters([(probe.at_s, probe.processor_s) for probe in probes], 0.95),
        had=_had(probes),
        heat=_heat(limit_c, [look for look in looks if not look.beyond]),
        tokens_while_stopped=_while_stopped(looks),
        errors=tuple(line for one in checkpoints for line in one.errors),
    )


def after_warm_up(checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Without the first quarter, and without the first one at least."""
    return checkpoints[max(1, len(checkpoints) // _QUARTERS) :]


def is_due(answer: Answer, happenings: Sequence[Happening], looks: Sequence[Look], limit_c: float) -> bool:
    """Heat is also a cause where the board was as good as too hot by itself, whoever made it so."""
    cause = _cause(answer)
    if cause == _STOPPED and any(
        look.die_c >= limit_c - _NEAR_C
        for look in looks
        if answer.began_s - _LATELY_S <= look.at_s <= answer.ended_s + _LATELY_S
    ):
        return True
    return _during(answer, happenings, DUE.get(cause, ()))


def _during(answer: Answer, happenings: Sequence[Happening], causes: Sequence[str]) -> bool:
    return any(
        one.what in causes and one.began_s <= answer.ended_s and answer.began_s <= one.ended_s for one in happenings
    )


def _within(began_s: float, ended_s: float, stretches: Sequence[tuple[float, float]]) -> bool:
    return any(first_s <= ended_s and began_s <= last_s for first_s, last_s in stretches)


def _whole_s(probe: Probe) -> float:
    """Surely not less than it took."""
    return probe.ttft_s + _MOST_TOKENS * probe.tpot_s


def _cause(answer: Answer) -> str:
    return next((words for words in DUE if words in answer.why), "")


def _words(answer: Answer) -> str:
    return f"{answer.script}, turn {answer.turn}, {answer.manner}, at {answer.began_s:.0f} s: {answer.why}"


def quarters(values: Sequence[tuple[float, float]], share: float) -> Quarters | None:
    """(when, value) each, in any order; ``None`` for fewer than two in a quarter."""
    rising = [value for _, value in sorted(values)]
    count = len(rising) // _QUARTERS
    if count < 2:
        return None
    rng = np.random.default_rng(_SEED)
    first, last = np.asarray(rising[:count]), np.asarray(rising[-count:])
    drawn = [np.quantile(rng.choice(part, (_RESAMPLES, count)), share, axis=1) for part in (first, last)]
    found = [float(np.quantile(part, share)) for part in (first, last)]
    return Quarters(
        _middle(found[0], drawn[0], count),
        _middle(found[1], drawn[1], count),
        _middle(found[1] / max(found[0], 1e-9), drawn[1] / np.maximum(drawn[0], 1e-9), count),
    )


def _middle(value: float, drawn: NDArray[np.float64], count: int) -> Middle:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Middle(value, float(low), float(high), count)


def _slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    if len(points) < 4:
        return None
    hours, values = np.array([at_s / 3600.0 for at_s, _ in points]), np.array([value for _, value in points])
    away = hours - hours.mean()
    per_hour = float((away * values).sum() / (away * away).sum())
    rest = values - values.mean() - per_hour * away
    error = float(np.sqrt((rest * rest).sum() / (len(points) - 2) / (away * away).sum()))
    half = student(len(points) - 2) * error
    return Slope(per_hour, per_hour - half, per_hour + half, float(values.mean()), len(points))


def _had(probes: Sequence[Probe]) -> tuple[float, float] | None:
    count = len(probes) // _QUARTERS
    if not count:
        return None
    parts = (probes[:count], probes[-count:])
    first, last = (sum(probe.had for probe in part) / count for part in parts)
    return first, last


def _heat(limit_c: float, looks: Sequence[Look]) -> Heat:
    """``looks`` at times when the limit could be kept."""
    if not looks:
        return Heat(None, None, 0.0, 0.0)
    stretches: list[list[Look]] = [[]]
    last_s = looks[0].at_s
    for look, had in zip(looks, _had_lately(looks), strict=True):
        if had < _HAS or look.at_s - last_s > _PAUSED_S:
            stretches.append([])  # nobody knows what was between
        if had >= _HAS:
            stretches[-1].append(look)
        last_s = look.at_s
    free = [look for stretch in stretches for look in stretch]
    over_c = max((look.die_c - limit_c for look in free), default=None)
    over_s = max(longest_over_s([(look.at_s, look.die_c) for look in stretch], limit_c) for stretch in stretches)
    return Heat(max(look.die_c for look in looks), over_c, over_s, len(free) / len(looks))


def _had_lately(looks: Sequence[Look]) -> list[float]:
    """The mean of the last seconds, at each look."""
    found: list[float] = []
    first, total = 0, 0.0
    for last, look in enumerate(looks):
        total += look.had
        while looks[first].at_s < look.at_s - _LATELY_S:
            total -= looks[first].had
            first += 1
        found.append(total / (last + 1 - first))
    return found


def _while_stopped(looks: Sequence[Look]) -> int:
    """Tokens made though nothing might run."""
    return sum(
        max(0, now.tokens - before.tokens)
        for first, before, now in zip(looks, looks[1:], looks[2:], strict=False)
        # The one before may have been written while a step ran.
        if first.state == before.state == now.state == "critical"
    )
