"""Bars and lines as SVG that a phone shows as it is. Knows no figure; colours and type are the page's style.

Every plot is ``WIDTH`` wide and as high as it needs; text is as wide as it may be at most, so nothing is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 340
_CHARACTER = 7.4
"""Width of a digit at the size of the page's plots, 11.5 units, in the widest of the usual fonts."""
_LONGEST = int(WIDTH / _CHARACTER)
"""Characters of a name."""
_LINE, _BAR, _GAP = 16.0, 14.0, 4.0
_SERIES = 6
"""Colours that the page knows."""


@dataclass(frozen=True, slots=True)
class Bar:
    value: float
    told: str
    """What stands behind it."""
    low: float | None = None
    """Of a whisker; both or none."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of horizontal bars, one of each series; a missing one is ``None``."""

    title: str
    series: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Bar | None, ...]], ...]
    note: str = ""
    line: float | None = None
    """A value to be above or below, drawn across."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Series over 1, 2, 3, ..., or over what ``marks`` name; values from 0 to 1 where no ``unit`` is given."""

    title: str
    series: tuple[tuple[str, tuple[float, ...]], ...]
    across: str
    note: str = ""
    marks: tuple[str, ...] = ()
    unit: str | None = None
    """Of values from 0 on; the highest gives the scale."""


def draw(plot: Bars | Lines) -> str:
    """An ``svg`` element; all text in it is escaped."""
    return _bars(plot) if isinstance(plot, Bars) else _lines(plot)


def _bars(plot: Bars) -> str:
    known = [bar for _, bars in plot.groups for bar in bars if bar is not None]
    most = max([*(max(bar.value, bar.high or 0.0) for bar in known), plot.line or 0.0, 1e-12])
    room = WIDTH - 10.0 - _CHARACTER * max((len(bar.told) for bar in known), default=0)
    parts, top = _legend(plot.series if len(plot.series) > 1 else ())
    first = top
    for name, bars in plot.groups:
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        parts.append(_text(0.0, top + 11.0, short, "name"))
        top += _LINE
        for place, bar in enumerate(bars):
            if bar is not None:
                parts += _bar(bar, place, top, room / most)
                top += _BAR + _GAP
        top += _GAP
    if plot.line is not None:
        x = plot.line * room / most
        parts.insert(0, f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{first:.1f}" y2="{top:.1f}"/>')
    return _svg(plot.title, parts, top)


def _bar(bar: Bar, place: int, top: float, scale: float) -> list[str]:
    width, end = max(0.5, bar.value * scale), bar.value * scale
    parts = [f'<rect class="s{place % _SERIES}" x="0" y="{top:.1f}" width="{width:.1f}" height="{_BAR:g}" rx="2"/>']
    if bar.low is not None and bar.high is not None:
        low, high, middle = max(0.0, bar.low) * scale, bar.high * scale, top + _BAR / 2
        parts.append(
            f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8M{high:.1f} '
            f'{middle - 4:.1f}v8"/>'
        )
        end = max(end, high)
    return [*parts, _text(end + 5.0, top + 11.0, bar.told)]


def _lines(plot: Lines) -> str:
    parts, top = _legend([name for name, _ in plot.series])
    left, height = 44.0, 130.0
    most = max((len(values) for _, values in plot.series), default=1)
    step = (WIDTH - left - 10.0) / max(most - 1, 1)
    highest = max([1e-12, *(value for _, values in plot.series for value in values)]) if plot.unit is not None else 1.0
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + 6.0 + height * (1.0 - share)
        parts.append(f'<line class="grid" x1="{left:g}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        told = f"{share:.0%}" if plot.unit is None else _short(share * highest)
        parts.append(_text(left - 5.0, y + 4.0, told, "tick", "end"))
    for place, (_, values) in enumerate(plot.series):
        points = [
            (left + step * number, top + 6.0 + height * (1.0 - value / highest)) for number, value in enumerate(values)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="l{place % _SERIES}" points="{path}"/>')
        dots = points if len(points) <= 16 else points[:1]
        parts += [f'<circle class="s{place % _SERIES}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in dots]
    bottom = top + height + 22.0
    for number in _ticks(most):
        anchor = "end" if number == most and most > 1 else "middle"
        name = plot.marks[number - 1] if plot.marks else str(number)
        parts.append(_text(left + step * (number - 1), bottom, name, "tick", anchor))
    parts.append(_text(left, bottom + 15.0, plot.across, "tick"))
    return _svg(plot.title, parts, bottom + 20.0)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"


def _ticks(most: int) -> list[int]:
    every = max(1, -(-most // 6))
    ticks = list(range(1, most + 1, every))
    return ticks if ticks[-1] == most else [*(tick for tick in ticks if most - tick > every / 2), most]


def _legend(names: Sequence[str]) -> tuple[list[str], float]:
    """Its elements, and where what follows begins."""
    parts, x, top = [], 0.0, 0.0
    for place, name in enumerate(names):
        width = 16.0 + _CHARACTER * len(name) + 10.0
        if x and x + width > WIDTH:
            x, top = 0.0, top + _LINE
        place %= _SERIES
        parts.append(f'<rect class="s{place}" x="{x:.1f}" y="{top + 2.0:.1f}" width="10" height="10" rx="2"/>')
        parts.append(_text(x + 15.0, top + 11.0, name))
        x += width
    return parts, top + _LINE + 6.0 if names else 0.0


def _text(x: float, y: float, text: str, kind: str = "told", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
