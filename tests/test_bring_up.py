"""The pages that tell somebody what to type: every command and every option in them is there."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from edge_runtime.cli import main as runtime
from export.__main__ import main as export

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/bring-up.md", "systemd/README.md", "docker/README.md", "configs/README.md"]
PROGRAMS = {"edge-runtime": runtime, "edge-export": export}


def spans(text: str) -> list[str]:
    """What a page has as code: indented blocks, with continued lines as one, and what stands between backticks."""
    text = text.replace("\\\n", " ")
    blocks = re.findall(r"^(?: {4,}|\t)(.*)$", text, re.MULTILINE)
    rest = re.sub(r"^(?: {4,}|\t).*$", "", text, flags=re.MULTILINE)
    return blocks + re.findall(r"`([^`\n]+)`", rest)


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


@pytest.mark.parametrize("page", PAGES)
def test_all_that_a_page_says_is_there(page: str) -> None:
    found = said((ROOT / page).read_text(encoding="utf-8"))
    assert {one for one in found if not exists(*one)} == set()


def test_a_page_that_lies_would_be_seen() -> None:
    page = "Say `edge-runtime sreve --config F`.\n\n    sudo /x/bin/edge-runtime doctor --cofig F && edge-runtime top\n"
    assert {one for one in said(page) if not exists(*one)} == {
        ("edge-runtime", "sreve", ""),
        ("edge-runtime", "sreve", "--config"),
        ("edge-runtime", "doctor", "--cofig"),
    }
    assert said("    systemctl status edge-runtime now") == set()


def test_there_are_ten_steps_each_with_what_to_expect() -> None:
    text = (ROOT / "docs/bring-up.md").read_text(encoding="utf-8")
    steps = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    numbered = [step for step in steps if re.match(r"\d+\. ", step)]
    assert [int(step.split(".")[0]) for step in numbered] == list(range(1, 11))
    block = re.compile(r"(?:^    \S.*\n(?:^      .*\n)*)+", re.MULTILINE)
    for step in numbered:
        assert len(block.findall(step)) == 1, f"one command: {step[:30]}"
        assert "**Expect**" in step and "| differs | then |" in step
    assert {"doctor", "plan", "build", "install-service"} <= {command for _, command, _ in said(text)}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
