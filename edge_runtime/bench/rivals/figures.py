"""Records of a run to figures, and the project's claims held against them. Pure; a claim that is missed is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ..process import OURS
from ..stats import Ratio, paired_ratio
from ..verdict import EQUAL_QUALITY_NATS, Verdict
from .record import PromptKind, Report, Rival

DEFAULT = f"{OURS} auto"
"""What binds the claims: nobody has chosen anything."""
PLAIN = f"{OURS} plain"
REFERENCE = "transformers plain"
KINDS: tuple[PromptKind, ...] = ("open", "copy")


@dataclass(frozen=True, slots=True)
class Figures:
    kind: str
    mode: str
    weights: str
    nll: float
    tokens_per_s: dict[PromptKind, float]
    """Medians of whole answers, prompt included."""
    cold_s: float
    warm_s: float
    peak_bytes: int
    as_ours: tuple[int, int] | None
    """Prompts whose greedy text is that of ours, plain; prompts in all. ``None``: that one did not run."""
    as_reference: tuple[int, int] | None
    """The same of transformers', plain."""


def figures(report: Report) -> tuple[Figures, ...]:
    """Of those that came to the end."""
    whole = {rival.name: rival for rival in report.rivals if rival.whole}
    return tuple(_figures(rival, whole) for rival in whole.values())


def _figures(rival: Rival, whole: dict[str, Rival]) -> Figures:
    assert rival.nll is not None and rival.peak_bytes is not None  # it is whole
    return Figures(
        kind=rival.kind,
        mode=rival.mode,
        weights=rival.weights,
        nll=rival.nll,
        tokens_per_s={kind: median(_speeds(rival, kind)) for kind in KINDS},
        cold_s=median(one.cold_s for one in rival.firsts),
        warm_s=median(one.warm_s for one in rival.firsts),
        peak_bytes=rival.peak_bytes,
        as_ours=_same(rival, whole.get(PLAIN)),
        as_reference=_same(rival, whole.get(REFERENCE)),
    )


def _speeds(rival: Rival, kind: PromptKind) -> list[float]:
    return [len(one.tokens) / one.seconds for one in rival.answers if one.kind == kind]


def _same(rival: Rival, other: Rival | None) -> tuple[int, int] | None:
    if other is None:
        return None
    mine, others = ({one.prompt: one.tokens for one in side.answers} for side in (rival, other))
    return sum(mine[name] == others[name] for name in mine), len(mine)


def verdicts(report: Report) -> Iterator[Verdict]:
    """Ours as nobody has chosen anything, against the best of the others. Nothing where no other came to the end."""
    whole = {rival.name: rival for rival in report.rivals if rival.whole}
    others = [rival for rival in whole.values() if rival.kind != OURS]
    ours = whole.get(DEFAULT)
    if ours is None:
        error = next((rival.error for rival in report.rivals if rival.name == DEFAULT), None)
        yield Verdict("ours runs to the end", error or "it was left out", False)
        return
    if not others:
        return
    yield _quality(ours, others)
    for kind in KINDS:
        yield _speed(ours, others, kind)
    yield _prefix(ours, others, report.settings.prefix_tokens)
    yield _memory(ours, others)


def _quality(ours: Rival, others: Sequence[Rival]) -> Verdict:
    best = min(others, key=_nll)
    gap = _nll(ours) - _nll(best)
    found = f"{_nll(ours):.4f} ours, {_nll(best):.4f} {best.name}, {gap:+.4f}"
    return Verdict(f"NLL at most {EQUAL_QUALITY_NATS} above the best", found, gap <= EQUAL_QUALITY_NATS)


def _speed(ours: Rival, others: Sequence[Rival], kind: PromptKind) -> Verdict:
    """Whoever is of lower quality is no rival here; whoever is of higher is one."""
    claim = f"first in tok/s on {kind} prompts at equal NLL"
    equal = [rival for rival in others if _nll(rival) <= _nll(ours) + EQUAL_QUALITY_NATS]
    left = [rival.name for rival in others if rival not in equal]
    aside = f"; of lower quality, and left aside: {', '.join(left)}" if left else ""
    if not equal:
        return Verdict(claim, f"nobody else is of that quality{aside}", True)
    best, ratio = _closest([(rival, _whole(ours, rival, kind)) for rival in equal])
    mine, other = (median(_speeds(rival, kind)) for rival in (ours, best))
    return Verdict(claim, f"{mine:.1f} ours, {other:.1f} {best.name}: {ratio}{aside}", ratio.median >= 1.0)


def _prefix(ours: Rival, others: Sequence[Rival], tokens: int) -> Verdict:
    """Of any quality."""
    best, ratio = _closest(
        [(rival, paired_ratio(*([one.warm_s for one in side.firsts] for side in (rival, ours)))) for rival in others]
    )
    mine, other = (1e3 * median(one.warm_s for one in rival.firsts) for rival in (ours, best))
    claim = f"first in ttft on a repeated prefix of {tokens} tokens"
    return Verdict(claim, f"{mine:.1f} ms ours, {other:.1f} ms {best.name}: {ratio}", ratio.median >= 1.0)


def _memory(ours: Rival, others: Sequence[Rival]) -> Verdict:
    """Of any quality."""
    best = min(others, key=_peak)
    found = f"{_peak(ours) / 1e6:.0f} MB ours, {_peak(best) / 1e6:.0f} MB {best.name}"
    return Verdict("first in peak memory", found, _peak(ours) <= _peak(best))


def _closest(ratios: Sequence[tuple[Rival, Ratio]]) -> tuple[Rival, Ratio]:
    """The best rival: whom ours is ahead of by least."""
    return min(ratios, key=lambda pair: pair[1].median)


def _whole(ours: Rival, rival: Rival, kind: PromptKind) -> Ratio:
    """How much sooner ours is done, over pairs of the same round."""
    theirs, mine = ([one.seconds for one in side.answers if one.kind == kind] for side in (rival, ours))
    return paired_ratio(theirs, mine)


def _nll(rival: Rival) -> float:
    assert rival.nll is not None
    return rival.nll


def _peak(rival: Rival) -> int:
    assert rival.peak_bytes is not None
    return rival.peak_bytes
