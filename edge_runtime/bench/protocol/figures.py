"""Texts become figures: means with their spread, paired speed-ups, acceptance, bandwidth, energy. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from ...health import Drafted, notes
from ..bandwidth import Speed, best
from ..methods import DEFAULT, PLAIN
from ..stats import Ratio, paired_ratio, summed
from ..texts import LOOPING
from .plan import Part, Which
from .record import Answer, Report

PLAIN_LABEL, DEFAULT_LABEL = PLAIN.label, DEFAULT.label


@dataclass(frozen=True, slots=True)
class Spread:
    mean: float
    sd: float | None
    """Of the sample; ``None`` for a single value."""
    p95: float
    """By linear interpolation."""
    count: int

    def times(self, factor: float) -> Spread:
        sd = None if self.sd is None else factor * self.sd
        return Spread(factor * self.mean, sd, factor * self.p95, self.count)


def spread(values: Sequence[float]) -> Spread:
    """Raises ``ValueError`` for none."""
    if not values:
        raise ValueError("no values have no spread")
    sd = stdev(values) if len(values) > 1 else None
    return Spread(fmean(values), sd, float(np.quantile(np.asarray(values, np.float64), 0.95)), len(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some texts of one cell."""

    whole_s: Spread
    """Of the whole answer, the prompt in it."""
    ttft_s: Spread
    tpot_s: Spread
    tokens_per_s: float
    """Behind the first token, over all texts together."""
    acceptance_rate: float | None
    """Over all drafts; ``None``: nothing was drafted."""
    acceptance_length: float
    """Tokens that a step commits."""
    drafted_per_step: float
    by_position: tuple[float, ...]
    """Of the drafts that were judged there."""
    draft_ms: float
    """A step, as the next two; of steps behind the first token."""
    verify_ms: float
    host_ms: float
    repeat_rate: float
    looping: float
    """Share of texts that go in circles."""
    nll: float
    joules_per_token: float | None
    steps_per_s: float
    sources: tuple[tuple[str, float], ...]
    """Share of steps by who drafted, the largest first."""
    notes: tuple[str, ...]
    """Marks of health that are missed."""


def figures(answers: Sequence[Answer]) -> Figures | None:
    """``None`` for no texts."""
    if not answers:
        return None
    steps = sum(one.steps for one in answers)
    drafted = sum(one.drafted for one in answers)
    later_s = math.fsum(one.tpot_s * (one.tokens - 1) for one in answers)
    tried = summed(one.tried_by_position for one in answers)
    accepted = summed(one.accepted_by_position for one in answers)
    each = 1e3 / max(steps, 1)
    return Figures(
        whole_s=spread([one.whole_s for one in answers]),
        ttft_s=spread([one.ttft_s for one in answers]),
        tpot_s=spread([one.tpot_s for one in answers]),
        tokens_per_s=sum(one.tokens - 1 for one in answers) / later_s,
        acceptance_rate=sum(one.accepted for one in answers) / drafted if drafted else None,
        acceptance_length=sum(one.committed for one in answers) / max(steps, 1),
        drafted_per_step=drafted / max(steps, 1),
        by_position=tuple(kept / count for kept, count in zip(accepted, tried, strict=True) if count),
        draft_ms=each * math.fsum(one.draft_s for one in answers),
        verify_ms=each * math.fsum(one.verify_s for one in answers),
        host_ms=each * math.fsum(one.overhead_s for one in answers),
        repeat_rate=fmean(one.repeat_rate for one in answers),
        looping=fmean(one.repeat_rate >= LOOPING for one in answers),
        nll=fmean(one.nll for one in answers),
        joules_per_token=_joules(answers),
        steps_per_s=steps / later_s,
        sources=_sources(answers, steps),
        notes=notes(_drafted(answers)),
    )


def chosen(
    report: Report,
    *,
    part: Part = "rounds",
    bundle: Which = "main",
    method: str | None = None,
    law: str | None = None,
    domain: str | None = None,
    straight: bool = False,
) -> list[Answer]:
    """``straight``: without texts that loop, nor those that were decoded beside one."""
    loops = {_key(one) for one in report.answers if one.repeat_rate >= LOOPING} if straight else set()
    return [
        one
        for one in report.answers
        if one.part == part
        and one.bundle == bundle
        and (method is None or one.method == method)
        and (law is None or one.law == law)
        and (domain is None or one.domain == domain)
        and _key(one) not in loops
    ]


_Key = tuple[str, str, str, int, int]


def _key(one: Answer) -> _Key:
    return one.part, one.domain, one.law, one.round, one.group


def pairs(baseline: Sequence[Answer], ours: Sequence[Answer]) -> list[tuple[Answer, Answer]]:
    """Texts that were decoded in one group."""
    theirs = {_key(one): one for one in baseline}
    return [(theirs[_key(one)], one) for one in ours if _key(one) in theirs]


def whole_speedup(baseline: Sequence[Answer], ours: Sequence[Answer]) -> Ratio | None:
    """Of whole answers."""
    found = pairs(baseline, ours)
    return paired_ratio([one.whole_s for one, _ in found], [other.whole_s for _, other in found]) if found else None


def token_speedup(baseline: Sequence[Answer], ours: Sequence[Answer]) -> Ratio | None:
    """Behind the first token."""
    found = pairs(baseline, ours)
    return paired_ratio([one.tpot_s for one, _ in found], [other.tpot_s for _, other in found]) if found else None


@dataclass(frozen=True, slots=True)
class Factors:
    """The 2x2 of one law: what each factor gives alone, over plain decoding in the precision beside."""

    precision: Ratio
    speculation: Ratio
    """In the precision beside."""
    both: Ratio
    speculation_here: Ratio
    """In the bundle's own precision."""


def factors(report: Report, law: str) -> Factors | None:
    base = chosen(report, bundle="beside", method=PLAIN_LABEL, law=law)
    plain = chosen(report, method=PLAIN_LABEL, law=law)
    drafted = chosen(report, method=DEFAULT_LABEL, law=law)
    precision, both, here = whole_speedup(base, plain), whole_speedup(base, drafted), whole_speedup(plain, drafted)
    speculation = whole_speedup(base, chosen(report, bundle="beside", method=DEFAULT_LABEL, law=law))
    if precision is None or speculation is None or both is None or here is None:
        return None
    return Factors(precision, speculation, both, here)


@dataclass(frozen=True, slots=True)
class Reading:
    """How fast weights are read while decoding, beside what memory can do."""

    gb_s: float
    share: float
    limit: Speed


def reading(report: Report, bundle: Which, found: Figures) -> Reading | None:
    """Of the target's weights alone, once a step: what drafters, caches and further groups of the head read comes on
    top. ``None``: the bundle does not say what a step reads, or memory was not measured."""
    facts, limit = report.bundles.get(bundle), best(report.speeds)
    if facts is None or facts.read_bytes is None or limit is None:
        return None
    gb_s = 1e-9 * facts.read_bytes * found.steps_per_s
    return Reading(gb_s, gb_s / limit.gb_s, limit)


def _joules(answers: Sequence[Answer]) -> float | None:
    known = [(one.joules, one.tokens) for one in answers if one.joules is not None]
    return math.fsum(joules for joules, _ in known) / sum(tokens for _, tokens in known) if known else None


def _sources(answers: Sequence[Answer], steps: int) -> tuple[tuple[str, float], ...]:
    count: dict[str, int] = {}
    for one in answers:
        for name, number in one.sources.items():
            if name:
                count[name] = count.get(name, 0) + number
    return tuple((name, number / max(steps, 1)) for name, number in sorted(count.items(), key=lambda item: -item[1]))


def _drafted(answers: Sequence[Answer]) -> Drafted:
    """Their likelihood is not noted here."""
    return Drafted(
        steps=sum(one.steps for one in answers),
        drafted=sum(one.drafted for one in answers),
        accepted=sum(one.accepted for one in answers),
        draft_s=math.fsum(one.draft_s for one in answers),
        verify_s=math.fsum(one.verify_s for one in answers),
        host_s=math.fsum(one.overhead_s for one in answers),
    )
