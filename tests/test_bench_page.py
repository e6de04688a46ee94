"""The page of ``edge-runtime bench``: read by a parser, and shown by a real Chromium on a phone and on a desk."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import protocol_runs as runs
import pytest
from browser import HOW, Browser, find_browser

from edge_runtime.bench import stats
from edge_runtime.bench.protocol.html import page
from edge_runtime.bench.protocol.plots import plots
from edge_runtime.bench.protocol.record import Report
from edge_runtime.bench.protocol.svg import Bar, Bars, Lines, draw
from edge_runtime.bench.records import as_json

_VOID = {"meta", "link", "br", "img", "input"}
# elements that XML closes by itself
_SHORT = {"rect", "line", "path", "polyline", "circle"}


class Outline(HTMLParser):
    """What stands in a page, and whether every element is closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _SHORT:
            self.wrong.append(f"<{tag}/>")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [data for name, data in self.texts if name == tag]


@pytest.fixture(scope="module", autouse=True)
def _few_resamples() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "_RESAMPLES", runs.RESAMPLES)
        yield


@pytest.fixture(scope="module")
def report() -> Report:
    return runs.report(joules=20.0)


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page(report)


def test_a_parser_reads_it_and_everything_is_closed(html: str) -> None:
    outline = Outline(html)
    assert (outline.wrong, outline.open) == ([], [])
    assert html.startswith("<!doctype html>") and len(outline.all("h1")) == 1
    assert outline.all("html")[0]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in outline.all("meta")


def test_it_needs_nothing_else(html: str) -> None:
    outline = Outline(html)
    assert not any(outline.all(tag) for tag in ("script", "iframe", "object", "embed", "img", "base", "form"))
    links = [value or "" for _, attrs in outline.tags for name, value in attrs.items() if name in ("href", "src")]
    assert links and all(link.startswith("data:") for link in links)
    assert not any(name.startswith("on") for _, attrs in outline.tags for name in attrs)
    assert "@import" not in html and "url(" not in html
    (policy,) = [one["content"] for one in outline.all("meta") if "http-equiv" in one]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_the_machine_stands_ahead_of_every_figure(html: str, report: Report) -> None:
    header = html.partition("<main>")[0]
    assert next(iter(report.settings.machine.values())) in header and f"{report.settings.threads} threads" in header


def test_what_the_model_wrote_is_text(html: str) -> None:
    outline = Outline(html)
    assert runs.EVIL in outline.text_of("pre") and "<script" not in html
    assert any("gemma <tiny>" in text for text in outline.text_of("h1"))
    assert "edge-runtime bench --html 'a b.html'" in outline.text_of("code")


def test_all_texts_and_figures_come_along(html: str, report: Report) -> None:
    (link,) = [one for one in Outline(html).all("a") if "download" in one]
    kind, _, data = (link["href"] or "").partition(",")
    assert kind == "data:application/json;base64"
    assert base64.b64decode(data).decode() == as_json(report)


def test_what_was_published_stands_apart_from_what_was_measured(html: str) -> None:
    measured, _, published = html.partition('<section id="published"')
    assert "25.09 s" in published and "25.09 s" not in measured and "not measured here" in published
    assert "Measured on this machine" in measured and "<svg" not in published


def test_every_plot_is_there(report: Report, html: str) -> None:
    titles = [plot.title for plot in plots(report)]
    # Speed-up; and for each law answers, three of lengths, positions, 2 x 2; bandwidth and memory.
    assert len(titles) == len(set(titles)) == 1 + 2 * 6 + 2
    assert [one["aria-label"] for one in Outline(html).all("svg")] == titles


def test_a_run_of_which_little_is_known_has_a_page_too() -> None:
    little = runs.report(two=False, speeds=(), peaks=(), samples=(), answers=(runs.answer(),), complete=False)
    outline = Outline(page(little))
    assert (outline.wrong, outline.open) == ([], [])
    assert any("Not complete" in text for text in outline.text_of("strong"))
    assert any("not measured: no Jetson" in text for text in outline.text_of("p"))
    assert [plot.title for plot in plots(little)] == ["Seconds of a whole answer, greedy"]
    Outline(page(runs.report(answers=())))


@pytest.mark.parametrize(
    "plot",
    [
        Bars("nothing", ("a",), ()),
        Bars("zero", ("a", "b"), (("g", (Bar(0.0, "0"), None)),), line=1.0),
        Bars("<&>", ("a",), (("<g>", (Bar(1.0, "<b>", 0.9, 1.2),)),)),
        Lines("none", (), "x"),
        Lines("one", (("a", (0.5,)),), "x"),
        Lines("of a unit", (("a", (0.0, 1234.5)),), "x", marks=("128", "8192"), unit="ms"),
        Lines("many", tuple((f"series {i}", tuple(1 / (j + 1) for j in range(40))) for i in range(8)), "x"),
    ],
)
def test_a_plot_of_anything_is_well_formed(plot: Bars | Lines) -> None:
    outline = Outline(draw(plot))
    assert (outline.wrong, outline.open) == ([], [])
    assert "nan" not in draw(plot) and "<b>" not in draw(plot)


# In a browser

_SHOWN = """
(() => {
  for (const one of document.querySelectorAll('details')) one.open = true;
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = element => {
    for (let at = element; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const faint = [], outside = [], small = [];
  for (const element of document.body.querySelectorAll('*')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (!element.closest('.scroll') && box.right > innerWidth + 0.5) outside.push(element.outerHTML.slice(0, 80));
    if (!own) continue;
    const svg = element.closest('svg');
    const [one, other] = [light(numbers(svg ? style.fill : style.color)), light(paper(element))].sort((a, b) => b - a);
    if ((one + 0.05) / (other + 0.05) < 4.5) faint.push(element.outerHTML.slice(0, 80));
    const size = parseFloat(style.fontSize) * (svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1);
    if (size < 10.5) small.push([element.outerHTML.slice(0, 80), size]);
  }
  const plots = [...document.querySelectorAll('svg')].map(svg => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal, style = getComputedStyle(svg);
    const cut = [...svg.querySelectorAll('text')].filter(text => {
      const at = text.getBBox();
      return at.x < -1 || at.x + at.width > view.width + 1 || at.y < -1 || at.y + at.height > view.height + 1;
    }).map(text => text.textContent);
    const drawn = svg.querySelectorAll('rect, polyline').length;
    return {width: box.width, height: box.height, cut, drawn, visible: style.visibility + ' ' + style.display};
  });
  const tables = [...document.querySelectorAll('table')].map(table => {
    const scroll = table.closest('.scroll');
    return scroll !== null && scroll.clientWidth <= innerWidth && table.getBoundingClientRect().height > 20;
  });
  return {across: document.documentElement.scrollWidth, inner: innerWidth, title: document.title, faint, outside, small,
    plots, tables, paper: getComputedStyle(document.body).backgroundColor};
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip(HOW)
    with Browser(program) as opened:
        yield opened


@pytest.fixture(scope="module")
def place(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "bench.html"
    place.write_text(html, encoding="utf-8")
    return place


@pytest.mark.parametrize(
    ("width", "height", "scheme", "phone"),
    [(360, 740, "light", True), (360, 740, "dark", True), (1280, 900, "light", False)],
)
def test_a_person_can_read_it(
    browser: Browser, place: Path, width: int, height: int, scheme: str, phone: bool
) -> None:
    browser.look(width, height, scheme, phone=phone)
    browser.open(place)
    found: dict[str, Any] = browser.ask(_SHOWN)
    assert browser.complaints() == []
    assert (found["inner"], found["title"]) == (width, "edge-runtime bench: gemma <tiny>")
    assert found["across"] <= width and found["outside"] == []
    assert found["paper"] == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")
    assert found["faint"] == [] and found["small"] == []
    assert len(found["plots"]) == 15 and all(found["tables"]) and len(found["tables"]) == 6 + 1 + 2
    for plot in found["plots"]:
        assert plot["width"] > 250 and plot["height"] > 40 and plot["drawn"] > 0
        assert plot["cut"] == [] and plot["visible"] == "visible block"
