"""A peer in a process of its own, under whichever Python it needs: an order and requests in, answers out, one JSON line
each. Knows no figure. Runs where nothing of this project is installed: it imports the standard library, and one program
from beside it, which drives the peer.

python worker.py ORDER DESCRIPTOR      # ORDER: JSON, see ``Order`` in process.py; answers go to the descriptor
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from types import ModuleType
from typing import Any, TextIO

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "peer_programs"


def main(order: dict[str, Any], out: TextIO) -> None:
    sys.excepthook = lambda kind, problem, trace: _answer(out, error=_told(kind, problem))
    # A program here is called as the package that it drives.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    program = _program(order)
    if order["do"] == "prepare":
        _answer(out, ok=program.prepare(order))
        return
    began = time.perf_counter()
    peer = program.open_peer(order)
    _answer(out, ok={"load_s": time.perf_counter() - began, "weights": peer.weights, "versions": _versions(program)})
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        _answer(out, ok=peak_bytes() if what == "memory" else getattr(peer, what)(**request))


def peak_bytes() -> int:
    """Of this process so far, pages of files in it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _program(order: dict[str, Any]) -> ModuleType:
    if order["root"] is not None:
        sys.path.insert(0, order["root"])
        return importlib.import_module(order["program"])
    # A package of this folder alone: programs share files, and nothing else here can be imported by accident.
    folder, name = os.path.split(order["program"])
    package = ModuleType(_PACKAGE)
    package.__path__ = [folder]
    sys.modules[_PACKAGE] = package
    return importlib.import_module(f"{_PACKAGE}.{name[: -len('.py')]}")


def _versions(program: ModuleType) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    for name in program.PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _told(kind: type[BaseException], problem: BaseException) -> str:
    """One line: the first that says something, and which error it is."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{kind.__name__}: {lines[0]}" if lines else kind.__name__


def _answer(out: TextIO, **value: Any) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    # Libraries print to stdout as they please; the answers keep a descriptor of their own.
    main(json.loads(sys.argv[1]), open(int(sys.argv[2]), "w", encoding="utf-8"))  # noqa: SIM115
