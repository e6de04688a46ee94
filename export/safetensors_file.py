"""Safetensors files: where each tensor of one file, or of a sharded set, lies. Knows no Gemma names.

Files are memory-mapped; opening reads the JSON header only. Every offset is checked against shape, dtype and
file size. Format: the safetensors README (u64 header length, JSON, data).
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from edge_runtime.errors import CheckpointError, ConfigError
from edge_runtime.files import check_ordinary, read_text_at_most
from export.gguf_file import Span, map_file, refuse_overlap

_MAX_HEADER_BYTES = 100_000_000
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
"""Of dtypes that somebody here reads; of others nobody does."""
_MOST_DIMS, _WIDEST = 8, 8
_NUMBERS = 1 << 63
"""JSON has numbers of any length: who multiplies, adds or prints them takes as long."""
MOST_BESIDE = 1 << 26
"""Bytes of what stands beside weights: twice a ``tokenizer.json`` of 262,144 pieces."""
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
PICKLED = "{} is a pickle, a program that runs when it is read; save its weights as safetensors"


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    path: Path
    tensors: dict[str, Span]
    """Other dtypes than F32, F16 and BF16 stay as their own kind, for the error message."""
    mapping: mmap.mmap


def read_json(path: Path) -> dict[str, object]:
    """A JSON object.

    Raises:
        CheckpointError: absent, unreadable, not JSON or not an object.
    """
    try:
        parsed = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return parsed


def read_text(path: Path) -> str:
    """Of what stands beside weights. Raises ``CheckpointError``: absent, unreadable, too long, or no text."""
    try:
        check_ordinary(path, "")
        return read_text_at_most(path, MOST_BESIDE, "")
    except ConfigError as problem:
        raise unreadable(path, problem) from None


def unreadable(path: Path, problem: ConfigError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read: {str(problem).removeprefix(f'{path}: ')}")


def open_safetensors(path: Path) -> SafetensorsFile:
    """Parse one file's header.

    Raises:
        CheckpointError: truncated or inconsistent; the message names file and tensor.
    """
    mapping = map_file(path)
    size = len(mapping)
    if size < 8:
        raise CheckpointError(f"{path}: truncated: {size} bytes are too few for a safetensors header")
    header_bytes = int(struct.unpack("<Q", mapping[:8])[0])
    if header_bytes > min(size - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{path}: truncated, or not safetensors (header of {header_bytes} bytes)")
    try:
        header = json.loads(mapping[8 : 8 + header_bytes], object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the safetensors header is not valid JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the safetensors header must be a JSON object")
    header.pop("__metadata__", None)
    start = 8 + header_bytes
    tensors = {name: _span(path, name, entry, start, size) for name, entry in header.items()}
    refuse_overlap(path, tensors)
    return SafetensorsFile(path, tensors, mapping)


def open_shards(directory: Path) -> list[SafetensorsFile]:
    """Every shard of a Hugging Face directory: by its index, else ``model.safetensors``, else all of them.

    Raises:
        CheckpointError: none there, a shard is missing, or lacks a tensor that the index places in it.
    """
    index_path = directory / _INDEX
    if index_path.is_file():
        return _indexed(directory, index_path)
    single = directory / _SINGLE
    paths = [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
    if not paths:
        pickled = next((path for path in sorted(directory.iterdir()) if is_pickle(path)), None)
        reason = "" if pickled is None else f": {PICKLED.format(pickled.name)}"
        raise CheckpointError(f"{directory}: no *.safetensors file there{reason}")
    return [open_safetensors(path) for path in paths]


def is_pickle(path: Path) -> bool:
    """Whether a checkpoint of torch's has such a name."""
    return path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def _indexed(directory: Path, index_path: Path) -> list[SafetensorsFile]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path}: has no weight_map")
    files: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        # The index is input too: a shard lies beside it, nowhere else.
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index_path}: {name!r} is not the name of a file beside it")
        if name not in files:
            files[name] = open_safetensors(directory / name)
        if tensor not in files[name].tensors:
            raise CheckpointError(f"{directory / name}: tensor {tensor} of the index is missing")
    return list(files.values())


def _span(path: Path, name: str, entry: object, start: int, size: int) -> Span:
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{path}: the header entry of tensor {name} is malformed")
    kind, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not (isinstance(kind, str) and _naturals(shape) and _naturals(offsets) and len(offsets) == 2):
        raise CheckpointError(f"{path}: the header entry of tensor {name} is malformed")
    begin, end = offsets
    if begin > end or end > size - start:
        raise CheckpointError(f"{path}: truncated: tensor {name} ends at {start + end} of {size} bytes")
    if len(shape) > _MOST_DIMS:
        raise CheckpointError(f"{path}: tensor {name} has {len(shape)} dimensions, more than {_MOST_DIMS}")
    # Nor may a length of zero hide what the others come to.
    if math.prod(length or 1 for length in shape) * _WIDEST >= _NUMBERS:
        raise CheckpointError(f"{path}: tensor {name} has the shape {shape}, which no memory holds")
    if kind in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[kind] != end - begin:
        raise CheckpointError(f"{path}: tensor {name} of shape {shape} cannot have {end - begin} bytes")
    return Span(kind, tuple(shape), start + begin, end - begin)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Of two entries for one name, one would win in silence."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} stands there twice")
        found[name] = value
    return found


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < _NUMBERS for item in value
    )
