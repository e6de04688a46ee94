"""Run a command in a terminal of its own and draw what it printed. Knows no command.

    python tools/record_terminal.py docs/demo.svg -- edge-runtime demo --bundle bundles/gemma-3-270m

What is drawn is what the command wrote, in its colours, behind the line that a reader would type; nothing is left out
and nothing put in but the title: program, machine and day. The picture names no font and no address to be fetched.
A command that fails, or that moves the cursor about (a progress bar), gives no picture.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from edge_runtime import __version__
from edge_runtime.bench.machine import machine

COLUMNS, ROWS = 100, 50
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Zafhlsu]")
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 16px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def recorded(command: list[str]) -> tuple[int, str]:
    """Exit code, and what a terminal of ``COLUMNS`` was sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    data = b""
    try:
        while part := os.read(ours, 65536):
            data += part
    except OSError:
        pass  # the last one that wrote has closed it
    os.close(ours)
    return process.wait(), data.decode("utf-8", "replace").replace("\r\n", "\n")


def drawn(command: list[str], output: str, title: str) -> str:
    """An SVG. The same output gives the same file."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (shlex.join(command), "bold")))
    for line in output.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line))
    return console.export_svg(title=title, theme=MONOKAI, code_format=_FORMAT, unique_id="terminal")


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--":
        print("usage: record_terminal.py FILE.svg -- COMMAND ...", file=sys.stderr)
        return 2
    place, command = Path(arguments[0]), arguments[2:]
    try:
        code, output = recorded(command)
    except OSError as problem:
        print(f"error: {command[0]}: {problem.strerror}", file=sys.stderr)
        return 2
    moves = _MOVES.search(output)
    if code or moves:
        why = f"it ended with {code}" if code else f"it moves the cursor ({moves[0]!r})" if moves else ""
        print(f"error: {shlex.join(command)}: {why}; {place} is as it was\n{output}", file=sys.stderr)
        return code or 2
    day = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    place.write_text(
        drawn(command, output, f"edge-runtime {__version__}, {machine()['processor']}, {day}"), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
