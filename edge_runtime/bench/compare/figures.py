"""Texts become figures: medians of paired ratios with their intervals, shares, acceptance. Pure; knows no engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Literal

from ...health import Drafted, notes
from ..prompts import DomainKind
from ..stats import Ratio, paired_ratio, summed
from ..texts import LOOPING
from .record import DomainRecord, Part, Quality, Run

Texts = Literal["straight", "looping"]
DEFAULT_LABEL = "auto auto"


@dataclass(frozen=True, slots=True)
class Cell:
    """What one method did on texts of one kind."""

    speedup: Ratio
    """Over the plain texts beside them; the interval is over texts."""
    prompts: int
    draft_share: float
    """Median over texts, as the next."""
    verify_share: float
    acceptance_rate: float | None
    """Over all drafts of all texts; ``None``: nothing was drafted."""
    acceptance_length: float
    by_position: tuple[float, ...]
    """Of the drafts that were judged there."""
    repeat_rate: float
    copied_share: float
    nll: float
    plain_nll: float | None
    drafting_steps: float
    """Share of steps that drafted anything."""
    sources: tuple[tuple[str, float], ...]
    """Share of steps by who drafted, the largest first."""
    notes: tuple[str, ...]
    """Marks of health that are missed."""
    reason: str
    """An example of the most frequent of the texts' last ones."""


def looping(run: Run) -> bool:
    """Whether a text or the plain one beside it goes in circles."""
    return max(run.repeat_rate, run.plain_repeat_rate or 0.0) >= LOOPING


def cell(runs: Sequence[Run]) -> Cell | None:
    """``None`` for no runs."""
    if not runs:
        return None
    steps, drafted = sum(run.steps for run in runs), sum(run.drafted for run in runs)
    tried = summed(run.tried_by_position for run in runs)
    accepted = summed(run.accepted_by_position for run in runs)
    plain = [run.plain_nll for run in runs if run.plain_nll is not None]
    sources: Counter[str] = Counter()
    for run in runs:
        sources.update(run.sources)
    named = [(name, count / max(steps, 1)) for name, count in sources.most_common() if name]
    return Cell(
        speedup=speedup(runs),
        prompts=len({run.prompt for run in runs}),
        draft_share=median(run.draft_share for run in runs),
        verify_share=median(run.verify_share for run in runs),
        acceptance_rate=sum(run.accepted for run in runs) / drafted if drafted else None,
        acceptance_length=sum(run.committed for run in runs) / steps if steps else 1.0,
        by_position=tuple(kept / count for kept, count in zip(accepted, tried, strict=True) if count),
        repeat_rate=_mean(run.repeat_rate for run in runs),
        copied_share=_mean(run.copied_share for run in runs),
        nll=_mean(run.nll for run in runs),
        plain_nll=_mean(plain) if plain else None,
        drafting_steps=sum(share for _, share in named),
        sources=tuple(named),
        notes=notes(_drafted(runs)),
        reason=_typical([run.reason for run in runs]),
    )


def _drafted(runs: Sequence[Run]) -> Drafted:
    draft, verify = median(run.draft_share for run in runs), median(run.verify_share for run in runs)
    return Drafted(
        steps=sum(run.steps for run in runs),
        drafted=sum(run.drafted for run in runs),
        accepted=sum(run.accepted for run in runs),
        scored=sum(run.drafts_scored for run in runs),
        log_likelihood=math.fsum(run.drafts_log_likelihood for run in runs),
        draft_s=draft,
        verify_s=verify,
        host_s=max(0.0, 1.0 - draft - verify),
    )


def speedup(runs: Sequence[Run]) -> Ratio:
    return paired_ratio([run.plain_seconds_per_token for run in runs], [run.seconds_per_token for run in runs])


def between(baseline: Sequence[Run], ours: Sequence[Run]) -> Ratio | None:
    """How much faster ``ours`` are than another method's texts of the same prompts and rounds; ``None``: of none.

    Of their speed-ups, so that the plain text beside each takes out what the machine did meanwhile.
    """
    theirs = {(run.prompt, run.law, run.round): run for run in baseline}
    pairs = [(theirs[key], run) for run in ours if (key := (run.prompt, run.law, run.round)) in theirs]
    if not pairs:
        return None
    return paired_ratio([_relative(one) for one, _ in pairs], [_relative(other) for _, other in pairs])


def _relative(run: Run) -> float:
    return run.seconds_per_token / run.plain_seconds_per_token


def chosen(
    domains: Iterable[DomainRecord],
    *,
    kind: DomainKind | None = None,
    law: str | None = None,
    texts: Texts | None = None,
    method: str | None = None,
    parts: tuple[Part, ...] | None = None,
    curve: str | None = None,
    where: Callable[[Run], bool] = lambda run: True,
) -> list[Run]:
    """Runs of the domains by what is asked for; ``curve`` ``None``: what was measured."""
    return [
        run
        for domain in domains
        if kind is None or domain.kind == kind
        for run in domain.runs
        if run.curve == curve
        and (law is None or run.law == law)
        and (method is None or run.method == method)
        and (parts is None or run.part in parts)
        and (texts is None or looping(run) == (texts == "looping"))
        and where(run)
    ]


@dataclass(frozen=True, slots=True)
class Best:
    """The best fixed drafter and K of a domain under a law, by search and then by fresh texts."""

    method: str
    speedup: Ratio
    default_over_it: Ratio
    """How much faster the default is; 0.97 is 3% slower."""
    loops: bool = False
    """Whether one of the compared loops on every prompt, so that texts that loop had to be taken."""


def ranking(runs: Sequence[Run]) -> list[str]:
    """Fixed methods by falling median of what the search saw, without prompts on which one of them loops: a text that
    parted at a near tie may loop where the others do not."""
    by_method: dict[str, list[Run]] = {}
    for run in _comparable(runs) or runs:
        by_method.setdefault(run.method, []).append(run)
    return sorted(by_method, key=lambda name: -speedup(by_method[name]).median)


def best_fixed(domain: DomainRecord, law: str) -> Best | None:
    """``None``: nothing was searched, or the default was not measured beside it."""
    every = chosen([domain], law=law, parts=("final",))
    finals = _comparable(every)
    loops = not finals
    finals = finals or every
    default = [run for run in finals if run.method == DEFAULT_LABEL]
    rivals = ranking([run for run in finals if run.method != DEFAULT_LABEL])
    if not default or not rivals:
        return None
    best = [run for run in finals if run.method == rivals[0]]
    over_it = between(best, default)
    return None if over_it is None else Best(rivals[0], speedup(best), over_it, loops)


def _comparable(runs: Sequence[Run]) -> list[Run]:
    """Without the prompts and rounds in which a text loops, whoever's it is."""
    apart = {(run.prompt, run.law, run.round) for run in runs if looping(run)}
    return [run for run in runs if (run.prompt, run.law, run.round) not in apart]


@dataclass(frozen=True, slots=True)
class Slowest:
    prompt: str
    law: str
    speedup: Ratio
    first_look: Ratio | None
    """Before it was measured again."""


def by_prompt(domains: Sequence[DomainRecord]) -> list[Slowest]:
    """The default on each prompt under each law; what was measured again counts by its fresh texts alone."""
    finals = chosen(domains, method=DEFAULT_LABEL, parts=("final",))
    again = chosen(domains, method=DEFAULT_LABEL, parts=("again",))
    found = []
    for prompt, law in dict.fromkeys((run.prompt, run.law) for run in finals):
        first = speedup([run for run in finals if (run.prompt, run.law) == (prompt, law)])
        fresh = [run for run in again if (run.prompt, run.law) == (prompt, law)]
        found.append(Slowest(prompt, law, speedup(fresh) if fresh else first, first if fresh else None))
    return found


@dataclass(frozen=True, slots=True)
class Excess:
    """Nats a token by which a method's texts are less likely than the plain ones beside them."""

    mean: float
    half: float | None
    """Of the 95% interval over texts; ``None`` for a single text."""
    nll: float
    texts: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" + ("" if self.half is None else f" ±{self.half:.3f}")


def excess(runs: Sequence[Run]) -> Excess | None:
    """Of sampled texts it is noise about zero, unless they were not drawn from the law."""
    pairs = [(run.nll, run.plain_nll) for run in runs if run.plain_nll is not None]
    if not pairs:
        return None
    differences = [ours - theirs for ours, theirs in pairs]
    half = 1.96 * stdev(differences) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return Excess(_mean(differences), half, _mean(ours for ours, _ in pairs), len(pairs))


@dataclass(frozen=True, slots=True)
class Faithfulness:
    """How a method's texts compare with plain decoding, as the target itself reads them."""

    texts: int
    identical: int
    near_ties: int
    different: int
    nll: float
    plain_nll: float
    regret: float
    same_until: float | None
    """Median tokens before greedy texts part; ``None``: none does."""
    most_off: float
    """Largest difference between an NLL noted while decoding and one read afterwards."""


def faithfulness(quality: Sequence[Quality]) -> Faithfulness | None:
    if not quality:
        return None
    parted = [one.differs_at for one in quality if one.differs_at is not None]
    count = Counter(one.same_as_plain for one in quality)
    return Faithfulness(
        texts=len(quality),
        identical=count["identical"],
        near_ties=count["near-tie"],
        different=count["differs"],
        nll=_mean(one.nll for one in quality),
        plain_nll=_mean(one.plain_nll for one in quality),
        regret=_mean(one.regret for one in quality),
        same_until=float(median(parted)) if parted else None,
        most_off=max(abs(one.recorded_nll_off) for one in quality),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


def _typical(reasons: Sequence[str]) -> str:
    """``parked: ...`` counts as one, whatever follows."""
    (kind, _), *_ = Counter(reason.partition(":")[0] for reason in reasons).most_common(1)
    return next(reason for reason in reasons if reason.partition(":")[0] == kind)
