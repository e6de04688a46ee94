"""A run as tables of plain text, the same for a terminal and a page. Knows what to show, draws nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...console import counted
from ..bandwidth import Speed
from ..stats import Ratio
from ..texts import LOOPING
from .figures import (
    DEFAULT_LABEL,
    PLAIN_LABEL,
    Figures,
    Spread,
    chosen,
    factors,
    figures,
    reading,
    token_speedup,
    whole_speedup,
)
from .plan import Which
from .record import Answer, Report

ALL = "all"
WAYS = {PLAIN_LABEL: "plain", DEFAULT_LABEL: "drafted"}
_POSITIONS = 6
_MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Sheet:
    title: str
    columns: tuple[str, ...]
    words: int
    """Columns of words, which come first; the others hold numbers."""
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def sheets(report: Report) -> Iterator[Sheet]:
    """Those that there is something for."""
    found = [_answers(report), _drafts(report), _lengths(report), _two(report), _quality(report), _costs(report)]
    yield from (sheet for sheet in found if sheet.rows)


def places(report: Report) -> Iterator[tuple[str, str | None]]:
    """Name and domain of the rows of a law: each domain, then all of several."""
    yield from ((domain, domain) for domain in report.settings.domains)
    if len(report.settings.domains) > 1:
        yield ALL, None


def _answers(report: Report) -> Sheet:
    rows = []
    for law in report.settings.laws:
        for name, domain in places(report):
            plain = chosen(report, method=PLAIN_LABEL, law=law, domain=domain)
            for label, way in WAYS.items():
                answers = chosen(report, method=label, law=law, domain=domain)
                found = figures(answers)
                if found is not None:
                    ratio = "" if label == PLAIN_LABEL else shown(whole_speedup(plain, answers))
                    rows.append((law, name, way, *_times(found), ratio))
    return Sheet(
        "Whole answers, plain against drafted",
        ("law", "domain", "way", "s", "P95 s", "tok/s", "ttft ms", "tpot ms", "speed-up"),
        3,
        tuple(rows),
        f"{report.settings.tokens} tokens each, prompt included; mean ± sd over {report.settings.rounds} rounds; tok/s "
        "and tpot: behind the first token; speed-up: of whole answers, median of pairs and its 95% interval",
    )


def _times(found: Figures) -> tuple[str, ...]:
    return (
        spread_shown(found.whole_s),
        three_digits(found.whole_s.p95),
        f"{found.tokens_per_s:.1f}",
        spread_shown(found.ttft_s.times(1e3)),
        spread_shown(found.tpot_s.times(1e3)),
    )


def _drafts(report: Report) -> Sheet:
    rows = []
    for law in report.settings.laws:
        for name, domain in places(report):
            found = figures(chosen(report, method=DEFAULT_LABEL, law=law, domain=domain))
            plain, drafted = (
                chosen(report, method=label, law=law, domain=domain, straight=True)
                for label in (PLAIN_LABEL, DEFAULT_LABEL)
            )
            if found is not None:
                positions = " ".join(f"{100 * rate:.0f}" for rate in found.by_position[:_POSITIONS]) or "-"
                rows.append(
                    (law, name, positions, rate(found.acceptance_rate), f"{found.acceptance_length:.2f}",
                     f"{found.drafted_per_step:.2f}", f"{found.looping:.0%}", shown(whole_speedup(plain, drafted)))
                )  # fmt: skip
    return Sheet(
        "What drafting did (the adaptive default)",
        ("law", "domain", "by position", "accepted", "length", "drafts", "loop", "speed-up, no loops"),
        3,
        tuple(rows),
        f"by position: percent kept of the 1st, 2nd, ... draft of a step, up to {_POSITIONS}; length: tokens a step; "
        f"drafts: a step; loop: texts with {LOOPING:.0%} of 8-grams or more said before, which flatter a drafter that "
        "copies, and are left out of the last column together with what was decoded beside them",
    )


@dataclass(frozen=True, slots=True)
class Length:
    """What drafts of one length did, all domains and one law together."""

    label: str
    found: Figures
    speedup: Ratio | None
    """Behind the first token."""


def lengths(report: Report, law: str) -> list[Length]:
    """Fixed ones by K, then the adaptive default in the same rounds; empty where none was measured."""
    plain = chosen(report, part="lengths", method=PLAIN_LABEL, law=law)
    found = []
    for label in report.settings.lengths:
        answers = chosen(report, part="lengths", method=label, law=law)
        one = figures(answers)
        if one is not None:
            found.append(Length(label, one, token_speedup(plain, answers)))
    if found:
        rounds = {answer.round for answer in plain}
        default, beside = ([answer for answer in chosen(report, method=label, law=law) if answer.round in rounds]
                           for label in (DEFAULT_LABEL, PLAIN_LABEL))  # fmt: skip
        one = figures(default)
        if one is not None:
            found.append(Length("adaptive", one, token_speedup(beside, default)))
    return found


def _lengths(report: Report) -> Sheet:
    rows = []
    for law in report.settings.laws:
        for one in lengths(report, law):
            found = one.found
            rows.append(
                (law, one.label, f"{found.drafted_per_step:.1f}", rate(found.acceptance_rate),
                 f"{found.acceptance_length:.2f}", f"{found.draft_ms:.0f}", f"{found.verify_ms:.0f}",
                 f"{1e3 * found.tpot_s.mean:.1f}", shown(one.speedup))
            )  # fmt: skip
    return Sheet(
        "Draft lengths",
        ("law", "drafts of", "drafts", "accepted", "length", "draft ms", "verify ms", "tpot ms", "speed-up"),
        2,
        tuple(rows),
        f"{counted(report.settings.length_rounds, 'round')} of all domains; drafts: a step, cut where the text ends; "
        "draft, verify: ms a step; the head reads rows in groups until the first rejection; speed-up: behind the first "
        "token",
    )


def _two(report: Report) -> Sheet:
    rows = []
    for law in report.settings.laws:
        base = chosen(report, bundle="beside", method=PLAIN_LABEL, law=law)
        for bundle in _bundles(report):
            for label, way in WAYS.items():
                answers = chosen(report, bundle=bundle, method=label, law=law)
                found = figures(answers)
                if base and found is not None:
                    ratio = shown(whole_speedup(base, answers))
                    rows.append((law, precision(report, bundle), way, *_times(found), ratio))
    return Sheet(
        "Precision x speculation",
        ("law", "precision", "way", "s", "P95 s", "tok/s", "ttft ms", "tpot ms", "speed-up"),
        3,
        tuple(rows),
        " ".join(["speed-up: of whole answers over plain decoding in the precision beside.", *_told(report)]),
    )


def _told(report: Report) -> Iterator[str]:
    for law in report.settings.laws:
        found = factors(report, law)
        if found is not None:
            product = found.precision.median * found.speculation.median
            yield (
                f"{law}: precision alone {found.precision.median:.2f}x, speculation alone "
                f"{found.speculation.median:.2f}x ({found.speculation_here.median:.2f}x in the other precision), both "
                f"{found.both.median:.2f}x, where the product would be {product:.2f}x."
            )


def _quality(report: Report) -> Sheet:
    rows = []
    for which, facts in report.bundles.items():
        read = "-" if facts.read_bytes is None else megabytes(facts.read_bytes)
        rows.append(
            (facts.name, facts.precision, f"{facts.nll:.4f}", megabytes(facts.file_bytes), read,
             *_peaks(report, which))
        )
    tokens = next(iter(report.bundles.values())).nll_tokens if report.bundles else 0
    return Sheet(
        "Bundles",
        ("bundle", "precision", "NLL", "files MB", "read MB", "plain MB", "drafted MB"),
        2,
        tuple(rows),
        f"NLL: nats a token of {tokens} of the GPL-3, by the bundle's own target; read: weights that a plain step "
        "reads; plain, drafted: peak resident memory of a daemon in a process of its own, without drafter and with all",
    )


def _peaks(report: Report, which: Which) -> Iterator[str]:
    for drafter in ("none", "auto"):
        found = [peak.resident.peak for peak in report.peaks if (peak.bundle, peak.drafter) == (which, drafter)]
        yield megabytes(found[0]) if found else "not measured"


def _costs(report: Report) -> Sheet:
    rows = []
    for bundle in _bundles(report):
        for law in report.settings.laws:
            for label, way in WAYS.items():
                found = figures(chosen(report, bundle=bundle, method=label, law=law))
                if found is not None:
                    joules = "-" if found.joules_per_token is None else f"{found.joules_per_token:.3f}"
                    read = reading(report, bundle, found)
                    gb_s, share = ("-", "-") if read is None else (f"{read.gb_s:.1f}", f"{read.share:.0%}")
                    rows.append(
                        (law, precision(report, bundle), way, gb_s, share, f"{found.draft_ms:.1f}",
                         f"{found.verify_ms:.1f}", f"{found.host_ms:.1f}", joules)
                    )  # fmt: skip
    return Sheet(
        "Where a step's time goes, memory bandwidth and energy",
        ("law", "precision", "way", "GB/s", "of limit", "draft ms", "verify ms", "host ms", "J/token"),
        3,
        tuple(rows),
        f"GB/s: weights of the target, read once a step, and nothing else; limit: {limit_shown(report.speeds)}; "
        f"J/token: of the whole board, {energy_shown(report)}",
    )


def _bundles(report: Report) -> tuple[Which, ...]:
    return ("beside", "main") if "beside" in report.bundles else ("main",)


def precision(report: Report, bundle: Which) -> str:
    """By name too, where both have the same."""
    facts = report.bundles[bundle]
    alike = sum(one.precision == facts.precision for one in report.bundles.values()) > 1
    return f"{facts.precision} ({facts.name})" if alike else facts.precision


def limit_shown(speeds: tuple[Speed, ...]) -> str:
    """The fastest of what was measured in this run."""
    if not speeds:
        return "not measured"
    most: dict[tuple[str, int], Speed] = {}
    for speed in speeds:
        key = speed.what, speed.threads
        most[key] = max(most.get(key, speed), speed, key=lambda one: one.gb_s)
    return f"the fastest of {', '.join(map(str, most.values()))}, measured in this run"


def energy_shown(report: Report) -> str:
    known = any(answer.joules is not None for answer in report.answers)
    return f"idle power in it ({report.power})" if known else f"not measured: {report.power}"


def spread_shown(found: Spread) -> str:
    """Mean and deviation, to three digits of the mean."""
    sd = "" if found.sd is None else f" ± {three_digits(found.sd, found.mean)}"
    return f"{three_digits(found.mean)}{sd}"


def three_digits(value: float, like: float | None = None) -> str:
    """At least the whole number; as many decimals as ``like`` has, where that is given."""
    size = abs(value if like is None else like)
    return f"{value:.{2 if size < 10.0 else 1 if size < 100.0 else 0}f}"


def shown(ratio: Ratio | None) -> str:
    """A single pair has no interval."""
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f}" + (f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.pairs > 1 else "")


def rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def megabytes(count: int) -> str:
    return f"{count / _MEGABYTE:.0f}"


def by_position(report: Report, law: str) -> dict[str, tuple[float, ...]]:
    """Acceptance by the place in the draft: of each fixed length, and of the adaptive default in all rounds."""
    found: dict[str, list[Answer]] = {
        label: chosen(report, part="lengths", method=label, law=law) for label in report.settings.lengths
    }
    found["adaptive"] = chosen(report, method=DEFAULT_LABEL, law=law)
    made = {label: figures(answers) for label, answers in found.items()}
    return {label: one.by_position for label, one in made.items() if one is not None and one.by_position}
