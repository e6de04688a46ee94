"""A comparison as a picture: speed-up by domain, the two projections, step cost against K. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...files import replacing
from ..stats import Ratio
from .figures import DEFAULT_LABEL, best_fixed, chosen, speedup
from .record import DomainRecord, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".png", ".pdf")
_WIDTH = 0.38
_NOT_MEASURED = "a projection, not measured"


def check_plot(path: Path) -> None:
    """Before anything is measured. Raises ``ConfigError``, and ``ModuleNotFoundError`` without matplotlib."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"plot: {path.name} must end in {', '.join(SUFFIXES)}")
    import matplotlib  # noqa: F401


def plot(report: Report, path: Path) -> None:
    """Raises ``OSError``."""
    from matplotlib.figure import Figure

    curves = tuple(dict.fromkeys(run.curve for domain in report.domains for run in domain.runs if run.curve))
    figure = Figure(figsize=(11, 4 * (2 + bool(curves))), layout="constrained")
    axes = figure.subplots(2 + bool(curves), 1)
    _speedups(axes[0], report.domains, tuple(report.settings.laws))
    if curves:
        _projections(axes[1], report.domains, curves)
    _costs(axes[-1], report)
    with replacing(path) as partial:
        figure.savefig(partial, metadata={"Date": None} if path.suffix == ".svg" else None)


def _speedups(axes: Axes, domains: Sequence[DomainRecord], laws: Sequence[str]) -> None:
    bars = [(law, [_default(domain, law, None) for domain in domains]) for law in laws]
    _bars(axes, [domain.domain for domain in domains], bars)
    for number, law in enumerate(laws):
        for place, domain in enumerate(domains):
            best = best_fixed(domain, law)
            if best is not None:
                label = "best fixed by search" if (number, place) == (0, 0) else None
                axes.plot(_place(place, number, len(laws)), best.speedup.median, "kD", markersize=4, label=label)
    axes.set_title("Default policy over the fastest plain mode, measured; bars: 95% interval")
    axes.legend()


def _projections(axes: Axes, domains: Sequence[DomainRecord], curves: Sequence[str]) -> None:
    bars = [(f"{curve} curve", [_default(domain, "sampled", curve) for domain in domains]) for curve in curves]
    _bars(axes, [domain.domain for domain in domains], bars)
    axes.set_title(f"Default policy, sampled, priced with Orin-like curves: {_NOT_MEASURED}")
    axes.legend()


def _bars(axes: Axes, names: Sequence[str], bars: Sequence[tuple[str, list[Ratio | None]]]) -> None:
    for number, (label, ratios) in enumerate(bars):
        known = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
        places = [_place(place, number, len(bars)) for place, _ in known]
        heights = [ratio.median for _, ratio in known]
        low = [ratio.median - ratio.low for _, ratio in known]
        high = [ratio.high - ratio.median for _, ratio in known]
        axes.bar(places, heights, _WIDTH, yerr=[low, high], capsize=2, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("speed-up")


def _place(place: int, number: int, count: int) -> float:
    return place + (number - (count - 1) / 2) * _WIDTH


def _default(domain: DomainRecord, law: str, curve: str | None) -> Ratio | None:
    part = "final" if curve is None else "priced"
    runs = chosen([domain], law=law, method=DEFAULT_LABEL, parts=(part,), curve=curve)  # type: ignore[arg-type]
    return speedup(runs) if runs else None


def _costs(axes: Axes, report: Report) -> None:
    for number, costs in enumerate(report.costs):
        ks = [line.k for line in costs.lines]
        if number == 0:
            axes.plot(ks, [1e3 * line.batched_s for line in costs.lines], "k-o", label="head in one batch")
        axes.plot(
            ks, [1e3 * line.lazy_s for line in costs.lines], "--.",
            label=f"until the first rejection, acceptance {costs.acceptance:g}",
        )  # fmt: skip
    axes.set_title("Cost of a step against K, drafting left out, measured")
    axes.set_xlabel("K")
    axes.set_ylabel("ms")
    if report.costs:
        axes.legend()
