"""A peer in a process of its own: requests in, answers out, one JSON line each. Knows no figure and no table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from ..resident import peak_resident_bytes
from .peers.protocol import Peer

_PEERS = {
    "ours": ("ours", "OursPeer"),
    "llama.cpp": ("llama_cpp", "LlamaCppPeer"),
    "transformers": ("transformers", "TransformersPeer"),
}


def serve(kind: str, source: Path, threads: int, context: int, requests: TextIO, answers: TextIO) -> None:
    """Load the peer, then answer until the requests end."""
    import importlib

    started = time.perf_counter()
    module, name = _PEERS[kind]
    peer: Peer = getattr(importlib.import_module(f"{__package__}.peers.{module}"), name)(source, threads, context)
    _answer(answers, {"load_s": time.perf_counter() - started})
    for line in requests:
        request = json.loads(line)
        _answer(answers, _perform(peer, request.pop("do"), request))


def _perform(peer: Peer, what: str, given: dict[str, Any]) -> Any:
    if what == "memory":
        return peak_resident_bytes()
    return getattr(peer, what)(**given)


def _answer(answers: TextIO, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    # Libraries print to stdout as they please; the answers keep a descriptor of their own.
    out = open(int(sys.argv[5]), "w", encoding="utf-8")  # noqa: SIM115
    serve(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.stdin, out)
