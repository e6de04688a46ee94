"""A run of the growth view as a page. Knows what is on it, not how it looks."""

from __future__ import annotations

from collections.abc import Iterator

from ..page import Card, render
from .figures import host_figures, over_one, replay, step_figures, stepped
from .plots import plots
from .record import Report
from .sheets import REPLAYED, sheets


def page(report: Report) -> str:
    each = {one.sha256: one for one in (report.facts, *(run.facts for run in report.models))}
    return render(
        "growth.html.j2", report.facts.name, report, cards(report), plots(report), sheets(report),
        [(one.name, one) for one in each.values()],
    )  # fmt: skip


def cards(report: Report) -> Iterator[Card]:
    """What to know before all else."""
    if report.context is not None:
        known = sorted({step.context for step in report.context.steps})
        found = [step_figures(report.context.steps, context, 0) for context in (*known[:1], *known[-1:])]
        shown = [f"{1e3 * one.verify_s.median:.1f}" for one in found if one is not None]
        if len(shown) > 1:
            yield Card("a plain step", f"{' → '.join(shown)} ms", f"{known[0]} → {known[-1]} tokens in the cache")
    if report.sessions is not None:
        most = max(run.sessions for run in report.sessions.runs)
        ratio = over_one(report.sessions, most, "plain")
        if ratio is not None:
            yield Card(f"{most} sessions over one", f"{ratio.median:.2f}x", "tokens a second of all, plain")
    for run in report.models[-1:]:
        rates, ks = report.settings.acceptances, report.settings.ks
        gains = [one for k in ks for rate in rates[-1:] if (one := replay(run, k, rate)) is not None]
        if gains:
            best = max(gains, key=lambda one: one.speedup.median)
            yield Card(
                f"{run.facts.name} at acceptance {best.acceptance:g}", f"{best.speedup.median:.2f}x",
                f"K={best.k}, {REPLAYED}",
            )  # fmt: skip
    hosts = [(facts, host_figures(steps, 0)) for facts, _, steps in stepped(report)]
    for facts, host in hosts[:1]:
        if host is not None and host.share is not None:
            yield Card("our own code", f"{host.share.median:.1%}", f"of a plain step of {facts.name}")
