"""What a run of ``edge-runtime bench`` found, and what one of ``compare`` projects, as tables of pages.

    python tools/readme_table.py PROTOCOL.json [--projected COMPARE.json] [--into README.md --into docs/bench.md]

What was measured in all, the same by kinds of text, and what is projected go to places of their own, between the marks
that a page has; without ``--into`` they are printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from edge_runtime.bench.compare import record as compare
from edge_runtime.bench.compare.figures import DEFAULT_LABEL, cell
from edge_runtime.bench.compare.figures import chosen as compared
from edge_runtime.bench.protocol.figures import PLAIN_LABEL, chosen, figures, whole_speedup
from edge_runtime.bench.protocol.record import Report, read_report
from edge_runtime.bench.protocol.sheets import megabytes, places, shown, three_digits
from edge_runtime.console import counted
from edge_runtime.errors import EdgeError
from edge_runtime.files import replace_text

_KINDS = {"open": "writes freely", "copy": "copies (retrieval, JSON, edits)"}


def measured(report: Report) -> str:
    """Whole answers of all kinds of text, plain and drafted: a row for each law."""
    return _measured(report, [one for one in places(report) if one[1] is None] or list(places(report)))


def by_domain(report: Report) -> str:
    """A row for each law and kind of text, too."""
    return _measured(report, list(places(report)))


def _measured(report: Report, shown_places: Sequence[tuple[str, str | None]]) -> str:
    rows = []
    for law in report.settings.laws:
        for name, domain in shown_places:
            plain, drafted = (
                chosen(report, method=label, law=law, domain=domain) for label in (PLAIN_LABEL, DEFAULT_LABEL)
            )
            before, after = figures(plain), figures(drafted)
            if before is not None and after is not None:
                rows.append(
                    (law, name, three_digits(before.whole_s.mean), three_digits(after.whole_s.mean),
                     f"{before.tokens_per_s:.1f}", f"{after.tokens_per_s:.1f}",
                     f"{after.acceptance_length:.2f}", shown(whole_speedup(plain, drafted)))
                )  # fmt: skip
    head = ("", "text", "plain s", "drafted s", "plain tok/s", "drafted tok/s", "tokens a step", "speed-up [95%]")
    return "\n".join([_where(report), "", *_table(head, rows, words=2), "", *_bundles(report)])


def _where(report: Report) -> str:
    settings, main = report.settings, report.bundles["main"]
    machine = ", ".join(settings.machine[key] for key in ("processor", "memory") if key in settings.machine)
    runtime = f", onnxruntime {settings.machine['onnxruntime']}" if "onnxruntime" in settings.machine else ""
    unfinished = "" if report.complete else " **This run was not finished.**"
    threads = counted(settings.threads, "thread")
    return (
        f"**{machine}**, {threads}{runtime}; {main.name}, {main.precision}; {report.started}. "
        f"`edge-runtime bench`: whole answers of {settings.tokens} tokens, prompt included, {settings.rounds} rounds, "
        f"plain and drafted in turn.{unfinished}"
    )


def _bundles(report: Report) -> Iterable[str]:
    peaks = {(peak.bundle, peak.drafter): peak.resident.peak for peak in report.peaks}
    for which, facts in report.bundles.items():
        held = [f"{megabytes(peaks[which, drafter])} MB {what}" for drafter, what in
                (("none", "plain"), ("auto", "with all drafters")) if (which, drafter) in peaks]  # fmt: skip
        memory = f"; peak memory {', '.join(held)}" if held else ""
        yield f"{facts.name}: {megabytes(facts.file_bytes)} MB of files, NLL {facts.nll:.4f}{memory}."


def projected(report: compare.Report) -> str:
    """Real texts on a clock that a published curve moves: a row for each curve, law and kind."""
    rows = []
    for curve in report.settings.curves:
        for law in report.settings.laws:
            for kind, what in _KINDS.items():
                runs = compared(
                    report.domains, kind=kind, law=law, method=DEFAULT_LABEL, curve=curve, texts="straight"  # type: ignore[arg-type]
                )
                found = cell(runs)
                if found is not None:
                    rows.append((curve, law, what, str(len(runs)), str(found.speedup)))
    return "\n".join(_table(("curve", "", "text", "texts", "projected speed-up [95%]"), rows, words=3))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    rule = ["---" if place < words else "---:" for place in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def put(text: str, found: Mapping[str, str]) -> str:
    """``text`` with each of ``found`` between its marks, where it has them. Raises ``ValueError`` for none at all, and
    for marks that stand there twice."""
    places = 0
    for name, one in found.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        count = len(pattern.findall(text))
        if count > 1:
            raise ValueError(f"{begin} stands there {count} times")
        places += count
        text = pattern.sub(lambda _, whole=f"{begin}\n{one}\n{end}": whole, text)  # type: ignore[misc]
    if not places:
        raise ValueError(f"not one mark of {', '.join(found)}")
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("measured", type=Path, help="JSON of edge-runtime bench")
    parser.add_argument("--projected", type=Path, help="JSON of edge-runtime compare")
    parser.add_argument("--into", type=Path, action="append", default=[], help="page with marks; may be given again")
    given = parser.parse_args(arguments)
    try:
        report = read_report(given.measured)
        found = {"measured": measured(report), "by domain": by_domain(report)}
        if given.projected is not None:
            found["projected"] = projected(compare.read_report(given.projected))
        if not given.into:
            print("\n\n".join(found.values()))
        pages = {page: put(page.read_text(encoding="utf-8"), found) for page in given.into}
        for page, text in pages.items():
            replace_text(page, text)
    except (EdgeError, OSError, ValueError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
