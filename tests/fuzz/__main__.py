"""``python -m tests.fuzz gguf --inputs 1000000``: readers under atheris, one after the other, each in its own process.

A finding does not stop a run: the first input of each kind goes into the directory of findings, and all are counted.
The exit code is 1 where there was one, and where a reader took its process down.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from .bench import memory_directory
from .targets import names

_COVERED = re.compile(r"^#\d+\s.*\bcov: (\d+)")
_NOISE = re.compile(r"^(#\d|INFO: |Dictionary|\s*NEW_FUNC|W0000 |WARNING: (All log|Failed to find function))")


def main() -> int:
    asked = _asked()
    wrong = [name for name in (names() if asked.targets == ["all"] else asked.targets) if not _holds(name, asked)]
    if wrong:
        print(f"findings in: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads bytes of others.")
    parser.add_argument(
        "targets", nargs="+", choices=[*names(), "all"], metavar="TARGET", help=f"{', '.join(names())}; all"
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="of each target (%(default)s)")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so many, whatever --inputs says")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="(%(default)s)")
    parser.add_argument(
        "--corpus", type=Path, help="keep inputs that reached something new below it, and begin with them"
    )
    return parser.parse_args()


def _holds(name: str, asked: argparse.Namespace) -> bool:
    with memory_directory() as place:
        corpus = asked.corpus / name if asked.corpus else Path(place) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", f"{__package__}.under_atheris", name, place, str(corpus), str(asked.findings)]
        command += [str(asked.inputs), str(asked.seconds), str(asked.seed)]
        edges = 0
        process = subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
        assert process.stderr is not None
        for line in process.stderr:
            if found := _COVERED.match(line):
                edges = int(found[1])
            elif not _NOISE.match(line) and line.strip():
                print(f"{name}: {line.rstrip()}", file=sys.stderr)
        code = process.wait()
    print(f"{name}: {edges} edges{'' if code in (0, 1) else f', ended with {code}'}", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
