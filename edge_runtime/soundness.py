"""What no manifest may say: files that leave the bundle, sizes that no model has, parts that do not fit together.

Knows what a manifest says, and no file. What is refused here would be allocated, mapped or reckoned with later, before
anything else could fail.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import BundleError
from .graph_data import GRAPH_SUFFIX

if TYPE_CHECKING:  # the bundle reads its manifest with the help of this module
    from .bundle import Manifest, Model

_TARGET = "target"
_LARGEST_SIZE = 1 << 24
"""Of a dimension."""
_MOST_LANES = 16
_MOST_BYTES = 1 << 44
"""Of a file, or of all that a graph names: 17 TB."""
_BITS = (4, 8, 16, 32)
_SHOWN_DIGITS = 20
_LONGEST_NAME = 200
_SHOWN_CHARACTERS = 60
_NOT_SHOWN = ("Cc", "Cs", "Zl", "Zp")
"""Of Unicode: control characters, halves of surrogates, ends of lines and paragraphs."""

_Range = tuple[str, int, int, int]
"""(what, its value, least, most)."""


def refuse_unsound(path: Path, manifest: Manifest) -> None:
    """``path``: of the manifest, for the message. Raises ``BundleError`` with the first thing that is wrong."""
    for entry in manifest.files:
        if Path(entry.name).name != entry.name or entry.name in ("", "..", path.name):
            raise BundleError(f"{path}: file name {entry.name!r} leaves the bundle")
        if not entry.name.isprintable():
            raise BundleError(f"{path}: file name {entry.name!r} is none that can be shown")
    if not manifest.name.isprintable() or len(manifest.name) > _LONGEST_NAME:
        raise BundleError(f"{path}: its name {manifest.name!r:.80} is none that can be shown")
    _refuse_beyond(path, _of_manifest(manifest))
    for role, model in manifest.models.items():
        _refuse_numbers(path, role, model)
    _refuse_unlisted(path, manifest)
    if _TARGET not in manifest.models:
        raise BundleError(f"{path}: no {_TARGET} model")
    _refuse_blind_target(path, manifest.models[_TARGET])
    for role, model in manifest.models.items():
        _refuse_ill_fitting(path, role, model, manifest.models[_TARGET])


def refuse_commands(path: Path, what: str, data: object) -> None:
    """Characters that a terminal obeys, ends a line at or cannot show, in any text of ``data``, keys among them: names
    of a bundle are printed, logged and sent by what has no cause to doubt them. ``data``: as JSON has it. Raises
    ``BundleError``.
    """
    # Not by calling itself: what JSON could be read to the bottom of may lie too deep for that.
    left = [(what, data)]
    while left:
        what, one = left.pop()
        if isinstance(one, str):
            bad = next((letter for letter in one if unicodedata.category(letter) in _NOT_SHOWN), None)
            if bad is not None:
                raise BundleError(f"{path}: {what} holds {bad!a}, which no name has: {one[:_SHOWN_CHARACTERS]!a}")
        elif isinstance(one, dict):
            left += [("a key", key) for key in one]
            left += [(str(key), value) for key, value in one.items()]
        elif isinstance(one, list):
            left += [(what, value) for value in one]


def _refuse_unlisted(path: Path, manifest: Manifest) -> None:
    """A file that is used but not listed would be used unchecked."""
    listed = {entry.name for entry in manifest.files}
    used = [manifest.tokenizer.file, manifest.licence_file]
    used += [manifest.chat_template] if manifest.chat_template else []
    for model in manifest.models.values():
        graphs = list(_graphs(model))
        # What looks into graphs goes by their names; an engine reads whatever it is given.
        misnamed = [] if model.dialect == "nf4" else [one for one in graphs if not one.endswith(GRAPH_SUFFIX)]
        if misnamed:
            raise BundleError(f"{path}: {misnamed[0]} is used as a graph, and is not called *{GRAPH_SUFFIX}")
        used += [*graphs, *model.weights, *(tensor.file for tensor in model.table)]
        used += [model.embedding.file] if model.embedding else []
        used += [model.token_ids] if model.token_ids else []
    missing = sorted(set(used) - listed)
    if missing:
        raise BundleError(f"{path}: {', '.join(missing)} used but not in the list of files")


def _graphs(model: Model) -> Iterator[str]:
    """Files that an engine reads as graphs."""
    yield from (model.body, model.head)
    # Only a head that reads out itself goes without: the name of no file would be one that is missing.
    if model.readout or model.dialect == "ort":
        yield model.readout
    yield from (model.screen.head, model.screen.readout) if model.screen else ()
    yield from (one.graph for one in (model.lookup, model.lanes) if one)
    yield from (model.stem,) if model.stem else ()
    yield from (*model.narrow, *model.narrow.values())


def _refuse_beyond(path: Path, ranges: Iterator[_Range], whose: str = "") -> None:
    for what, value, least, most in ranges:
        if not least <= value <= most:
            raise BundleError(f"{path}: {whose}{what} must be from {least} to {most}, not {_shown(value)}")


def _of_manifest(manifest: Manifest) -> Iterator[_Range]:
    for entry in manifest.files:
        yield f"bytes of the file {entry.name}", entry.bytes, 0, _MOST_BYTES
    tokens = manifest.tokenizer
    yield "tokenizer.vocab_size", tokens.vocab_size, 1, _LARGEST_SIZE
    for token_id in (tokens.bos_id, *tokens.eos_ids):
        yield "a token id of the tokenizer", token_id, 0, tokens.vocab_size - 1
    memory = manifest.memory
    for name, value in (("weights", memory.weights), ("kv_per_token", memory.kv_per_token),
                        ("logits_per_row", memory.logits_per_row)):  # fmt: skip
        yield f"memory.{name}", value, 0, _MOST_BYTES


def _refuse_numbers(path: Path, role: str, model: Model) -> None:
    _refuse_beyond(path, _of_model(model), f"{role}: ")
    _refuse_beyond(path, _of_graphs(model), f"{role}: ")
    for tensor in model.table:
        if tensor.dtype not in ("uint8", "float32") or not 0 <= tensor.offset <= _MOST_BYTES:
            raise BundleError(f"{path}: {tensor.name} is no table")
    if (problem := _of_embedding(model)) is not None:
        raise BundleError(f"{path}: {role}: {problem}")
    for graph in model.graphs:
        for product in graph.products:
            if product.bits not in _BITS or product.largest > product.values or graph.table > graph.stored:
                raise BundleError(f"{path}: {role}: what {graph.file} needs contradicts itself")


def _of_model(model: Model) -> Iterator[_Range]:
    sizes = [("vocab_size", model.vocab_size), ("hidden_size", model.hidden_size), ("max_context", model.max_context)]
    sizes += [("fan_out", model.fan_out)]
    sizes += [(f"kv_heads of layer {at}", layer.kv_heads) for at, layer in enumerate(model.layers)]
    sizes += [(f"head_dim of layer {at}", layer.head_dim) for at, layer in enumerate(model.layers)]
    sizes += [(f"window of layer {at}", one.window) for at, one in enumerate(model.layers) if one.window is not None]
    sizes += [(f"the shape of {tensor.name}", size) for tensor in model.table for size in tensor.shape]
    sizes += [("lookup.width", model.lookup.width)] if model.lookup else []
    table = model.embedding
    sizes += [("embedding.rows", table.rows), ("embedding.columns", table.columns)] if table else []
    for name, size in (("hidden_input", model.hidden_input), ("centroids", model.centroids)):
        sizes += [(name, size)] if size is not None else []
    yield from ((name, size, 1, _LARGEST_SIZE) for name, size in sizes)
    yield "candidates", model.candidates, 1, model.vocab_size
    if table is not None:
        yield "embedding.offset", table.offset, 0, _MOST_BYTES
        yield "embedding.scales_offset", table.scales_offset or 0, 0, _MOST_BYTES
    if model.lanes is not None:
        yield "lanes.count", model.lanes.count, 1, _MOST_LANES
    if model.screen is not None:
        yield "screen.rescored", model.screen.rescored, 1, model.vocab_size


def _of_embedding(model: Model) -> str | None:
    """What is wrong with the table that the host looks tokens up in."""
    of = model.embedding
    if of is None:
        # Parallel heads embed nothing.
        return "a graph for TensorRT takes embeddings, and there is no table of them" if _lacks_table(model) else None
    if not 0 < of.scale < float("inf"):
        return f"the embedding's scale {of.scale} is no factor"
    if of.columns != _embedded(model):
        return f"the embedding has {of.columns} columns, and the body takes {_embedded(model)}"
    blocks = of.block_size is not None and of.scales_offset is not None and of.scales_dtype is not None
    plain = of.block_size is None and of.scales_offset is None and of.scales_dtype is None
    if (of.dtype == "int8" and not blocks) or (of.dtype != "int8" and not plain):
        return f"an embedding in {of.dtype} goes with scales where it is int8, and only there"
    if of.block_size is not None and (of.block_size < 1 or of.columns % of.block_size):
        return f"the embedding's {of.columns} columns do not divide into blocks of {of.block_size}"
    return None


def _lacks_table(model: Model) -> bool:
    return any(line.graph == "body" and line.name == "embeddings" for line in model.io)


def _embedded(model: Model) -> int:
    """Columns of the body's input ``embeddings``; the hidden size where the manifest does not say."""
    for line in model.io:
        if line.graph == "body" and line.name == "embeddings" and isinstance(line.shape[-1], int):
            return line.shape[-1]
    return model.hidden_size


def _of_graphs(model: Model) -> Iterator[_Range]:
    for one in model.graphs:
        yield f"stored of {one.file}", one.stored, 0, _MOST_BYTES
        yield f"table of {one.file}", one.table, 0, _MOST_BYTES
        yield f"widest of {one.file}", one.widest, 0, _LARGEST_SIZE
        yield f"attention_heads of {one.file}", one.attention_heads, 0, _LARGEST_SIZE
        for of in one.products:
            yield f"values of {one.file}", of.values, 0, _MOST_BYTES
            yield f"largest of {one.file}", of.largest, 0, _MOST_BYTES
            if of.block_size is not None:
                yield f"block_size of {one.file}", of.block_size, 1, _LARGEST_SIZE


def _refuse_blind_target(path: Path, target: Model) -> None:
    """One that attends to nothing would be planned without a cache and without scores."""
    if not target.layers:
        raise BundleError(f"{path}: the {_TARGET} model has no layers")
    attending = [one for one in target.graphs if one.file in (target.body, target.stem)]
    if target.graphs and not any(one.attention_heads for one in attending):
        raise BundleError(f"{path}: {target.body} must have attention_heads, from 1 on")


def _refuse_ill_fitting(path: Path, role: str, model: Model, target: Model) -> None:
    """A drafter that lives on another target would read and write memory that is not there."""
    if model.hidden_input is not None and (role == _TARGET or model.hidden_input != target.hidden_size):
        raise BundleError(f"{path}: the {role} model reads hidden rows of {model.hidden_input} that no target has")
    if model.shares is None:
        return
    if role == _TARGET or len(model.shares) != len(model.layers):
        raise BundleError(f"{path}: the {role} model cannot share {len(model.shares)} layers")
    if any(not 0 <= layer < len(target.layers) for layer in model.shares) or model.kv_dtype != target.kv_dtype:
        raise BundleError(f"{path}: the {role} model shares layers that the target lacks")
    for own, layer in zip(model.layers, model.shares, strict=True):
        shared = target.layers[layer]
        if (own.kv_heads, own.head_dim) != (shared.kv_heads, shared.head_dim):
            raise BundleError(f"{path}: layer {layer} of the target is not what the {role} model shares")


def _shown(value: int) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}... ({len(text)} digits)"
