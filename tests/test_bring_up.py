"""docs/bring-up.md: ten steps, each with what to expect; and that a page which lies would be seen."""

from __future__ import annotations

import re
from pathlib import Path

from doc_pages import exists, said

ROOT = Path(__file__).parent.parent


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
