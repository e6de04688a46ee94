"""All that the doctor found on a machine, as Markdown for an issue. Pure; knows what is shown, not how it was had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .curve import ASSUMED_ACCEPTANCE, VerifyCurve
from .faults import TITLES
from .finding import Check
from .outcome import Outcome

_MARKS = {"ok": "ok", "advice": "advice", "problem": "**problem**"}


@dataclass(frozen=True, slots=True)
class Report:
    facts: dict[str, str]
    """Versions, board, power mode: by name, in the order in which they are shown."""
    checks: tuple[Check, ...]
    outcomes: tuple[Outcome, ...]
    curves: tuple[VerifyCurve, ...]
    seconds: float
    """That it took."""

    @property
    def problems(self) -> int:
        return sum(one.status == "problem" for one in self.checks)


def markdown(report: Report) -> str:
    many = "" if report.problems == 1 else "s"
    lines = ["### edge-runtime doctor --device", ""]
    lines += [f"- {name}: {value}" for name, value in report.facts.items()]
    lines += ["", f"{report.problems} problem{many}, found in {report.seconds:.0f} s.", ""]
    lines += _table(("", "what", "found"), [(_MARKS[one.status], one.name, _found(one)) for one in report.checks])
    return "\n".join([*lines, *tables(report)]).rstrip() + "\n"


def tables(report: Report) -> Iterator[str]:
    """The figures alone: copies, products, what verifying costs."""
    copies = [(one.what, f"{one.gb_s:.1f}", f"{one.size_bytes >> 20}", TITLES[outcome.probe])
              for outcome in report.outcomes for one in outcome.told.copies]  # fmt: skip
    if copies:
        yield from ("", "Copies (each byte is read and written, both count):", "")
        yield from _table(("memory", "GB/s", "MiB", "by"), copies)
    yield from _products(report.outcomes)
    for curve in report.curves:
        yield from ("", f"Verifying K drafts: {curve.what} ({curve.told()})", "")
        kept = f"gain at {ASSUMED_ACCEPTANCE:.0%}"
        yield from _table(("K", "ms", "cost", "acceptance needed", kept), [
            (f"{line.k}", _ms(line.seconds), f"{line.cost:.2f}",
             "more than all" if line.needed is None else f"{line.needed:.0%}", f"{line.gain:.2f}")
            for line in curve.lines
        ])  # fmt: skip


def _products(outcomes: Sequence[Outcome]) -> Iterator[str]:
    products = [(outcome, one) for outcome in outcomes for one in outcome.told.products]
    if not products:
        return
    most = max(len(one.seconds) for _, one in products)
    yield from ("", "Products, ms by rows; weights in GB/s are those of one row:", "")
    rows = []
    for outcome, one in products:
        times = [_ms(second) for second in one.seconds] + [""] * (most - len(one.seconds))
        off = "not finite" if one.difference is None else f"{one.difference:.1e}"
        speed = f"{1e-9 * one.weight_bytes / one.seconds[0]:.1f}"
        rows.append((TITLES[outcome.probe], one.kind, f"{one.inner} x {one.outer}", *times, speed, off))
    heads = ("engine", "weights", "inner x outer", *(f"{count}" for count in range(1, most + 1)))
    yield from _table((*heads, "GB/s", "off by"), rows)


def _found(check: Check) -> str:
    return f"{check.text}. Fix: {check.fix}" if check.fix and check.status != "ok" else check.text


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield _row(heads)
    yield _row(["---"] * len(heads))
    for row in rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    # What a library says may hold what Markdown obeys: bars, line ends, tags and mentions.
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(cell: str) -> str:
    for found, instead in (("\\", "\\\\"), ("|", "\\|"), ("<", "&lt;"), ("`", "'"), ("@", "@\u200b")):
        cell = cell.replace(found, instead)
    return " ".join(cell.split())
