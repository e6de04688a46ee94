"""Figures of a run as tables of words. Knows no console."""

from __future__ import annotations

from ...console import counted
from ..protocol.sheets import Sheet
from .figures import KINDS, Figures, figures
from .record import Report


def sheets(report: Report) -> list[Sheet]:
    """Figures, and who has none."""
    settings = report.settings
    rows = tuple(_row(one) for one in figures(report))
    caption = (
        f"greedy, {settings.tokens} tokens, {counted(settings.threads, 'thread')}, medians of {settings.rounds} "
        "interleaved rounds. open, copy: tok/s of whole answers, prompt included. ttft: ms behind "
        f"{settings.prefix_tokens} tokens that are new; known: that the prompt before began with. NLL: of the same "
        f"{settings.nll_tokens} tokens. "
        "MB: peak resident memory. =ours, =tf: greedy texts equal to those of ours and of transformers, plain"
    )
    numbers = ("NLL", "open", "copy", "ttft", "known", "MB", "=ours", "=tf")
    found = [Sheet("Peers side by side", ("program", "mode", "weights", *numbers), 3, rows, caption)] if rows else []
    failed = tuple((rival.kind, rival.mode, rival.error or "") for rival in report.rivals if rival.error is not None)
    return found + ([Sheet("Did not run", ("program", "mode", "why"), 3, failed)] if failed else [])


def _row(one: Figures) -> tuple[str, ...]:
    def same(pair: tuple[int, int] | None) -> str:
        return "-" if pair is None else f"{pair[0]}/{pair[1]}"

    return (
        one.kind,
        one.mode,
        one.weights,
        f"{one.nll:.4f}",
        *(f"{one.tokens_per_s[kind]:.1f}" for kind in KINDS),
        f"{1e3 * one.cold_s:.0f}",
        f"{1e3 * one.warm_s:.1f}",
        f"{one.peak_bytes / 1e6:.0f}",
        same(one.as_ours),
        same(one.as_reference),
    )
