"""Which plots a run has. Pure: makes them of figures, draws nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ..stats import Ratio
from .figures import DEFAULT_LABEL, PLAIN_LABEL, Spread, chosen, figures, reading, whole_speedup
from .plan import Which
from .record import Report
from .sheets import WAYS, by_position, lengths, megabytes, places, precision, spread_shown
from .svg import Bar, Bars, Lines

Plot = Bars | Lines
_PLACES = 24
"""Of drafts by position; behind them few are left to judge."""


def plots(report: Report) -> Iterator[Plot]:
    """Those that there is something for."""
    laws = tuple(report.settings.laws)
    found: list[Plot] = [_speedups(report)]
    found += [_answers(report, law) for law in laws]
    for law in laws:
        found += [*_lengths(report, law), _positions(report, law)]
    found += [_two(report, law) for law in laws if "beside" in report.bundles]
    found += [_bandwidth(report), _memory(report)]
    yield from (plot for plot in found if (plot.groups if isinstance(plot, Bars) else plot.series))


def _speedups(report: Report) -> Bars:
    groups = []
    for name, domain in places(report):
        bars = []
        for law in report.settings.laws:
            plain, drafted = (chosen(report, method=label, law=law, domain=domain) for label in WAYS)
            bars.append(_ratio(whole_speedup(plain, drafted)))
        if any(bars):
            groups.append((name, tuple(bars)))
    return Bars(
        "Speed-up of whole answers by drafting", tuple(report.settings.laws), tuple(groups),
        "median of pairs, 95% interval; right of the line drafting wins", 1.0,
    )  # fmt: skip


def _answers(report: Report, law: str) -> Bars:
    groups = []
    for domain in report.settings.domains:
        found = [figures(chosen(report, method=label, law=law, domain=domain)) for label in WAYS]
        if any(found):
            groups.append((domain, tuple(None if one is None else _spread(one.whole_s) for one in found)))
    return Bars(
        f"Seconds of a whole answer, {law}", tuple(WAYS.values()), tuple(groups),
        f"{report.settings.tokens} tokens; mean ± sd",
    )  # fmt: skip


def _lengths(report: Report, law: str) -> Iterator[Bars]:
    found = lengths(report, law)
    one = f"drafts of fixed length and the adaptive default, {law}"
    accepted = [(length.label, length.found.acceptance_rate) for length in found]
    yield Bars(
        f"Drafts accepted, {law}", ("",),
        tuple((label, (Bar(rate, f"{rate:.0%}"),)) for label, rate in accepted if rate is not None), one,
    )  # fmt: skip
    verify = [(length.label, length.found.verify_ms) for length in found]
    yield Bars(
        f"Milliseconds to verify a step, {law}", ("",),
        tuple((label, (Bar(ms, f"{ms:.0f}"),)) for label, ms in verify), one,
    )  # fmt: skip
    ratios = [(length.label, _ratio(length.speedup)) for length in found]
    yield Bars(
        f"Speed-up behind the first token, {law}", ("",),
        tuple((label, (bar,)) for label, bar in ratios if bar), one, 1.0,
    )  # fmt: skip


def _positions(report: Report, law: str) -> Lines:
    series = [(label, values[:_PLACES]) for label, values in by_position(report, law).items()]
    return Lines(
        f"Acceptance by place in the draft, {law}", tuple(series), "place of the token in its draft",
        "of the drafts that were judged there",
    )  # fmt: skip


def _two(report: Report, law: str) -> Bars:
    groups = []
    bundles: tuple[Which, ...] = ("beside", "main")
    for bundle in bundles:
        found = [figures(chosen(report, bundle=bundle, method=label, law=law)) for label in WAYS]
        if all(found):
            bars = tuple(_spread(one.whole_s) for one in found if one is not None)
            groups.append((precision(report, bundle), bars))
    return Bars(
        f"Precision x speculation, seconds of an answer, {law}", tuple(WAYS.values()), tuple(groups), "mean ± sd"
    )


def _bandwidth(report: Report) -> Bars:
    groups = []
    bundles: tuple[Which, ...] = ("main", "beside")
    for bundle in bundles:
        for law in report.settings.laws if bundle in report.bundles else ():
            bars = []
            for label in (PLAIN_LABEL, DEFAULT_LABEL):
                one = figures(chosen(report, bundle=bundle, method=label, law=law))
                read = None if one is None else reading(report, bundle, one)
                bars.append(None if read is None else Bar(read.share, f"{read.share:.0%} of the limit"))
            if any(bars):
                groups.append((f"{precision(report, bundle)}, {law}", tuple(bars)))
    return Bars(
        "Weights read, of the memory's measured limit", tuple(WAYS.values()), tuple(groups),
        "the target's, once a step; the line is the limit", 1.0,
    )  # fmt: skip


def _memory(report: Report) -> Bars:
    groups = []
    for which in report.bundles:
        bars = []
        for drafter in ("none", "auto"):
            known = [one.resident for one in report.peaks if (one.bundle, one.drafter) == (which, drafter)]
            bars.append(Bar(known[0].peak / 1e6, f"{megabytes(known[0].peak)} MB") if known else None)
        if any(bars):
            groups.append((precision(report, which), tuple(bars)))
    return Bars("Peak resident memory of a daemon", tuple(WAYS.values()), tuple(groups))


def _ratio(ratio: Ratio | None) -> Bar | None:
    """A single pair has no interval."""
    if ratio is None:
        return None
    low, high = (ratio.low, ratio.high) if ratio.pairs > 1 else (None, None)
    return Bar(ratio.median, f"{ratio.median:.2f}x", low, high)


def _spread(found: Spread) -> Bar:
    low, high = (None, None) if found.sd is None else (found.mean - found.sd, found.mean + found.sd)
    return Bar(found.mean, f"{spread_shown(found)} s", low, high)
