"""Asks databases of vulnerabilities for every release that a lock pins, by pip-audit. Knows no vulnerability itself.

    python tools/audit.py

Exit code 0: all were asked about and none has a known vulnerability; 1: some have; 3: it could not ask, which is no
verdict. pip-audit ends with 0, and with "No known vulnerabilities found", where a database knows none of the packages,
as behind a mirror that passes only files on. So each is asked about a release first that is known to be bad: one that
says nothing of that one has not answered.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locks import LOCKS, all_pins

DATABASES = {"pypi": "the package index", "osv": "OSV"}
"""As pip-audit calls them."""
BAD = ("pyyaml", "5.3")
"""CVE-2020-1747: whoever loads a file runs it."""
NONE_KNOWN, VULNERABLE, NOT_ASKED = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Answer:
    asked: int
    """Releases that the database knew."""
    unknown: tuple[str, ...]
    """Releases that it did not."""
    vulnerable: tuple[str, ...]
    """A line for each vulnerability."""
    failed: str | None
    """Why there is no answer."""


def rounds(releases: Iterable[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """No name twice in one of them, as pip-audit wants it."""
    found: list[dict[str, str]] = []
    for name, version in sorted(releases):
        place = next((one for one in found if name not in one), None)
        if place is None:
            found.append(place := {})
        place[name] = version
    return [list(one.items()) for one in found]


def answered(reports: Sequence[dict[str, Any] | str]) -> Answer:
    """Of pip-audit's reports, one a round; a text is why there is none. ``BAD`` is among them and not counted."""
    for report in reports:
        if isinstance(report, str):
            return Answer(0, (), (), report)
    entries = [entry for report in reports if isinstance(report, dict) for entry in report["dependencies"]]
    unknown = tuple(entry["skip_reason"] for entry in entries if "skip_reason" in entry)
    known = [entry for entry in entries if "skip_reason" not in entry]
    holes = {(entry["name"], entry["version"]): [one["id"] for one in entry["vulns"]] for entry in known}
    canary = holes.pop(BAD, None)
    if not canary:
        why = "it does not know" if canary is None else "it knows no vulnerability of"
        return Answer(0, unknown, (), f"{why} {BAD[0]} {BAD[1]}, which has one")
    lines = tuple(f"{name} {version}: {one}" for (name, version), ids in sorted(holes.items()) for one in ids)
    return Answer(len(holes), unknown, lines, None)


def verdict(answers: dict[str, Answer], say: Callable[[str], None]) -> int:
    """The exit code of these, by database; what they say goes to ``say``."""
    complete = False
    for name, answer in answers.items():
        if answer.failed is not None:
            say(f"{DATABASES[name]}: COULD NOT ASK: {answer.failed}")
            continue
        say(f"{DATABASES[name]}: asked about {answer.asked} releases, {len(answer.vulnerable)} known vulnerabilities")
        for line in (*answer.vulnerable, *answer.unknown):
            say(f"  {line}")
        complete |= not answer.unknown
    if any(answer.vulnerable for answer in answers.values()):
        return VULNERABLE
    if not complete:
        say("no verdict: no database was asked about everything. Run it where one can be reached.")
        return NOT_ASKED
    return NONE_KNOWN


def _ask(database: str, releases: Iterable[tuple[str, str]]) -> dict[str, Any] | str:
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in releases), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--no-deps"]
        command += ["--disable-pip", "--vulnerability-service", database, "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
        report["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and nothing was said"]
        return said[-1]
    return dict(report)


def _answer(database: str, releases: Iterable[tuple[str, str]]) -> Answer:
    first = answered([_ask(database, [BAD])])
    if first.failed is not None:
        return first
    return answered([_ask(database, one) for one in rounds([*releases, BAD])])


def main() -> int:
    pins = all_pins(LOCKS)
    print(f"{len(pins)} releases are locked", flush=True)
    return verdict({name: _answer(name, pins) for name in DATABASES}, print)


if __name__ == "__main__":
    sys.exit(main())
