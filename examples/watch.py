"""Follows a log and has what is notable in it sorted and explained in one line, without ever being in the way.

    export EDGE_RUNTIME_SOCKET=/run/edge-runtime/api.sock
    python examples/watch.py examples/sample.log --from-start --until-idle 1
    python examples/watch.py build.log --notable 'error|warning'      # goes on until Ctrl-C

What it shows:
- Classes that hold: a JSON schema with an enum, so that a program may act on the answer. Whether the class is right is
  another matter: a small base model guesses.
- Never in the way: `priority` 2, so that everybody else's steps come first; one request at a time; a queue of a few
  lines, beyond which lines are counted and not asked about; a daemon that is busy (429, 503) is left alone for as long
  as it says.
- Lines that differ in their numbers alone are asked about once.
The file may be rotated, truncated, or not be there yet.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from edge_runtime.client import Client, EdgeRuntimeError

KINDS = ("crash", "memory", "disk", "network", "access", "slow", "other")
NOTABLE = r"error|fail|fatal|panic|traceback|denied|refused|timed? ?out|out of memory|no space"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": KINDS},
        # Bounded, as the tokens are: an answer is never cut in its middle.
        "why": {"type": "string", "pattern": "^[A-Za-z0-9 ,.'/-]{1,80}$"},
    },
    "required": ["kind", "why"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "line", "schema": SCHEMA}}
PREFIX = """\
Log: kernel: EXT4-fs error (device sda1): no space left on device
JSON: {"kind": "disk", "why": "The disk is full."}
Log: sshd[71]: Failed password for root from 10.0.0.7 port 5022
JSON: {"kind": "access", "why": "Somebody tried to log in as root with a wrong password."}
Log: worker 3: upstream timed out after 30 s
JSON: {"kind": "network", "why": "The server behind it did not answer in time."}
"""
QUEUE_LINES = 16
KNOWN_SHAPES = 1000
LONGEST_LINE = 300
POLL_S = 0.2


@dataclass(frozen=True)
class Line:
    number: int
    text: str


def follow(path: Path, from_start: bool, ended: threading.Event) -> Iterator[Line]:
    """As ``tail -F``: the whole lines of the file of that name, whichever it is at the moment."""
    file, number, part = None, 0, ""
    try:
        while not ended.is_set():
            if file is None and path.exists():
                file = path.open(encoding="utf-8", errors="replace")
                if not from_start:
                    number = sum(1 for _ in file)
                # A later file of that name is new from its first line.
                from_start, part = True, ""
            while file is not None and (text := file.readline()):
                part += text
                if part.endswith("\n"):
                    number += 1
                    yield Line(number, part.strip())
                    part = ""
            if file is not None and replaced(path, file):
                file.close()
                file, number = None, 0
            else:
                ended.wait(POLL_S)
    finally:
        if file is not None:
            file.close()


def replaced(path: Path, file: TextIO) -> bool:
    """Whether another file has that name now, or this one began anew."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False  # between two files: what is still written to this one is read
    return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


class Watcher:
    """Takes lines from one thread and asks about them in another."""

    def __init__(self, client: Client, notable: str) -> None:
        self._client = client
        self._notable = re.compile(notable, re.IGNORECASE)
        self._lines: queue.Queue[Line | None] = queue.Queue(QUEUE_LINES)
        self._shapes: set[str] = set()
        self._ended = threading.Event()
        self.asked = self.repeated = self.left_out = 0

    def see(self, line: Line) -> None:
        """Never waits."""
        if not self._notable.search(line.text):
            return
        shape = re.sub(r"\d+", "0", line.text)
        if shape in self._shapes:
            self.repeated += 1
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.left_out += 1
            return
        if len(self._shapes) >= KNOWN_SHAPES:
            self._shapes.clear()
        self._shapes.add(shape)

    @property
    def idle(self) -> bool:
        return self._lines.unfinished_tasks == 0

    def end(self) -> None:
        """What waits is left out."""
        self._ended.set()
        self._lines.put(None)

    def work(self) -> None:
        """Until ``end``."""
        while (line := self._lines.get()) is not None:
            if self._ended.is_set():
                self.left_out += 1
                continue
            try:
                print(f"{line.number}: {self._ask(line)}  <- {line.text[:LONGEST_LINE]}", flush=True)
                self.asked += 1
            except EdgeRuntimeError as problem:
                self.left_out += 1
                print(f"{line.number}: not asked: {problem}", file=sys.stderr, flush=True)
            finally:
                self._lines.task_done()

    def _ask(self, line: Line) -> str:
        while True:
            try:
                answer = self._client.complete(
                    f"{PREFIX}Log: {line.text[:LONGEST_LINE]}\nJSON:",
                    max_tokens=128,
                    temperature=0.0,
                    response_format=FORMAT,
                    priority=2,
                )
            except EdgeRuntimeError as problem:
                # Busy: later, while the queue bounds what piles up.
                if problem.status not in (429, 503) or self._ended.wait(problem.retry_after_s or 1.0):
                    raise
                continue
            if answer.finish_reason == "length":
                return "[?] the answer was cut"
            said = json.loads(answer.text)
            return f"[{said['kind']}] {said['why']}"


def watch(watcher: Watcher, path: Path, from_start: bool, until_idle_s: float | None) -> None:
    ended = threading.Event()
    worker = threading.Thread(target=watcher.work)
    worker.start()
    last_s = time.monotonic()

    def tend() -> None:
        while not ended.wait(POLL_S):
            if until_idle_s is not None and watcher.idle and time.monotonic() - last_s > until_idle_s:
                ended.set()

    tending = threading.Thread(target=tend)
    tending.start()
    try:
        for line in follow(path, from_start, ended):
            last_s = time.monotonic()
            watcher.see(line)
    except KeyboardInterrupt:
        pass
    finally:
        ended.set()
        watcher.end()
        worker.join()
        tending.join()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Follows a log and explains its notable lines, one at a time.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--from-start", action="store_true", help="and not from its end")
    parser.add_argument("--notable", default=NOTABLE, help="a regular expression; case is of no account")
    parser.add_argument("--until-idle", type=float, metavar="SECONDS", help="end when nothing came for so long")
    given = parser.parse_args(arguments)
    if given.file.exists() and not (given.file.is_file() or given.file.is_fifo()):
        parser.error(f"{given.file} is no file")
    if given.until_idle is not None and not 0.0 <= given.until_idle < 1e9:
        parser.error(f"--until-idle is a number of seconds, not {given.until_idle}")
    try:
        re.compile(given.notable)
    except re.error as problem:
        parser.error(f"--notable is no regular expression: {problem}")
    try:
        with Client(patience_s=0.0) as client:
            client.health()  # is there one?
            watcher = Watcher(client, given.notable)
            watch(watcher, given.file, given.from_start, given.until_idle)
    except EdgeRuntimeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    print(f"{watcher.asked} explained, {watcher.repeated} more like them, {watcher.left_out} left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
