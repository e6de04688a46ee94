"""Where the files of a bundle take what is in them from: links, and the data that graphs name. Knows no manifest.

A hash says what a file is, not what it leads to. What lies outside a bundle, or in it but in no list, would be read
unchecked; onnxruntime looks at where data lies since 1.24, and never at a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from .wire import BYTES, spans

GRAPH_SUFFIX = ".onnx"
_DEEPEST = 128
"""Messages within messages."""
_LARGEST_GRAPH = 64 << 20
"""Half a minute's work at worst; of 62 layers one has 6 MiB, its norms."""
_LOCATION = b"location"
# By message, field -> message: as far as they may hold a tensor. https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}


def leads_out(path: Path, listed: Collection[str]) -> str:
    """Why a file of a bundle is not all that its hash speaks for; empty where it is. ``listed``: the bundle's files."""
    if path.is_symlink() and path.resolve().parent != path.parent.resolve():
        return "a link that leads out of the bundle; put the file itself there"
    if path.suffix != GRAPH_SUFFIX:
        return ""
    if path.stat().st_size > _LARGEST_GRAPH:
        return f"a graph of more than {_LARGEST_GRAPH >> 20} MiB, its weights left out"
    try:
        named = set(locations(path.read_bytes()))
    except ValueError as problem:
        return f"no graph of ONNX: {problem}"
    foreign = sorted(named - set(listed))
    return f"takes data from {foreign[0][:128]!r}, which is no listed file of the bundle" if foreign else ""


def locations(model: bytes) -> Iterator[str]:
    """Of the external data of every tensor, wherever it stands. Raises ``ValueError`` for what is no message."""
    return _locations(model, 0, len(model), "model", 0)


def _locations(data: bytes, at: int, stop: int, message: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if message == "entry":
        # Of a field that stands twice the last counts, and one of another type not at all.
        texts = {number: data[begin:end] for number, kind, begin, end in spans(data, at, stop) if kind == BYTES}
        if texts.get(1) == _LOCATION:
            yield texts.get(2, b"").decode("utf-8", "backslashreplace")
        return
    inside = _MESSAGES[message]
    for number, kind, begin, end in spans(data, at, stop):
        if kind == BYTES and number in inside:
            yield from _locations(data, begin, end, inside[number], depth + 1)
