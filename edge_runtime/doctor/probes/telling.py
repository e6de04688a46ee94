"""The probe's side of the conversation: a request comes in, lines go out. Knows no engine.

A probe ends without unwinding: what a driver does while a library is taken down is not what is tried here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import IO

from ...errors import ConfigError, why
from ...schema import plain, structure
from ..outcome import Accelerator, Copy, LayerResult, Line, Product, Request

_LONGEST = 2000
"""Characters of a message."""
_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG"""


class Absent(Exception):
    """A package that is not installed: nothing to try."""


class Teller:
    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._began_s = clock()

    def stage(self, what: str) -> None:
        """What comes now; where it is the last thing told, the probe ended in it."""
        self._tell(Line(stage=what))

    def versions(self, **versions: object) -> None:
        self._tell(Line(versions={name: str(one) for name, one in versions.items()}))

    def accelerator(self, found: Accelerator) -> None:
        self._tell(Line(accelerator=found))

    def launched(self) -> None:
        """The first result is there."""
        self._tell(Line(launched_s=self._clock() - self._began_s))

    def product(self, product: Product) -> None:
        self._tell(Line(product=product))

    def copy(self, copy: Copy) -> None:
        self._tell(Line(copy=copy))

    def layer(self, layer: LayerResult) -> None:
        self._tell(Line(layer=layer))

    def note(self, text: str) -> None:
        self._tell(Line(note=text[:_LONGEST]))

    def end(self, *, absent: str | None = None, failed: str | None = None) -> None:
        failed = None if failed is None else failed[:_LONGEST]
        self._tell(Line(absent=absent, failed=failed, finished=absent is None and failed is None))

    def _tell(self, line: Line) -> None:
        # Only what is said: an unset field says nothing.
        said = {one.name: plain(value) for one in fields(line) if (value := getattr(line, one.name))}
        self._stream.write(json.dumps(said) + "\n")
        self._stream.flush()


def run_as_probe(probe: Callable[[Request, Teller], None]) -> None:
    """The whole program: arguments are a request as JSON and the descriptor that lines go to. Does not return.

    Without them it is tried by hand: as on a processor, lines to stdout.
    """
    _confine()
    given, descriptor = sys.argv[1:3] if len(sys.argv) > 2 else ("{}", "1")
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as stream:
        run_probe_once(probe, structure(Request, json.loads(given), ConfigError, "request"), Teller(stream))
        sys.stderr.flush()
        os._exit(0)


def run_probe_once(probe: Callable[[Request, Teller], None], request: Request, teller: Teller) -> None:
    try:
        probe(request, teller)
    except Absent as problem:
        teller.end(absent=str(problem))
    except Exception as problem:  # noqa: BLE001 (whatever a library raises is what is asked for)
        teller.end(failed=f"{type(problem).__name__}: {why(problem)}")
    else:
        teller.end()


def _confine() -> None:
    """No core file, first to go where memory ends, and gone when the doctor is."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
