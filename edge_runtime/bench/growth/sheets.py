"""A run of the growth view as tables of plain text, the same for a terminal and a page. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ..protocol.sheets import Sheet, megabytes, shown, three_digits
from ..stats import Middle
from .figures import coins, host_figures, over_one, prefill_s, replay, shared_figures, step_figures, stepped
from .record import Facts, ModelRun, Report, Way

WAYS: tuple[Way, ...] = ("plain", "drafted")
REPLAYED = "replayed at a set acceptance, not text"


def sheets(report: Report) -> Iterator[Sheet]:
    """Those that there is something for."""
    found = [_contexts(report), _sessions(report), _models(report), _replays(report), _host(report)]
    yield from (sheet for sheet in found if sheet.rows)


def _contexts(report: Report) -> Sheet:
    rows, ks, known = [], report.settings.ks, report.context
    for held in () if known is None else known.held:
        assert known is not None  # it has been measured
        context = held.context
        fed, plain = prefill_s(known, context), step_figures(known.steps, context, 0)
        if fed is None or plain is None:
            continue
        drafted = [step_figures(known.steps, context, k) for k in ks]
        drafts = [one.draft_s for one in drafted if one is not None and one.draft_s is not None]
        rows.append(
            (str(context), interval(fed), f"{context / fed.median:.0f}", interval(plain.verify_s.times(1e3)),
             *("-" if one is None else three_digits(1e3 * one.verify_s.median) for one in drafted),
             three_digits(1e3 * drafts[-1]) if drafts else "-", megabytes(held.cache_bytes),
             megabytes(held.resident.now), megabytes(held.resident.peak))
        )  # fmt: skip
    return Sheet(
        "Context",
        ("tokens", "prompt s", "tok/s", "plain ms", *(f"K={k} ms" for k in ks), "draft ms", "cache MB", "now MB",
         "peak MB"),
        0,
        tuple(rows),
        f"{told(report.facts)}. tokens: in the cache; prompt: the target's alone; plain, K: a step without its draft, "
        "our own code in it; draft: a token of the longest drafts; medians, 95% intervals in brackets. cache: of its "
        "entries, by the manifest; now, peak: resident, the first time that the cache was so long",
    )  # fmt: skip


def _sessions(report: Report) -> Sheet:
    rows, known = [], report.sessions
    for way in WAYS if known is not None else ():
        assert known is not None  # it has been measured
        for count in sorted({run.sessions for run in known.runs}):
            found = shared_figures(known, count, way)
            if found is not None:
                rows.append(
                    (way, str(count), interval(found.tokens_per_s, 1), shown(over_one(known, count, way)),
                     three_digits(1e3 * found.tpot_s.median), interval(found.ttft_s.times(1e3)),
                     f"{1e3 * found.loop_s:.2f}", megabytes(found.resident_bytes))
                )  # fmt: skip
    slot = "" if known is None else f"; a slot of {known.context} tokens is {megabytes(known.slot_bytes)} MB of cache"
    tokens = 0 if known is None else known.prompt_tokens
    return Sheet(
        "Sessions that take turns",
        ("way", "sessions", "tok/s", "over one", "tpot ms", "ttft ms", "loop ms", "now MB"),
        1,
        tuple(rows),
        "tok/s: of all together, while a newcomer is answered; over one: the same over a lone session of the round; "
        f"tpot, ttft: the newcomer's, of {tokens} tokens that no slot knows; loop: of its step, outside of any engine; "
        f"sampled, temperature 1; drafted: as the daemon drafts by default{slot}",
    )


def _models(report: Report) -> Sheet:
    rows, ks = [], report.settings.ks
    for run in report.models:
        plain = step_figures(run.steps, run.context, 0)
        if plain is None:
            continue
        drafted = [step_figures(run.steps, run.context, k) for k in ks]
        drafts = [one.draft_s for one in drafted if one is not None and one.draft_s is not None]
        read = run.facts.read_bytes
        rows.append(
            (run.facts.name, run.facts.drafter, "-" if read is None else megabytes(read),
             f"{run.context / run.prefill_s:.1f}", interval(plain.verify_s.times(1e3)),
             *("-" if one is None else three_digits(one.verify_s.median / plain.verify_s.median) for one in drafted),
             three_digits(drafts[-1] / plain.verify_s.median) if drafts else "-", f"{run.load_s:.0f}",
             megabytes(run.resident.now))
        )  # fmt: skip
    context = report.models[0].context if report.models else 0
    return Sheet(
        "Models",
        ("bundle", "drafter", "read MB", "prompt tok/s", "plain ms", *(f"K={k} x" for k in ks), "draft x", "load s",
         "now MB"),
        2,
        tuple(rows),
        f"behind {context} tokens; read: weights that a plain step reads; K: a step without its draft, over a plain "
        "one; draft: a drafted token of the longest drafts, over a plain step",
    )  # fmt: skip


def _replays(report: Report) -> Sheet:
    rows, ks = [], report.settings.ks
    for run in report.models:
        for acceptance in report.settings.acceptances:
            found = [replay(run, k, acceptance) for k in ks]
            known = [one for one in found if one is not None]
            if known:
                best = max(known, key=lambda one: one.speedup.median)
                choice = f"K={best.k}" if best.speedup.median > 1.0 else "plain"
                rows.append(
                    (run.facts.name, f"{acceptance:g}", *("-" if one is None else shown(one.speedup) for one in found),
                     choice)
                )  # fmt: skip
    return Sheet(
        REPLAYED.capitalize(),
        ("bundle", "acceptance", *(f"K={k}" for k in ks), "best"),
        1,
        tuple(rows),
        "Speed-up over plain steps of the same round, 95% intervals in brackets. The drafter drafts and the target "
        "verifies, at their full cost; a coin says what is kept. Seconds are measured, tokens a step follow from the "
        "rate. "
        + "; ".join(_coins(run) for run in report.models),
    )


def _coins(run: ModelRun) -> str:
    made, wanted = coins(run)
    return f"{run.facts.name}: {made:.2f} tokens a drafted step came, {wanted:.2f} follow"


def _host(report: Report) -> Sheet:
    rows = []
    for facts, context, steps in stepped(report):
        for k in (0, *report.settings.ks):
            found = host_figures(steps, k)
            if found is not None:
                around = "-" if found.around_s is None else f"{1e3 * found.around_s:.2f}"
                rows.append(
                    (facts.name, str(context), "plain" if k == 0 else f"K={k}", three_digits(1e3 * found.total_s),
                     f"{1e3 * found.loop_s:.2f}", around, "-" if found.share is None else percent(found.share))
                )  # fmt: skip
    return Sheet(
        "What of a step is our own code",
        ("bundle", "tokens", "step", "step ms", "loop ms", "around ms", "ours"),
        3,
        tuple(rows),
        "step: its draft included; loop: our loop outside of any engine; around: within engines and drafters, beside "
        "the runs of the graphs; ours: both, of the step, with its 95% interval. -: this engine does not say",
    )


def told(facts: Facts) -> str:
    return f"{facts.name} ({facts.precision}, drafter {facts.drafter})"


def interval(found: Middle, decimals: int | None = None) -> str:
    """One sample has none."""
    values = (found.median, found.low, found.high)
    if decimals is None:
        median, low, high = (three_digits(value, found.median) for value in values)
    else:
        median, low, high = (f"{value:.{decimals}f}" for value in values)
    return f"{median} [{low}, {high}]" if found.count > 1 else median


def percent(found: Middle) -> str:
    return f"{found.median:.1%} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
