"""The header of a safetensors file and every tensor behind it; a Gemma of such a file; a trained drafter's arrays."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from edge_runtime.errors import CheckpointError
from export.checkpoint import MappedTensor, StoredTensor, open_checkpoint
from export.safetensors_file import SafetensorsFile, open_safetensors
from export.training.checkpoint import arrays_of

from ..gemma_seeds import CONFIG, hf_shapes, safetensors_file, safetensors_gemma, safetensors_header
from ..hostile import Raw, edit_bytes, edit_tree, number, spell, value
from ..judge import Judge
from .gguf import read_checkpoint, read_tensor

REFUSAL = CheckpointError
NAME = "model.safetensors"
_KNOWN = ("F32", "F16", "BF16", "F64", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "dtype", "shape", "data_offsets",
          "__metadata__", "lm_head.weight", *hf_shapes())  # fmt: skip


def prepare(place: Path) -> None:
    (place / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")


def seeds() -> list[bytes]:
    trained: dict[str, Any] = {"token_ids": ("I64", (4,)), "q": ("I8", (2, 64)), "q.scales": ("F16", (2, 2))}
    header: dict[str, Any] = {}
    at = 0
    for name, (kind, shape) in trained.items():
        entry = safetensors_header({name: shape}, kind)[0][name]
        end = at + entry["data_offsets"][1]
        header[name] = entry | {"data_offsets": [at, end]}
        at = end
    small = safetensors_file(json.dumps(header).encode(), bytes(at))
    few: list[dict[str, tuple[int, ...]]] = [
        {"a": (2, 3), "b": (4,), "c": (0, 3), "d": ()},
        {"a": (1,) * 8, "x.y": (5, 1)},
    ]
    plain = [
        _packed(*safetensors_header(shapes, kind)) for shapes in few for kind in ("F32", "F16", "BF16", "I64", "I8")
    ]
    return [*plain, small, bytes(8), safetensors_gemma("F16"), safetensors_gemma("BF16", "", head=True), small]


def _packed(header: dict[str, Any], nbytes: int) -> bytes:
    return safetensors_file(json.dumps(header).encode(), bytes(range(1, 101))[:nbytes])


def mutate(data: bytes, rng: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    head, rest = data[8 : 8 + size], data[8 + size :]
    choice = rng.randrange(16)
    if choice == 0 or size > len(data):
        return edit_bytes(data, rng)
    if choice == 1:
        return safetensors_file(head, rest, number(rng, size))
    if choice == 2:
        return safetensors_file(head, edit_bytes(rest, rng))
    if choice == 3:
        return safetensors_file(head + b" " * number(rng, 8).bit_length(), rest[: rng.randrange(len(rest) + 1)])
    try:
        tree = json.loads(head)
    except (ValueError, RecursionError):
        return safetensors_file(edit_bytes(head, rng), rest)
    if choice < 10 and isinstance(tree, dict) and tree:
        _spoil_entry(tree, rng)
    else:
        tree = edit_tree(tree, rng, _KNOWN)
    try:
        return safetensors_file(spell(tree).encode("utf-8", "surrogatepass"), rest)
    except (ValueError, RecursionError):
        return safetensors_file(edit_bytes(head, rng), rest)


def _spoil_entry(tree: dict[str, Any], rng: Random) -> None:
    entry = tree[rng.choice(list(tree))]
    if not isinstance(entry, dict):
        return
    other = tree[rng.choice(list(tree))]
    choice = rng.randrange(8)
    if choice == 0:
        entry["dtype"] = rng.choice(_KNOWN)
    elif choice == 1:
        entry["shape"] = [number(rng, 32) for _ in range(rng.choice((0, 1, 2, 3, 70)))]
    elif choice == 2:
        entry["shape"] = Raw(
            "["
            + ",".join([rng.choice(("9" * 4000, "1", "0", "18446744073709551616"))] * rng.choice((2, 33, 300)))
            + "]"
        )
    elif choice == 3 and isinstance(other, dict):
        entry["data_offsets"] = other.get("data_offsets")
    elif choice == 4:
        entry["data_offsets"] = [number(rng, 128), number(rng, 256)]
    elif choice == 5:
        entry["data_offsets"] = Raw(f"[0, {'9' * 4300}]")
    elif choice == 6:
        entry["shape"], entry["data_offsets"] = [1 << 32, 1 << 32], [0, 0]
    else:
        entry[rng.choice(list(entry) or ["dtype"])] = value(rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    file = judge.attempt(open_safetensors, path)
    if file is None:
        return
    judge.attempt(arrays_of, file)
    for name in file.tensors:
        tensor = judge.attempt(_mapped, file, name)
        if tensor is not None:
            judge.attempt(read_tensor, tensor)
    # The header once more: where there is no embedding, it is refused for that.
    whole = any(name.endswith("embed_tokens.weight") for name in file.tensors)
    checkpoint = judge.attempt(open_checkpoint, path.parent) if whole else None
    if checkpoint is not None:
        read_checkpoint(judge, checkpoint)


def _mapped(file: SafetensorsFile, name: str) -> MappedTensor:
    return StoredTensor(name, file.path, file.tensors[name], file.mapping).mapped(name)
