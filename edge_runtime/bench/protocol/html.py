"""A run of the protocol as a page. Knows what is on it, not how it looks."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from ..page import DATA, Card, render
from .figures import DEFAULT_LABEL, PLAIN_LABEL, chosen, figures, reading, whole_speedup
from .plots import plots
from .record import Report
from .sheets import WAYS, energy_shown, megabytes, sheets

_MOST_SAMPLE = 1200
"""Characters of a text that is shown."""


def page(report: Report) -> str:
    return render(
        "protocol.html.j2",
        report.bundles["main"].name,
        report,
        cards(report),
        plots(report),
        sheets(report),
        [(one.name, one) for one in report.bundles.values()],
        samples=[(one, WAYS.get(one.method, one.method), _cut(one.text)) for one in report.samples],
        published=yaml.safe_load((DATA / "published.yaml").read_text(encoding="utf-8")),
        energy=energy_shown(report),
    )


def cards(report: Report) -> Iterator[Card]:
    """What to know before all else."""
    for law in report.settings.laws:
        plain, drafted = (chosen(report, method=label, law=law) for label in (PLAIN_LABEL, DEFAULT_LABEL))
        ratio, before, after = whole_speedup(plain, drafted), figures(plain), figures(drafted)
        if ratio is None or before is None or after is None:
            continue
        yield Card(
            f"speed-up, {law}",
            f"{ratio.median:.2f}x",
            f"95% interval {ratio.low:.2f} to {ratio.high:.2f}, {ratio.pairs} pairs of whole answers",
        )
        yield Card(
            f"tokens a second, {law}",
            f"{before.tokens_per_s:.1f} → {after.tokens_per_s:.1f}",
            f"P95 of an answer {before.whole_s.p95:.2f} → {after.whole_s.p95:.2f} s",
        )
    plain_texts = figures(chosen(report, method=PLAIN_LABEL))
    read = None if plain_texts is None else reading(report, "main", plain_texts)
    if read is not None:
        yield Card("bandwidth, plain", f"{read.share:.0%}", f"{read.gb_s:.1f} GB/s of weights; {read.limit}")
    peaks = [one.resident.peak for one in report.peaks if (one.bundle, one.drafter) == ("main", "auto")]
    if peaks:
        yield Card("peak memory", f"{megabytes(peaks[0])} MB", "resident, of a daemon with all drafters")


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SAMPLE else text[:_MOST_SAMPLE] + " …"
