"""A daemon of one's own for the demo and for measurements: what is told of one that does not come up, and when."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge_runtime.bench.daemon import running_daemon
from edge_runtime.errors import EngineError

LONG_S = 3600.0


@pytest.fixture
def stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that runs in place of the daemon."""
    script = tmp_path / "daemon"
    script.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def told(ready_s: float) -> str:
    with pytest.raises(EngineError) as caught, running_daemon(Path("b"), ready_s=ready_s):
        pass
    return str(caught.value)


def test_one_that_ends_is_not_waited_for(stands_in: Path) -> None:
    stands_in.write_text("#!/bin/sh\necho info loading\necho 'error: no bundle at b'\nexit 2\n")
    assert told(LONG_S) == "the daemon did not start: no bundle at b"


def test_one_that_ends_without_a_word(stands_in: Path) -> None:
    stands_in.write_text("#!/bin/sh\nexit 1\n")
    assert told(LONG_S) == "the daemon did not start: nothing"


def test_one_that_takes_longer_than_the_wait_did_not_fail(stands_in: Path) -> None:
    stands_in.write_text("#!/bin/sh\necho 2026-11-30T18:38:53Z info loading\nexec sleep 600\n")
    words = told(1.5)
    assert words.startswith("the daemon was not ready within 1.5 s, and this waits no longer; it last said: ")
    # On a busy machine it may not have said even that.
    assert words.endswith(("2026-11-30T18:38:53Z info loading", "nothing"))


def test_what_it_says_does_not_command_the_terminal(stands_in: Path) -> None:
    stands_in.write_text("#!/bin/sh\nprintf 'error: \\033[2Jgone\\n'\nexit 2\n")
    assert told(LONG_S) == "the daemon did not start: \u241b[2Jgone"
