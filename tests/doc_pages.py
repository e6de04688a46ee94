"""The Markdown of this project as what a reader may type: the commands of a page, what they print, where links lead.
Knows no test.

A block that is indented by four holds commands where its first line begins with a program; other lines in it are what
the command before them prints. A mark ahead of a block says why its commands are not run with the others:

    <!-- not run: root -->                       one of ``REASONS``; they are parsed all the same
    <!-- run by: tests/test_examples.py -->      by another test
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from edge_runtime.cli import main as runtime
from export.__main__ import main as export

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "configs/*.md", "docker/*.md", "systemd/*.md", "examples/*/*.md")
    for path in ROOT.glob(pattern)
)
PROGRAMS: dict[str, click.Group] = {"edge-runtime": runtime, "edge-export": export}
REASONS = {
    "board": "only a Jetson has it",
    "cluster": "k3s",
    "minutes": "runs far too long for a test",
    "network": "downloads",
    "root": "changes the machine",
}
_SHELL = {
    "bash", "curl", "docker", "echo", "export", "grep", "head", "kubectl", "make", "node", "pip", "printf", "pytest",
    "python", "sudo", "systemctl", "uv", *PROGRAMS,
}  # fmt: skip
_MARK = re.compile(r"<!-- (not run|run by): (.+?) -->")


@dataclass(frozen=True)
class Block:
    line: int
    """Of the page, from 1 on."""
    mark: str
    """``"not run: root"``, or an empty text."""
    lines: tuple[str, ...]
    """Without the four spaces."""

    @property
    def kind(self) -> str:
        first = self.lines[0].split()[0]
        if first.rpartition("/")[2] in _SHELL:
            return "shell"
        return "python" if first in ("from", "import") else "other"


@dataclass(frozen=True)
class Command:
    page: str
    line: int
    mark: str
    text: str
    """Continued lines as one."""
    prints: tuple[str, ...]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    found: list[Block] = []
    mark, start, held = "", 0, list[str]()
    for number, line in enumerate([*text.splitlines(), "end"], 1):
        if line.startswith("    ") and (held or line[4:5] not in ("", " ")):
            start, held = start if held else number, [*held, line[4:]]
        elif line.strip() or not held:
            while held and not held[-1].strip():
                held.pop()
            if held:
                found.append(Block(start, mark, tuple(held)))
                mark, held = "", []
            if line.strip():
                given = _MARK.fullmatch(line.strip())
                mark = f"{given[1]}: {given[2]}" if given else ""
        else:
            held.append("")
    return found


def commands(page: str, text: str | None = None) -> list[Command]:
    return [
        Command(page, line, block.mark, said, tuple(prints))
        for block in blocks(read(page) if text is None else text)
        if block.kind == "shell"
        for line, said, prints in _typed(block)
    ]


def _typed(block: Block) -> Iterator[tuple[int, str, list[str]]]:
    line, said, prints = 0, "", list[str]()
    for number, one in enumerate(block.lines, block.line):
        if said.endswith("\\"):
            said = said[:-1] + one.strip()
        elif one.strip().startswith("#") or not one.strip():
            continue  # a comment that goes on
        elif not said or one.split()[0].rpartition("/")[2] in _SHELL:
            if said:
                yield line, said, prints
            line, said, prints = number, one, []
        else:
            prints.append(one)
    yield line, said, prints


# --- what is named anywhere -----------------------------------------------------------------------


def spans(text: str) -> list[str]:
    """What a page has as code: indented blocks, with continued lines as one, and what stands between backticks."""
    text = text.replace("\\\n", " ")
    lines = re.findall(r"^(?: {4,}|\t)(.*)$", text, re.MULTILINE)
    rest = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    return lines + re.findall(r"`([^`\n]+)`", rest)


def said(text: str) -> set[tuple[str, str, str]]:
    """(program, command, option), with an empty option for the command itself."""
    found = set()
    for span in spans(text):
        for part in re.split(r"&&|;|\||\s#|\$\(", span):
            words = part.replace('"', " ").split()
            for index, word in enumerate(words[:-1]):
                program, command = word.rpartition("/")[2], words[index + 1]
                if program in PROGRAMS and re.fullmatch(r"[a-z][a-z-]+", command) and _is_typed(words[:index]):
                    options = re.findall(r"(?<!\S)(--[a-z][a-z-]*)", " ".join(words[index + 2 :]))
                    found |= {(program, command, option) for option in ["", *options]}
    return found


def _is_typed(before: list[str]) -> bool:
    """And no argument of something else, as of ``systemctl status edge-runtime``."""
    return all(word in ("$", "sudo", "nohup") or "=" in word for word in before)


def exists(program: str, command: str, option: str) -> bool:
    context = click.Context(PROGRAMS[program])
    known = PROGRAMS[program].get_command(context, command)
    if known is None:
        return False
    return not option or option == "--help" or any(option in [*one.opts, *one.secondary_opts] for one in known.params)


# --- parsed by the real command line --------------------------------------------------------------


def ours(text: str) -> Iterator[list[str]]:
    """What is given to our programs in a line of shell: [program, command, argument, ...]."""
    for words in parts(text):
        for index, word in enumerate(words):
            if word.rpartition("/")[2] in PROGRAMS and _is_typed(words[:index]):
                yield [word.rpartition("/")[2], *(one.strip("[]") for one in words[index + 1 :])]
                break
            if "$(" in word:
                yield from ours(word.partition("$(")[2].rpartition(")")[0])


def parts(text: str) -> Iterator[list[str]]:
    """The simple commands of a line of shell, word by word; comments and where output goes are left out."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word in ("|", "&&", ";", "||", ";;", "&"):
            if words:
                yield words[: words.index(">")] if ">" in words else words
            words = []
        else:
            words.append(word)


def refusal(words: list[str]) -> str:
    """What the command line has against it, files and directories not looked at; an empty text for nothing."""
    program, *rest = words
    if not rest or rest[0].startswith("-"):
        return "" if rest in (["--version"], ["--help"]) else f"{program} without a command"
    group = PROGRAMS[program]
    command = group.get_command(click.Context(group), rest[0])
    if command is None:
        return f"{program} has no command {rest[0]}"
    context = click.Context(command)
    arguments = [word for word in rest[1:] if word != "..."]
    try:
        given, left, _ = command.make_parser(context).parse_args(arguments)
        for one in command.params:
            value = given.get(one.name or "")
            # A capital letter stands for what a reader puts there.
            if isinstance(value, str) and not hasattr(one.type, "exists") and not re.fullmatch("[A-Z]+", value):
                one.type.convert(value, one, context)
    except click.ClickException as problem:
        return problem.format_message()
    return f"{' '.join(left)} is left over" if left else ""


# --- links ----------------------------------------------------------------------------------------


def links(text: str) -> list[tuple[str, str]]:
    """(place, heading), within this project; either may be empty."""
    prose = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    return re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", prose)


def headings(text: str) -> set[str]:
    """As GitHub names them."""
    prose = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
