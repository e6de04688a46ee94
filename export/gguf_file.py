"""A GGUF file: metadata and where each tensor lies. Knows no Gemma names and dequantises nothing.

The file is memory-mapped; opening reads the header only (0.2 s for a vocabulary of 262k strings). Every
count, length and offset is checked against the file before it is used, so that a truncated or hostile file
ends in a :class:`CheckpointError` and never in a huge allocation. Format: ggml ``docs/gguf.md``, versions 2
and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError, ConfigError, why
from edge_runtime.files import check_ordinary
from export.gguf_blocks import KINDS, row_bytes

_KIND_NAMES = {kind.type_id: name for name, kind in KINDS.items()}
_UNSUPPORTED = {
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 3
# Smallest entries the format allows: they bound the counts before any loop starts.
_MIN_META_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tensor lies."""

    kind: str
    shape: tuple[int, ...]
    """Outermost first ([out, in]); GGUF itself lists the innermost first."""
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, object]
    """Strings, numbers, ``list[str]`` and numpy arrays (of numbers), by key."""
    tensors: dict[str, Span]
    mapping: mmap.mmap


def map_file(path: Path) -> mmap.mmap:
    """Map a file for reading.

    Raises:
        CheckpointError: it is absent, unreadable or empty.
    """
    try:
        check_ordinary(path, "")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (ConfigError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {why(error).removeprefix(f'{path}: ')}") from error


def open_gguf(path: Path) -> GgufFile:
    """Parse the header.

    Raises:
        CheckpointError: not GGUF, another version, truncated or inconsistent; names file and item.
    """
    cursor = _Cursor(map_file(path), path)
    if cursor.take(4, "the magic number") != b"GGUF":
        raise CheckpointError(f"{path}: not a GGUF file (bad magic number)")
    version = cursor.number(_U32, "the version")
    if version not in (2, 3):
        hint = " (big-endian file?)" if version & 0xFFFF == 0 else ""
        raise CheckpointError(f"{path}: GGUF version {version} is not supported, 2 and 3 are{hint}")
    tensor_count = cursor.count(_MIN_TENSOR_BYTES, "the tensor count")
    meta_count = cursor.count(_MIN_META_BYTES, "the metadata count")
    metadata: dict[str, object] = {}
    for _ in range(meta_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise CheckpointError(f"{path}: metadata key {key} occurs twice")
        metadata[key] = cursor.value(cursor.number(_U32, key), key)
    shards = metadata.get("split.count", 0)
    if isinstance(shards, int) and shards > 1:
        raise CheckpointError(f"{path}: one of {shards} parts; merge them first (llama-gguf-split --merge)")
    return GgufFile(path, metadata, _tensors(cursor, tensor_count, _alignment(metadata, path)), cursor.data)


def _alignment(metadata: dict[str, object], path: Path) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise CheckpointError(f"{path}: general.alignment is {alignment}, must be a power of two")
    return alignment


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, Span]:
    relative: dict[str, Span] = {}
    for _ in range(count):
        name = cursor.string("a tensor name")
        if name in relative:
            raise CheckpointError(f"{cursor.path}: tensor {name} occurs twice")
        relative[name] = _span(cursor, name, alignment)
    # Padding may be absent after the last header byte only where there are no tensors at all.
    start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, span in relative.items():
        end = start + span.offset + span.nbytes
        if end > cursor.size:
            raise CheckpointError(
                f"{cursor.path}: truncated: tensor {name} ends at byte {end}, the file has {cursor.size}"
            )
        tensors[name] = Span(span.kind, span.shape, start + span.offset, span.nbytes)
    refuse_overlap(cursor.path, tensors)
    return tensors


def refuse_overlap(path: Path, tensors: Mapping[str, Span]) -> None:
    """A small file that names the same bytes a thousand times is a model of any size. Raises ``CheckpointError``."""
    end, last = 0, ""
    for name, span in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if span.nbytes and span.offset < end:
            raise CheckpointError(f"{path}: tensors {last} and {name} overlap")
        end, last = span.offset + span.nbytes, name


def _span(cursor: _Cursor, name: str, alignment: int) -> Span:
    """One tensor header; its offset still counts from the start of the data."""
    dims = cursor.number(_U32, name)
    if not 1 <= dims <= _MAX_DIMS:
        raise CheckpointError(f"{cursor.path}: tensor {name} has {dims} dimensions")
    inner_first = [cursor.number(_U64, name) for _ in range(dims)]
    type_id = cursor.number(_U32, name)
    offset = cursor.number(_U64, name)
    if type_id not in _KIND_NAMES:
        found = _UNSUPPORTED.get(type_id, f"number {type_id}")
        raise CheckpointError(f"{cursor.path}: tensor {name} has the unsupported type {found}")
    kind = _KIND_NAMES[type_id]
    rows = 1
    for size in inner_first[1:]:
        rows *= size
    if rows <= 0 or inner_first[0] <= 0:
        raise CheckpointError(f"{cursor.path}: tensor {name} is empty")
    if offset % alignment:
        raise CheckpointError(f"{cursor.path}: tensor {name} is not aligned to {alignment} bytes")
    try:
        nbytes = rows * row_bytes(kind, inner_first[0])
    except CheckpointError as error:
        raise CheckpointError(f"{cursor.path}: tensor {name}: {error}") from None
    return Span(kind, tuple(reversed(inner_first)), offset, nbytes)


class _Cursor:
    """Reads forward through the header and refuses to pass the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.size = len(data)
        self.position = 0

    def take(self, nbytes: int, what: str) -> bytes:
        self._need(nbytes, what)
        start = self.position
        self.position += nbytes
        return self.data[start : self.position]

    def number(self, layout: struct.Struct, what: str) -> int:
        """One unsigned integer."""
        self._need(layout.size, what)
        found: int = layout.unpack_from(self.data, self.position)[0]
        self.position += layout.size
        return found

    def count(self, entry_bytes: int, what: str) -> int:
        """A uint64 count of entries, each of at least ``entry_bytes``."""
        count = self.number(_U64, what)
        if count * entry_bytes > self.size - self.position:
            raise CheckpointError(f"{self.path}: {what} of {count} is more than the file can hold")
        return count

    def string(self, what: str) -> str:
        raw = self.take(self.count(1, f"the length of {what}"), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {what} is not valid UTF-8") from error

    def value(self, type_id: int, key: str, depth: int = 0) -> object:
        if type_id == _STRING:
            return self.string(key)
        if type_id == _ARRAY:
            return self._array(key, depth)
        if type_id not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata {key} has the unknown type {type_id}")
        dtype = np.dtype(_SCALARS[type_id])
        return np.frombuffer(self.take(dtype.itemsize, key), dtype)[0].item()

    def _array(self, key: str, depth: int) -> object:
        if depth >= _MAX_ARRAY_DEPTH:
            raise CheckpointError(f"{self.path}: metadata {key} nests arrays too deeply")
        type_id = self.number(_U32, key)
        if type_id == _STRING:
            return self._strings(key)
        if type_id == _ARRAY:
            return [self._array(key, depth + 1) for _ in range(self.count(12, f"the length of {key}"))]
        if type_id not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata {key} has the unknown type {type_id}")
        dtype = np.dtype(_SCALARS[type_id])
        numbers: NDArray[np.generic] = np.frombuffer(
            self.take(self.count(dtype.itemsize, f"the length of {key}") * dtype.itemsize, key), dtype
        )
        return numbers

    def _strings(self, key: str) -> list[str]:
        """A vocabulary holds hundreds of thousands of strings: everything is a local here, for speed."""
        count = self.count(8, f"the length of {key}")
        data, position, size = self.data, self.position, self.size
        unpack = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        append = strings.append
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > size:
                    raise CheckpointError(f"{self.path}: truncated inside {key}")
                append(data[start:position].decode())
        except struct.error:
            raise CheckpointError(f"{self.path}: truncated inside {key}") from None
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path}: {key} holds text that is not valid UTF-8") from error
        self.position = position
        return strings

    def _need(self, nbytes: int, what: str) -> None:
        if nbytes > self.size - self.position:
            raise CheckpointError(f"{self.path}: truncated at {what}")
