"""What a soak promises, held against its figures. Pure; what a short one cannot tell is not judged, and said so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...simulator.verdict import OVER_C, OVER_S
from ..verdict import Verdict
from .figures import Quarters, SoakFigures, after_warm_up

GROWTH_SHARE, GROWTH_BYTES = 0.01, 4_000_000
"""An hour, of what is held at rest; and what any run may differ by."""
SLOWER = 1.15
"""p95 of the last quarter over that of the first."""
JUDGED = 0.1
"""Of the time must be such that the temperature limit can be judged."""
_TOLD = 3


def verdicts(figures: SoakFigures) -> Iterator[Verdict]:
    refused = sum(figures.refusals.values())
    gone = (*figures.lost, *figures.undue)
    yield Verdict(
        "0 requests lost: each got its full answer, left by itself, or was refused for what was done then",
        f"{len(figures.lost)} lost and {len(figures.undue)} refused without a cause, of {figures.answers}; "
        f"{refused - len(figures.undue)} due refusals{_first(gone)}",
        not gone and figures.answers > 0,
    )
    judged = sum(counts["right"] + counts["left"] + counts["wrong"] for counts in figures.outcomes.values())
    yield Verdict(
        "every answer is what it is undisturbed and undrafted, and of its form",
        f"{len(figures.wrong)} wrong of {judged}{_first(figures.wrong)}",
        not figures.wrong and judged > 0,
    )
    done = figures.happenings.total()
    yield Verdict(
        "whatever was done to it, the daemon was itself again",
        f"{done - len(figures.failed)} of {done}{_first(figures.failed)}",
        not figures.failed and done > 0,
    )
    yield from _flat(figures)
    yield from _steady(figures)
    yield from _governor(figures)
    yield Verdict(
        "no error in the log but those asked for", f"{len(figures.errors)}{_first(figures.errors)}", not figures.errors
    )
    if not figures.ended.startswith(("stopped", "the record")):
        broke = figures.ended != "complete"
        yield Verdict("the daemon lives to the end", figures.ended, not broke)


def unjudged(figures: SoakFigures) -> Iterator[str]:
    """Claims that this run is too short for."""
    if figures.memory is None:
        yield "memory, descriptors and threads: fewer than 4 laps after the warm-up"
    heat = figures.heat
    if heat.highest_c is not None and heat.judged < JUDGED:
        yield (
            f"the temperature limit: others had the processors, but for {heat.judged:.0%} of the time; "
            f"highest {heat.highest_c:.2f} C of {figures.settings.limit_c:g}"
        )
    if figures.probe_ttft is None:
        yield "p95: fewer than 8 timed answers"


def _flat(figures: SoakFigures) -> Iterator[Verdict]:
    memory, points = figures.memory, after_warm_up(figures.checkpoints)
    if memory is None:
        return
    hours = (points[-1].at_s - points[0].at_s) / 3600.0
    grown, allowed = memory.per_hour * hours, max(GROWTH_BYTES, GROWTH_SHARE * memory.mean * hours)
    yield Verdict(
        f"anonymous memory at rest grows by at most {GROWTH_SHARE:.0%} an hour, or {GROWTH_BYTES / 1e6:.0f} MB in all",
        f"{grown / 1e6:+.2f} MB in {hours:.2f} h after the warm-up ({memory.per_hour / 1e6:+.2f} MB an hour "
        f"[{memory.low / 1e6:+.2f}, {memory.high / 1e6:+.2f}], {memory.mean / 1e6:.1f} MB in the mean, "
        f"{memory.count} rests)",
        grown <= allowed,
    )
    half = len(points) // 2
    for name in ("files", "threads"):
        counts = [getattr(point, name) for point in points]
        before, after = max(counts[:half]), max(counts[half:])
        what = "open descriptors" if name == "files" else "threads"
        yield Verdict(
            f"no more {what} at rest in the second half than in the first",
            f"{after}, and {before} before",
            after <= before,
        )


def _steady(figures: SoakFigures) -> Iterator[Verdict]:
    """Of answers at rest: those under load depend on what else was asked just then."""
    rows: tuple[tuple[str, Quarters | None], ...] = (
        ("time to the first token", figures.probe_ttft),
        ("time per later token", figures.probe_tpot),
        ("processor time of an answer", figures.probe_work),
    )
    for name, found in rows:
        if found is None:
            continue
        ratio = found.ratio
        yield Verdict(
            f"p95 of {name}, last quarter over first, at most {SLOWER:g} at the low end of its interval",
            f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]{shared(figures)}",
            ratio.low <= SLOWER,
        )


def shared(figures: SoakFigures) -> str:
    """Whether others used the machine, in words."""
    if figures.had is None or min(figures.had) > 0.97:
        return ""
    first, last = figures.had
    return f"; the machine was shared: it had {first:.0%} and {last:.0%} of the processors it wanted, reckoned off"


def _governor(figures: SoakFigures) -> Iterator[Verdict]:
    heat, limit_c = figures.heat, figures.settings.limit_c
    if heat.over_c is not None and heat.judged >= JUDGED:
        some = "" if heat.judged > 0.99 else f", in the {heat.judged:.0%} of the time when it had its processors"
        yield Verdict(
            f"the governor keeps {limit_c:g} C where it can: at most {OVER_C:g} C above, {OVER_S:g} s at a time",
            f"highest {limit_c + heat.over_c:.2f} C, longest {heat.over_s:.1f} s above{some}",
            heat.over_c <= OVER_C and heat.over_s <= OVER_S,
        )
    yield Verdict(
        "and where it cannot, nothing runs",
        f"{figures.tokens_while_stopped} tokens while all was stopped",
        figures.tokens_while_stopped == 0,
    )


def _first(found: Sequence[str]) -> str:
    return "".join(f"; {one}" for one in found[:_TOLD]) + (f"; and {len(found) - _TOLD} more" * (len(found) > _TOLD))
