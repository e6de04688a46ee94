"""``python -m tests.fuzz.http_surface all --minutes 10``: attacks on the HTTP surface of a daemon over the fake engine.

``limits``: everything too much, once. ``chats``: odd chats and hostile schemas. ``described``: schemathesis from the
daemon's own description (``make attack`` installs it apart). Ends at the first finding, with exit code 1 and what
repeats it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from http_chats import chats  # noqa: E402 - the tests' helpers are no package
from http_described import described  # noqa: E402
from http_limits import limits  # noqa: E402

PARTS = ("limits", "chats", "described")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument("--minutes", type=float, default=10.0, help="of chats, and of described")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    seconds = 60.0 * asked.minutes
    runs = {
        "limits": lambda: limits(),
        "chats": lambda: chats(seconds, asked.seed),
        "described": lambda: described(int(seconds), asked.seed),
    }
    try:
        for part in PARTS if asked.part == "all" else [asked.part]:
            for line in runs[part]():
                print(line, flush=True)
    except AssertionError as found:
        print(f"found: {found}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
