"""The commands of a page, run in order in a place where what they name is there, over a tiny bundle. Knows no page.

What is ours runs in this process; curl alone is a program. A daemon is the real server over a fake engine. What a
command that costs much names is replaced by something small (``_CHEAPER``).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner
from doc_pages import PROGRAMS, ROOT, Command
from server_runs import WAIT_S, running, tiny_model

from edge_runtime.bundle import MANIFEST_NAME
from edge_runtime.config import read_config
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler

_CHEAPER = (
    # The tiny checkpoint is no GGUF, whose blocks could be carried over.
    ("--precision exact", "--precision int8"),
    # What is there is all tests' own.
    ("--output bundles/small", "--output bundles/made"),
    ("generate ", "generate --threads 1 "),
    ("chat --bundle", "chat --threads 1 --bundle"),
    ("--max-tokens 64", "--max-tokens 8"),
)
_JUDGES = ("doctor", "plan", "telemetry")
"""Whose exit code 1 says something of the machine or the plan, and not that the command is wrong."""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Walk:
    """One reader at one prompt: variables and files stay from command to command."""

    _generated: ClassVar[dict[str, Done]] = {}
    """What stays the same on every page."""

    def __init__(self, place: Path, opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self._opened, self._monkeypatch = place, opened, monkeypatch
        self._known: dict[str, Done] = {}
        for name in ("configs", "examples", "docs"):
            (place / name).symlink_to(ROOT / name)
        bundles = place / "bundles"
        bundles.mkdir()
        for name in ("small", "gemma-3-270m"):
            (bundles / name).symlink_to(tiny.bundle())
        _damaged(bundles / "damaged")
        _other(place / "checkpoints/other")
        monkeypatch.chdir(place)
        monkeypatch.setattr("export.demo.demo_checkpoint", lambda progress: tiny.checkpoint())

    def run(self, command: Command) -> Done:
        """Once: a page says some twice."""
        text = command.text
        for said, cheaper in _CHEAPER:
            text = text.replace(said, cheaper)
        known = self._generated if text.startswith("edge-runtime generate") else self._known
        if text not in known:
            known[text] = self._run(text)
        return known[text]

    def is_expected(self, command: Command, done: Done) -> bool:
        if command.prints:
            lines = [*done.out.splitlines(), *done.err.splitlines()]
            return done.code != 0 and all(any(alike(said, line) for line in lines) for said in command.prints)
        judges = any(f"edge-runtime {name}" in command.text for name in _JUDGES)
        return done.code in ((0, 1) if judges else (0,)) and "Traceback" not in done.err

    def _run(self, text: str) -> Done:
        lexer = shlex.shlex(text, posix=True, punctuation_chars="|>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words = [os.path.expandvars(word) for word in lexer]
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            asked = re.fullmatch(r"\$\((.*)\)", value)
            self._monkeypatch.setenv(name, self._run(asked[1]).out.strip() if asked else value)
            return Done(0, "", "")
        fed = ""
        if "|" in words:
            at = words.index("|")
            assert words[0] == "echo", text
            fed, words = f"{' '.join(words[1:at])}\n", words[at + 1 :]
        into = None
        if ">" in words:
            into, words = words[-1], words[:-2]
        done = self._called(words, fed)
        if into is not None:
            Path(into).write_text(done.out, encoding="utf-8")
        return done

    def _called(self, words: list[str], fed: str) -> Done:
        if words[:2] == ["edge-runtime", "serve"]:
            return self._serve(words[words.index("--config") + 1])
        if words[0] == "curl":
            done = subprocess.run(["curl", "-sS", *words[1:]], capture_output=True, text=True, timeout=WAIT_S)
            return Done(done.returncode, done.stdout, done.stderr)
        assert words[0] in PROGRAMS, f"{words[0]}: nothing of ours; mark it as not run, and why"
        found = CliRunner().invoke(PROGRAMS[words[0]], words[1:], input=fed)
        return Done(found.exit_code, found.stdout, found.stderr)

    def _serve(self, config: str) -> Done:
        """Until the page ends, at the socket that the configuration names."""
        given = read_config(Path(config))
        folder = self.place / "served"
        folder.mkdir()
        model = tiny_model(folder, capacity=4096, name=Path(given.bundle).name)
        scheduler = Scheduler(model.served, Limits())
        scheduler.start()
        self._opened.callback(scheduler.close)
        found = self._opened.enter_context(running(model, scheduler, folder))
        socket = self.place / "bundles" / Path(given.server.socket).name
        socket.symlink_to(found.path)
        return Done(0, "", "")


def alike(said: str, line: str) -> bool:
    """Numbers and names apart; ``...`` at the end of what a page says stands for the rest."""

    def bare(text: str) -> str:
        text = re.sub(r"'[^']*'", "'x'", text)
        return re.sub(r"\b[0-9a-f]{16}\b|\d+(?:[.,]\d+)*(?: (?:[kMG]B|bytes))?", "0", text).strip()

    if said.endswith("...") and not line.endswith("..."):
        return bare(line).startswith(bare(said[:-3]))
    return bare(line) == bare(said)


def _damaged(place: Path) -> None:
    """A bundle whose weights are of the right size and no numbers."""
    shutil.copytree(tiny.bundle(), place)
    manifest: dict[str, Any] = json.loads((place / MANIFEST_NAME).read_text(encoding="utf-8"))
    for name in manifest["models"]["target"]["weights"]:
        size = (place / name).stat().st_size
        (place / name).write_bytes(b"\xff" * size)


def _other(place: Path) -> None:
    """A checkpoint whose vocabulary has two tokens in each other's place."""
    from sentencepiece import sentencepiece_model_pb2

    shutil.copytree(tiny.checkpoint(), place)
    messages: Any = sentencepiece_model_pb2
    model = messages.ModelProto()
    model.ParseFromString((place / "tokenizer.model").read_bytes())
    one, other = model.pieces[300], model.pieces[301]
    one.piece, other.piece = other.piece, one.piece
    (place / "tokenizer.model").write_bytes(model.SerializeToString())
