"""A run as one page that needs nothing else: no network, no script, no font. Knows how it looks, makes no figure."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .protocol.sheets import Sheet
from .protocol.svg import Bars, Lines, draw
from .records import as_json

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Card:
    """One figure, large."""

    name: str
    value: str
    more: str


def render(
    template: str,
    title: str,
    report: Any,
    cards: Iterable[Card],
    plots: Iterable[Bars | Lines],
    sheets: Iterable[Sheet],
    bundles: Iterable[tuple[str, Any]],
    **more: Any,
) -> str:
    """Everything that comes from outside, texts of the model among it, is escaped. ``bundles``: name and facts."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(DATA), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(
        title=title,
        report=report,
        cards=list(cards),
        plots=[(plot.title, plot.note, draw(plot)) for plot in plots],
        sheets=list(sheets),
        bundles=list(bundles),
        data=base64.b64encode(as_json(report).encode()).decode("ascii"),
        **more,
    )
