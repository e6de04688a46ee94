"""A comparison as tables of at most 100 columns. Knows how to say it, measures and judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..bench.compare.figures import (
    DEFAULT_LABEL,
    Cell,
    Texts,
    best_fixed,
    cell,
    chosen,
    excess,
    faithfulness,
    looping,
)
from ..bench.compare.quality import NEAR_TIE
from ..bench.compare.record import DomainRecord, Floor, Report, Run, StepCosts
from ..bench.prompts import DomainKind
from ..bench.stats import Ratio
from ..bench.texts import LOOPING

_TEXTS: tuple[Texts, ...] = ("straight", "looping")
_HARDLY = 0.1
"""Share of steps that draft below which a text counts as parked."""
_KINDS: tuple[DomainKind, ...] = ("open", "copy")


def tables(report: Report) -> Iterator[RenderableType]:
    plain = ", ".join(f"{name} head {ms:.1f} ms" for name, ms in report.plain.items())
    yield Text(f"Plain decoding, per token: {plain}; the faster is what speed-ups are over.")
    if report.costs:
        yield costs_table(report.costs)
    laws = tuple(report.settings.laws)
    measured = chosen(report.domains, method=DEFAULT_LABEL, parts=("final",))
    if measured:
        yield _default_table(report.domains, laws)
        yield from _parked(report.domains, laws)
    if chosen(report.domains, parts=("named",)):
        yield _methods_table(report)
        yield from _health(report)
    if chosen(report.domains, parts=("search",)):
        yield _best_table(report.domains, laws)
    for curve in report.settings.curves:
        if chosen(report.domains, curve=curve):
            yield _priced_table(report, curve)
    if any(domain.quality for domain in report.domains):
        yield _quality_table(report)
    yield Text()
    yield _floors(report.floors)


def costs_table(costs: Sequence[StepCosts]) -> Table:
    chances = [f"{one.acceptance:g}" for one in costs]
    columns = [name for chance in chances for name in (f"lazy, {chance}", "gain")]
    table = _table("Cost of a step in ms, drafting left out, and its gain over plain", "K", "one batch", *columns)
    for place, line in enumerate(costs[0].lines if costs else ()):
        row = [str(line.k), f"{1e3 * line.batched_s:.1f}"]
        for one in costs:
            lazy = one.lines[place]
            group = "" if lazy.group is None else f" ({lazy.group})"
            row += [f"{1e3 * lazy.lazy_s:.1f}{group}", f"{max(lazy.lazy_gain, lazy.batched_gain):.2f}"]
        table.add_row(*row)
    table.caption = (
        "one batch: the head reads all rows at once; lazy: in groups (of so many rows) until the first rejection, "
        "where each draft is kept with that chance; gain: tokens per second over plain with the cheaper of the two"
    )
    return table


def _default_table(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Table:
    table = _table(
        "Default policy, measured: speed-up over plain, 95% interval; texts that loop apart",
        "domain", "law", "texts", "speed-up", "draft", "accept", "length", "by position", "copied", "repeats",
    )  # fmt: skip
    for domain in domains:
        for law in laws:
            runs = chosen([domain], law=law, method=DEFAULT_LABEL, parts=("final",))
            for kind, found in _apart(runs):
                table.add_row(domain.domain, law, _count(found, kind), *_cells(cell(found)), style=_dim(kind))
        table.add_section()
    table.caption = (
        f"draft: share of a step's time; length: tokens a step; looping: {LOOPING:.0%} of 8-grams or more said before"
    )
    return table


def _parked(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Iterator[Text]:
    """Where the default hardly drafted, and what it said why."""
    for domain in domains:
        for law in laws:
            found = cell(chosen([domain], law=law, method=DEFAULT_LABEL, parts=("final",), texts="straight"))
            if found is not None and found.drafting_steps < _HARDLY:
                why = f"{found.drafting_steps:.0%} of the steps drafted; {found.reason}"
                yield Text(f"parked on {domain.domain}, {law}: {why}")


def _cells(found: Cell | None) -> list[str]:
    if found is None:
        return []
    positions = " ".join(f"{100 * rate:.0f}" for rate in found.by_position[:3]) or "-"
    return [
        ratio(found.speedup),
        f"{found.draft_share:.0%}",
        _rate(found.acceptance_rate),
        f"{found.acceptance_length:.2f}",
        positions,
        f"{found.copied_share:.0%}",
        f"{found.repeat_rate:.0%}",
    ]


def _methods_table(report: Report) -> Table:
    laws = tuple(report.settings.laws)
    table = _table(
        "Drafters and policies by name, measured, texts that loop left out",
        "method", "texts", *laws, "accept", "draft", "mostly",
    )  # fmt: skip
    for kind in _KINDS:
        for method in (DEFAULT_LABEL, *report.settings.methods):
            parts = ("final",) if method == DEFAULT_LABEL else ("named",)
            runs = chosen(report.domains, kind=kind, method=method, texts="straight", parts=parts)  # type: ignore[arg-type]
            together = cell(runs)
            if together is not None:
                by_law = [cell([run for run in runs if run.law == law]) for law in laws]
                speedups = ["-" if found is None else ratio(found.speedup) for found in by_law]
                row = (_rate(together.acceptance_rate), f"{together.draft_share:.0%}", _mostly(together))
                table.add_row(method, kind, *speedups, *row)
        table.add_section()
    table.caption = "mostly: who drafted most, and in what share of the steps; threshold is lossy, and greedy only"
    return table


def _health(report: Report) -> Iterator[Text]:
    for kind in _KINDS:
        for method in (DEFAULT_LABEL, *report.settings.methods):
            found = cell(chosen(report.domains, kind=kind, method=method, texts="straight", parts=("final", "named")))
            if found is not None and found.notes:
                yield Text(f"{method}, {kind}: {'; '.join(found.notes)}")


def _best_table(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Table:
    table = _table("The best fixed drafter and K by search, and the default beside it", "domain", "law", "best fixed",
                   "its speed-up", "default over it")  # fmt: skip
    for domain in domains:
        for law in laws:
            best = best_fixed(domain, law)
            if best is not None:
                found = ratio(best.speedup), ratio(best.default_over_it)
                told = f"{law} (all loop)" if best.loops else law
                style = _dim("looping" if best.loops else "straight")
                table.add_row(domain.domain, told, best.method, *found, style=style)
    return table


def _priced_table(report: Report, curve: str) -> Table:
    table = _table(
        f"PROJECTION, not measured: priced with the {curve} curve of an Orin", "domain", "law", "texts", "speed-up",
        "draft", "accept", "length", "by position", "mostly",
    )  # fmt: skip
    for domain in report.domains:
        for law in report.settings.laws:
            runs = chosen([domain], law=law, method=DEFAULT_LABEL, curve=curve)
            for kind, found in _apart(runs):
                one = cell(found)
                assert one is not None  # there are texts
                row = (*_cells(one)[:5], _mostly(one))
                table.add_row(domain.domain, law, _count(found, kind), *row, style=_dim(kind))
    table.add_section()
    for method in (DEFAULT_LABEL, *report.settings.methods):
        for law in report.settings.laws:
            one = cell(chosen(report.domains, kind="open", law=law, method=method, curve=curve, texts="straight"))
            if one is not None:
                table.add_row(method, law, "open", *_cells(one)[:5], "")
    return table


def _quality_table(report: Report) -> Table:
    table = _table(
        "Texts as the target reads them, beside plain ones of the same prompts and rounds",
        "method", "law", "texts", "same", "near", "other", "NLL", "over plain", "regret", "until",
    )  # fmt: skip
    for method in (DEFAULT_LABEL, *report.settings.methods):
        for law in report.settings.laws:
            quality = [one for domain in report.domains for one in domain.quality
                       if (one.method, one.law) == (method, law)]  # fmt: skip
            found = faithfulness(quality)
            more = excess(chosen(report.domains, law=law, method=method, parts=("final", "named")))
            if found is not None and more is not None:
                greedy = quality[0].same_as_plain is not None
                same = [str(found.identical), str(found.near_ties), str(found.different)] if greedy else ["-"] * 3
                until = "-" if found.same_until is None or not greedy else f"{found.same_until:.0f}"
                nll = (f"{more.nll:.3f}", str(more), f"{found.regret:.3f}")
                table.add_row(method, law, str(more.texts), *same, *nll, until)
    table.caption = (
        "of the first round, read in one go: same, near (greedy texts that part where two logits are within "
        f"{NEAR_TIE}), other, regret (nats a token below the best one), until (the token where they part, median); "
        f"NLL: nats a token of all texts, as noted while decoding ({_most_off(report)})"
    )
    return table


def _most_off(report: Report) -> str:
    off = [abs(one.recorded_nll_off) for domain in report.domains for one in domain.quality]
    return f"at most {max(off):.3f} off what was read"


def _floors(found: Sequence[Floor]) -> Text:
    lines = [f"{floor.state:<12} {floor.claim}: {floor.found}" for floor in found]
    return Text("\n".join(["Floors of the default policy:", *lines]))


def _apart(runs: Sequence[Run]) -> Iterator[tuple[Texts, list[Run]]]:
    for kind in _TEXTS:
        found = [run for run in runs if looping(run) == (kind == "looping")]
        if found:
            yield kind, found


def _count(runs: Sequence[Run], kind: Texts) -> str:
    return f"{len(runs)} loop" if kind == "looping" else str(len(runs))


def _dim(kind: Texts) -> str:
    return "dim" if kind == "looping" else ""


def _mostly(found: Cell) -> str:
    """Who drafted most, and in what share of the steps."""
    if not found.sources:
        return "parked"
    name, share = found.sources[0]
    return f"{name.removeprefix('prompt_')} {share:.0%}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def ratio(found: Ratio) -> str:
    return f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        show_edge=False,
    )  # fmt: skip
    words = ("domain", "law", "method", "best fixed", "mostly", "by position")
    for column in columns:
        wide = column in ("method", "mostly")
        table.add_column(column, justify="left" if column in words else "right", overflow="fold", no_wrap=not wide)
    return table
