"""``bundle.json``, and what is reckoned from it before a file of the bundle is opened: sizes, memory, ids."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from edge_runtime.bundle import Manifest, read_manifest, size_problems, verify_files
from edge_runtime.errors import BundleError, InputError
from edge_runtime.needs import Load, needs
from edge_runtime.wire import encode

from ..examples import words
from ..hostile import edit_json
from ..judge import Judge

REFUSAL = (BundleError, InputError)
NAME = "bundle.json"
_FILES = ("body.onnx", "head.onnx", "readout.onnx", "all.weights", "tokenizer.model", "NOTICE")
_KNOWN = words(Manifest) + list(_FILES)


def prepare(place: Path) -> None:
    for name in _FILES:
        (place / name).write_bytes(encode([(2, b"01234567")]))  # of a graph, the field that says who made it


def seeds() -> list[bytes]:
    drafter = _model() | {"hidden_input": 8, "shares": [1], "layers": [_layer(None)], "fan_out": 2, "centroids": 4}
    io = [{"graph": "body", "direction": "in", "name": "embeddings", "dtype": "float32", "shape": [1, "rows", 8]}]
    table = {"file": "all.weights", "offset": 0, "dtype": "int8", "rows": 64, "columns": 8, "scale": 2.0,
             "block_size": 4, "scales_offset": 512, "scales_dtype": "float16"}  # fmt: skip
    built = _model() | {"dialect": "tensorrt", "readout": "", "io": io, "embedding": table}
    rich = _model() | {"screen": {"head": "head.onnx", "readout": "readout.onnx", "rescored": 8}, "stem": "body.onnx",
                       "lookup": {"graph": "body.onnx", "width": 8}, "lanes": {"graph": "body.onnx", "count": 2},
                       "narrow": {"body.onnx": "head.onnx"}}  # fmt: skip
    models: list[dict[str, Any]] = [{"target": _model()}, {"target": rich, "mtp": drafter}, {"target": built}]
    return [json.dumps(_manifest(one)).encode() for one in models]


def _layer(window: int | None) -> dict[str, Any]:
    return {"kv_heads": 1, "head_dim": 4, "window": window}


def _model() -> dict[str, Any]:
    graph = {"file": "body.onnx", "stored": 10, "table": 5, "widest": 16, "attention_heads": 2,
             "products": [{"bits": 4, "block_size": 32, "values": 64, "largest": 64}]}  # fmt: skip
    table = {"name": "embed", "file": "all.weights", "offset": 0, "dtype": "uint8", "shape": [64, 4]}
    return {
        "body": "body.onnx", "head": "head.onnx", "readout": "readout.onnx", "screen": None, "weights": ["all.weights"],
        "table": [table], "precision": "fp32", "accuracy_level": 0, "vocab_size": 64, "token_ids": None,
        "hidden_size": 8, "candidates": 64, "max_context": 32, "kv_dtype": "float32",
        "layers": [_layer(8), _layer(None)], "graphs": [graph],
        "io": [{"graph": "body", "direction": "in", "name": "ids", "dtype": "int64", "shape": [1, "rows"]}],
    }  # fmt: skip


def _manifest(models: dict[str, Any]) -> dict[str, Any]:
    tokenizer = {"file": "tokenizer.model", "vocab_size": 64, "bos_id": 2, "eos_ids": [1], "pieces_sha256": ""}
    return {
        "schema_version": 1, "name": "m", "family": "gemma3", "models": models, "tokenizer": tokenizer,
        "chat_template": None, "memory": {"weights": 1, "kv_per_token": 2, "logits_per_row": 3},
        "sources": [{"name": "s", "sha256": None, "kind": "gguf"}], "recipe": {"precision": "fp32"}, "notes": [],
        "licence": "Gemma", "licence_file": "NOTICE", "exporter": "test",
        "files": [{"name": name, "bytes": 10, "sha256": "0" * 64} for name in _FILES],
    }  # fmt: skip


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_json(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    manifest = judge.attempt(read_manifest, path.parent)
    if manifest is not None:
        for line in judge.attempt(size_problems, path.parent, manifest) or ():
            judge.listen(line)
        judge.attempt(_use, path.parent, manifest)
        for line in (manifest.name, *(entry.name for entry in manifest.files)):
            judge.listen(f"the name {line}")


def _use(place: Path, manifest: Manifest) -> None:
    roles = tuple(role for role in manifest.models if role != "target")
    for load in (Load(16, 1, roles), Load(1 << 24, 256, roles, head="full")):
        found = needs(manifest, load)
        assert 0 <= found.peak < 1 << 80
    verify_files(place, manifest, hashes=False)
