"""The pages: every command in them is run, or says why not and is parsed; lines that they quote are printed by the
code; links lead somewhere.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import click
import pytest
from doc_pages import (
    PAGES,
    PROGRAMS,
    REASONS,
    ROOT,
    blocks,
    commands,
    exists,
    headings,
    links,
    ours,
    read,
    refusal,
    said,
)
from doc_walk import Walk, alike

RUN = ["README.md", "docs/export.md", "docs/run.md", "docs/tune.md", "docs/operate.md", "docs/extend.md",
       "docs/troubleshoot.md"]  # fmt: skip
"""Whose commands are run. Of all others each is parsed."""
PAGE = "docs/troubleshoot.md"
DAEMON = "edge-runtime serve --config configs/desktop.yaml"


# --- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [one for one in commands(page) if not one.mark]
    snippets = [block for block in blocks(read(page)) if block.kind == "python" and not block.mark]
    if not todo:
        return
    with ExitStack() as opened:
        walk = Walk(tmp_path, opened, monkeypatch)
        monkeypatch.setenv("EDGE_RUNTIME_SOCKET", "bundles/edge-runtime.sock")
        given = 'export GGUF="$(edge-export demo --print-source)"'
        (start,) = commands(page, f"x\n\n    {given}\n")
        walk.run(start)
        if not any(DAEMON in one.text for one in todo):
            (start,) = commands(page, f"x\n\n    {DAEMON}\n")
            walk.run(start)
        for one in todo:
            done = walk.run(one)
            assert walk.is_expected(one, done), f"{page}:{one.line}: {one.text}\n{done}"
        for block in snippets:
            exec(compile("\n".join(block.lines), f"{page}:{block.line}", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_taken_by_the_command_line(page: str) -> None:
    if page in ("CHANGELOG.md", "docs/log.md"):
        return  # what was typed at the time
    assert {one for one in said(read(page)) if not exists(*one)} == set()
    refused = {one.text: why for one in commands(page) for words in ours(one.text) if (why := refusal(words))}
    assert refused == {}


def test_marks_are_known_and_few_commands_have_one(record_property: Callable[[str, object], None]) -> None:
    count = Counter(one.mark or "run" for page in RUN for one in commands(page))
    for mark in count:
        kind, _, what = mark.partition(": ")
        assert (
            kind == "run" or (kind == "not run" and what in REASONS) or (kind == "run by" and (ROOT / what).exists())
        ), mark
        record_property(mark, count[mark])
    assert count["run"] > sum(count.values()) / 2, count


# --- quoted ---------------------------------------------------------------------------------------


@cache
def templates() -> tuple[tuple[str, ...], ...]:
    """Texts of the code by their constant parts, between which something is put. Of files alone that have the longest
    three words of a quoted line: reading all of them takes seconds."""
    threes = (re.findall(r"(?=\b([a-z]+ [a-z]+ [a-z]+)\b)", line) for line in quoted(PAGE))
    wanted = {words for line in threes for words in sorted(line, key=len)[-2:]}
    found = set()
    for root in ("edge_runtime", "export"):
        for path in (ROOT / root).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if any(words in source for words in wanted) else ():
                if isinstance(node, ast.JoinedStr):
                    found.add(tuple(part.value for part in node.values if isinstance(part, ast.Constant)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add((node.value,))
    return tuple(parts for parts in found if sum(map(len, parts)) >= 8)


def is_printed(line: str) -> bool:
    """Whether some text of the code is in the line, or the line in such a text."""
    open_end = line.endswith("...")
    line = line.removesuffix("...").strip(" ;:,(")
    for parts in templates():
        if len(parts) == 1 and len(line) >= 6 and line in parts[0]:
            return True
        solid = sum(len(part.strip()) for part in parts)
        if solid < 8 or solid < 0.3 * len(line):
            continue
        at = 0
        for index, part in enumerate(parts):
            place = line.find(part.strip(), at)
            if place < 0:
                if open_end and index and sum(len(one) for one in parts[:index]) >= 8:
                    return True
                break
            at = place + len(part.strip())
        else:
            return True
    return False


def quoted(page: str) -> list[str]:
    """What is said to be printed: code in the first cell of tables that begin with "it says"."""
    found = []
    for table in re.findall(r"^\| it says \|.*\n(?:\|.*\n)+", read(page), re.MULTILINE):
        for row in table.splitlines()[2:]:
            found += re.findall(r"`([^`]+)`", row.split("|")[1])
    return found


def test_lines_that_are_quoted_are_printed_by_the_code() -> None:
    lines = quoted(PAGE)
    assert len(lines) > 25
    assert [line for line in lines if not is_printed(line)] == []


def test_a_line_that_nobody_prints_would_be_seen() -> None:
    assert not is_printed("the draft has 256000 tokens and the target 262144, and no way between them")
    assert not is_printed("everything is fine")
    assert alike("error: 3 of 'a': 1.5 GB, ...", "error: 12 of 'b': 0.25 MB, and so on")
    assert not alike("error: 3 of 'a'", "error: 3 on 'a'")


# --- links ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for place, heading in links(read(page)):
        target = ((ROOT / page).parent / place).resolve() if place else ROOT / page
        assert target.exists(), f"{page}: {place}"
        if heading:
            assert heading in headings(target.read_text(encoding="utf-8")), f"{page}: {place}#{heading}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/log.md"])
def test_prose_is_read_without_scrolling(page: str) -> None:
    """Tables, commands and links are as long as they are; so is what a tool writes between marks."""
    text = re.sub(r"^```.*?^```|(<!-- ([a-z ]+): begin -->).*?<!-- \2: end -->", "", read(page), flags=re.M | re.S)
    long = [line for line in text.splitlines() if len(line) > 130 and not re.match(r"\||    ", line)]
    assert [line for line in long if "](http" not in line] == []


def test_every_page_is_on_the_map_and_every_command() -> None:
    text = read("docs/README.md")
    there = {Path(place).name for place, _ in links(text)}
    assert {Path(page).name for page in PAGES if page.startswith("docs/")} - there == {"README.md"}
    named = {(program, command) for program, command, _ in said(text)}
    for program, group in PROGRAMS.items():
        for command in group.list_commands(click.Context(group)):
            assert (program, command) in named, f"{program} {command}"
