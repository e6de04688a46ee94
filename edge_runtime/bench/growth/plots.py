"""Which plots a run of the growth view has. Pure: makes them of figures, draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...console import counted
from ..protocol.plots import Plot
from ..protocol.sheets import three_digits
from ..protocol.svg import Bar, Bars, Lines
from ..stats import Middle
from .figures import host_figures, prefill_s, replay, shared_figures, step_figures, stepped
from .record import ModelRun, Report
from .sheets import REPLAYED, WAYS


def plots(report: Report) -> Iterator[Plot]:
    """Those that there is something for."""
    found: list[Plot] = [*_contexts(report), *_sessions(report), _models(report)]
    found += [_replay(report, run) for run in report.models]
    found.append(_host(report))
    yield from (plot for plot in found if (plot.groups if isinstance(plot, Bars) else plot.series))


def _contexts(report: Report) -> Iterator[Plot]:
    known = report.context
    if known is None:
        return
    ticks = tuple(sorted({step.context for step in known.steps}))
    names = tuple(map(str, ticks))
    series: list[tuple[str, tuple[float, ...]]] = []
    for k in (0, *report.settings.ks):
        found = [step_figures(known.steps, context, k) for context in ticks]
        series += _whole(_way(k), [None if one is None else 1e3 * one.verify_s.median for one in found])
    yield Lines(
        "Milliseconds of a step", tuple(series), "tokens in the cache", "without its draft; marks are not to scale",
        names, "ms",
    )  # fmt: skip
    longest = [step_figures(known.steps, context, max(report.settings.ks, default=0)) for context in ticks]
    drafts = _whole("draft", [None if one is None or one.draft_s is None else 1e3 * one.draft_s for one in longest])
    yield Lines("Milliseconds of a drafted token", drafts, "tokens in the cache", "", names, "ms")
    fed = [prefill_s(known, context) for context in ticks]
    rates = [None if one is None else context / one.median for context, one in zip(ticks, fed, strict=True)]
    yield Lines("Prompt, tokens a second", _whole("prompt", rates), "tokens of the prompt", "", names, "")
    yield Bars(
        "Memory by context, MB", ("cache", "resident"),
        tuple((str(one.context), (Bar(one.cache_bytes / 1e6, f"{one.cache_bytes / 1e6:.0f}"),
                                  Bar(one.resident.now / 1e6, f"{one.resident.now / 1e6:.0f}"))) for one in known.held),
    )  # fmt: skip


def _whole(name: str, values: Sequence[float | None]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """A line with a value at each mark, or none: behind a gap, values would stand at the marks of others."""
    known = tuple(value for value in values if value is not None)
    return ((name, known),) if known and len(known) == len(values) else ()


def _sessions(report: Report) -> Iterator[Plot]:
    known = report.sessions
    if known is None:
        return
    counts = sorted({run.sessions for run in known.runs})
    rates, waits = [], []
    for count in counts:
        found = [shared_figures(known, count, way) for way in WAYS]
        name = counted(count, "session")
        rates.append((name, tuple(None if one is None else _bar(one.tokens_per_s, "") for one in found)))
        waits.append((name, tuple(None if one is None else _bar(one.ttft_s, " s") for one in found)))
    yield Bars("Tokens a second, all sessions together", WAYS, tuple(rates), "95% interval of the median")
    yield Bars("Time to a newcomer's first token", WAYS, tuple(waits), f"a prompt of {known.prompt_tokens} tokens")


def _models(report: Report) -> Bars:
    groups = []
    for run in report.models:
        found = [step_figures(run.steps, run.context, k) for k in (0, *report.settings.ks)]
        bars = (None if one is None else _bar(one.verify_s.times(1e3), " ms") for one in found)
        groups.append((run.facts.name, tuple(bars)))
    series = tuple(map(_way, (0, *report.settings.ks)))
    return Bars("Milliseconds of a step by model", series, tuple(groups), "without its draft")


def _replay(report: Report, run: ModelRun) -> Bars:
    groups = []
    for acceptance in report.settings.acceptances:
        found = [replay(run, k, acceptance) for k in report.settings.ks]
        bars = (
            None if one is None else Bar(one.speedup.median, f"{one.speedup.median:.2f}x", one.speedup.low,
                                         one.speedup.high) for one in found
        )  # fmt: skip
        groups.append((f"acceptance {acceptance:g}", tuple(bars)))
    return Bars(
        f"Speed-up, {run.facts.name}", tuple(map(_way, report.settings.ks)), tuple(groups),
        f"{REPLAYED}; drafter: {run.facts.drafter}", 1.0,
    )  # fmt: skip


def _host(report: Report) -> Bars:
    groups, ks = [], (0, *report.settings.ks)
    for facts, context, steps in stepped(report):
        found = [host_figures(steps, k) for k in ks]
        bars = tuple(
            None if one is None or one.share is None else Bar(one.share.median, f"{one.share.median:.1%}")
            for one in found
        )
        if any(bars):
            groups.append((f"{facts.name}, {context} tokens", bars))
    return Bars("Our own code in a step", tuple(map(_way, ks)), tuple(groups), "of its time; the rest are the graphs")


def _way(k: int) -> str:
    return "plain" if k == 0 else f"K={k}"


def _bar(found: Middle, unit: str) -> Bar:
    told = f"{three_digits(found.median)}{unit}"
    return Bar(found.median, told, found.low, found.high) if found.count > 1 else Bar(found.median, told)
