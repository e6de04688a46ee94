"""A checkpoint's tokenizer as one sentencepiece model. Knows no weights.

A GGUF holds pieces, scores and types, which is what a sentencepiece model is; a Hugging Face directory of Gemma ships
``tokenizer.model``, or else ``tokenizer.json``, whose merges say the same by rank.

Sentencepiece joins the neighbours whose joined piece has the best score; the BPE of ``tokenizer.json`` those whose
pair has the lowest rank; both take the leftmost of equals. With score = -(first rank of a piece) they agree wherever
the merges came from scores, as Gemma's did: every way to split a piece is a merge, and the ways of one piece have
ranks that follow each other. They may differ where merges were trained as such:

- a piece that neighbours spell although no merge joins them is joined by sentencepiece alone;
- of two overlapping ways to make the same piece, sentencepiece takes the left one, BPE the one of lower rank.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edge_runtime.errors import CheckpointError, ConfigError, first_line, why
from edge_runtime.files import read_at_most

from .checkpoint import Checkpoint
from .safetensors_file import MOST_BESIDE, read_json, unreadable

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces, the same in a sentencepiece model and a GGUF."""
_SPACE = "\u2581"
_ENDS_OF_TURN = ("<end_of_turn>", "<turn|>")
_BPE = 2
_KINDS = frozenset((_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE))
# Markers that no text of a user may spell. Google's own model has them as user-defined, so that they are read wherever
# they stand; Hugging Face and llama.cpp take most of them for control pieces, and so does this.
_MARKER = re.compile(
    r"<(?:pad|bos|eos|mask|2mass|(?:start|end)_of_turn|\|turn|turn\||image_soft_token|unused\d+)>|\[@BOS@\]"
)
_IMAGE = "<image_soft_token>"
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_NEVER, _MOST_SCORE = -1e9, 1e38
_MOST_GAPS, _SPARE_IDS = 4, 4096
"""Ids that a ``tokenizer.json`` may leave out: for each one that it names, and on top."""
_ESCAPED = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
# Spaces are escaped before this could find one.
_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


@dataclass(frozen=True, slots=True)
class _Pieces:
    """By token id."""

    pieces: list[str]
    scores: list[float]
    kinds: list[int]
    unknown_id: int
    bos_id: int
    eos_id: int
    padding_id: int


@dataclass(frozen=True, slots=True)
class TokenizerModel:
    """A sentencepiece model and what export asks of it."""

    model: bytes
    pieces: tuple[str, ...]
    bos_id: int
    eos_ids: tuple[int, ...]
    """End of text and, where there is one, end of turn."""
    control_ids: tuple[int, ...]
    pieces_sha256: str

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Without a begin-of-text id."""
        return list(_processor(self.model, Path()).EncodeAsIds(text))


def build_tokenizer_model(checkpoint: Checkpoint) -> TokenizerModel:
    """Rows that no text can spell and that only pad the end of a vocabulary (``[PAD7]``, the image token of larger
    Gemma 3) are left out, so that all sizes of a family come to the same table.

    Raises ``CheckpointError`` for a tokenizer that this cannot express.
    """
    path = checkpoint.path
    if checkpoint.kind == "gguf":
        model = _serialised(_from_gguf(checkpoint.metadata, path), path)
    elif (path / "tokenizer.model").is_file():
        model = _with_markers(_bytes_of(path / "tokenizer.model"), path)
    elif (path / "tokenizer.json").is_file():
        model = _serialised(_from_json(path / "tokenizer.json"), path)
    else:
        raise CheckpointError(f"{path}: no tokenizer.model and no tokenizer.json")
    return _described(model, checkpoint)


def _bytes_of(path: Path) -> bytes:
    try:
        return read_at_most(path, MOST_BESIDE, "")
    except ConfigError as problem:
        raise unreadable(path, problem) from None


def vocabulary_difference(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, str | None, str | None]]:
    """(id, our piece, their piece) wherever the two tables differ; a missing piece is ``None``.

    Of two ``TokenizerModel.pieces``, which hold no padding any more: a longer table means real ids.
    """
    return [(i, a, b) for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b]


def _processor(model: bytes, path: Path) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except (RuntimeError, UnicodeDecodeError) as problem:  # the latter: of a message that quotes the file
        raise CheckpointError(f"{path}: its tokenizer does not load: {first_line(problem)}") from None
    return processor


def _described(model: bytes, checkpoint: Checkpoint) -> TokenizerModel:
    path = checkpoint.path
    processor = _processor(model, path)
    size = processor.GetPieceSize()
    try:
        pieces = tuple(processor.IdToPiece(list(range(size))))
    except UnicodeDecodeError as problem:
        raise CheckpointError(f"{path}: a piece of its tokenizer is no text: {why(problem)}") from None
    eos = [*checkpoint.config.eos_ids, processor.eos_id()]
    eos += [processor.PieceToId(piece) for piece in _ENDS_OF_TURN if pieces[processor.PieceToId(piece)] == piece]
    eos_ids = tuple(dict.fromkeys(token for token in eos if 0 <= token < size))
    if not eos_ids or processor.bos_id() < 0:
        raise CheckpointError(f"{path}: its tokenizer names no {'begin' if eos_ids else 'end'} of text")
    # As JSON: pieces hold line feeds, and joined by one two different tables could look the same.
    digest = hashlib.sha256(json.dumps(pieces).encode("ascii")).hexdigest()
    controls = tuple(i for i in range(size) if processor.IsControl(i) or processor.IsUnknown(i))
    return TokenizerModel(model, pieces, processor.bos_id(), eos_ids, controls, digest)


def _from_gguf(metadata: Mapping[str, Any], path: Path) -> _Pieces:
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind != "llama":  # an array would compare item by item
        raise CheckpointError(f"{path}: tokenizer {kind!r} is not supported (a sentencepiece one is)")
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", False)
    if not isinstance(prefix, int) or prefix:
        raise CheckpointError(f"{path}: a tokenizer that puts a space ahead of the text is not supported")
    try:
        pieces = list(metadata["tokenizer.ggml.tokens"])
        scores = [float(score) for score in metadata["tokenizer.ggml.scores"]]
        kinds = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    except (TypeError, ValueError, OverflowError) as problem:
        raise CheckpointError(f"{path}: a malformed tokenizer: {problem}") from None
    except KeyError as missing:
        raise CheckpointError(f"{path}: no {missing.args[0]}") from None
    if not len(pieces) == len(scores) == len(kinds):
        raise CheckpointError(f"{path}: {len(pieces)} tokens, {len(scores)} scores and {len(kinds)} types")
    if not all(isinstance(piece, str) for piece in pieces) or not all(abs(score) < _MOST_SCORE for score in scores):
        raise CheckpointError(f"{path}: a malformed tokenizer: tokens that are no text, or scores that are no numbers")
    unknown, bos, eos, padding = (
        _token_id(metadata, path, name, default)
        for name, default in (("unknown", 3), ("bos", 2), ("eos", 1), ("padding", 0))
    )
    return _Pieces(pieces, scores, kinds, unknown, bos, eos, padding)


def _token_id(metadata: Mapping[str, Any], path: Path, name: str, default: int) -> int:
    key = f"tokenizer.ggml.{name}_token_id"
    found = metadata.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise CheckpointError(f"{path}: {key} must be a whole number, found {found!r}")
    return found


def _from_json(path: Path) -> _Pieces:
    """Raises ``CheckpointError`` for what is no byte-fallback BPE over escaped spaces."""
    data: Mapping[str, Any] = read_json(path)
    try:
        _refuse_features(data, path)
        return _table(data["model"], data.get("added_tokens") or [])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as problem:
        raise CheckpointError(f"{path}: not a tokenizer: {problem!r}") from None


def _refuse_features(data: Mapping[str, Any], path: Path) -> None:
    model = data["model"]
    if model.get("type") != "BPE" or not model.get("byte_fallback"):
        raise CheckpointError(f"{path}: only byte-fallback BPE is supported, not {model.get('type')!r}")
    if data.get("normalizer") != _ESCAPED or data.get("pre_tokenizer") not in (None, _SPLIT):
        raise CheckpointError(f"{path}: its normalizer or pre_tokenizer is not Gemma's")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if model.get(name):
            raise CheckpointError(f"{path}: {name} is not supported")
    for token in data.get("added_tokens") or []:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise CheckpointError(f"{path}: added token {token['content']!r} takes in what stands beside it")


def _table(model: Mapping[str, Any], added: list[Mapping[str, Any]]) -> _Pieces:
    vocab: dict[str, int] = model["vocab"]
    ids = [*vocab.values(), *(token["id"] for token in added)]
    # Room for pieces that are not named, as published vocabularies have: not for as many as a number may say.
    most = _MOST_GAPS * len(ids) + _SPARE_IDS
    if not all(type(i) is int and 0 <= i < most for i in ids):
        raise ValueError(f"an id is no whole number from 0 to {most - 1}")
    if not all(isinstance(token["content"], str) for token in added):
        raise ValueError("an added token is no text")
    size = 1 + max(ids)
    # Named as llama.cpp names them, so that the tables of a GGUF and of its source agree.
    pieces, kinds, scores = [f"[PAD{i}]" for i in range(size)], [_UNUSED] * size, [_NEVER] * size
    for rank, merge in enumerate(model["merges"]):
        i = vocab["".join(merge if isinstance(merge, list) else merge.split(" ", 1))]
        if scores[i] == _NEVER:
            scores[i] = -float(rank)
    for piece, i in vocab.items():
        # What no merge makes stays out of reach, but for the single characters that merges start from.
        reached = scores[i] > _NEVER or len(piece) == 1
        pieces[i], kinds[i] = piece, _BYTE if _BYTE_PIECE.fullmatch(piece) else _NORMAL if reached else _UNUSED
    for token in added:
        pieces[token["id"]] = token["content"]
        kinds[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    "".join(pieces).encode("utf-8")  # what is no text is none of a model's either
    by_piece = {piece: i for i, piece in enumerate(pieces)}
    unknown = by_piece[model.get("unk_token") or "<unk>"]
    return _Pieces(pieces, scores, kinds, unknown, by_piece["<bos>"], by_piece["<eos>"], by_piece["<pad>"])


def _with_markers(model: bytes, path: Path) -> bytes:
    """A ``tokenizer.model`` byte by byte, except that markers become control pieces."""
    from google.protobuf.message import DecodeError

    _processor(model, path)
    proto = _empty_model()
    try:
        proto.ParseFromString(model)
    except DecodeError as problem:  # it is stricter than what has read the same above
        raise CheckpointError(f"{path}: its tokenizer is damaged: {first_line(problem)}") from None
    if proto.normalizer_spec.add_dummy_prefix or proto.normalizer_spec.remove_extra_whitespaces:
        # A prompt is encoded in parts, around its markers: no part may begin with a space of its own.
        raise CheckpointError(f"{path}: a tokenizer.model that adds or removes spaces is not supported")
    special = _special_ids(path)
    changed = False
    for i, piece in enumerate(proto.pieces):
        if not isinstance(piece.piece, str):  # what is not UTF-8 comes as bytes
            raise CheckpointError(f"{path}: piece {i} of its tokenizer is no text")
        marker = _MARKER.fullmatch(piece.piece) or special.get(i) == piece.piece
        if marker and piece.type in (_NORMAL, _USER_DEFINED):
            piece.type, changed = _CONTROL, True
    return bytes(proto.SerializeToString()) if changed else model


def _special_ids(path: Path) -> dict[int, str]:
    """What ``tokenizer_config.json``, where there is one, calls special."""
    given = path / "tokenizer_config.json"
    if not given.is_file():
        return {}
    added: Any = read_json(given).get("added_tokens_decoder", {})
    try:
        return {int(i): token["content"] for i, token in added.items() if token.get("special")}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as problem:
        raise CheckpointError(f"{given}: not a tokenizer's settings: {problem}") from None


def _serialised(table: _Pieces, path: Path) -> bytes:
    pieces, kinds = table.pieces, _kinds(table, path)
    size = len(pieces)
    while size and (kinds[size - 1] == _UNUSED or pieces[size - 1] == _IMAGE):
        size -= 1
    if not all(0 <= i < size for i in (table.unknown_id, table.bos_id, table.eos_id, table.padding_id)):
        raise CheckpointError(f"{path}: its tokenizer's special ids lie beyond its {size} pieces")
    model = _empty_model()
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = _BPE
    trainer.byte_fallback = True
    trainer.vocab_size = size
    trainer.unk_id, trainer.bos_id = table.unknown_id, table.bos_id
    trainer.eos_id, trainer.pad_id = table.eos_id, table.padding_id
    # Sentencepiece finds these by their text, not by the ids above.
    trainer.unk_piece, trainer.bos_piece = pieces[table.unknown_id], pieces[table.bos_id]
    trainer.eos_piece, trainer.pad_piece = pieces[table.eos_id], pieces[table.padding_id]
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    for piece, score, kind in zip(pieces[:size], table.scores, kinds, strict=False):
        # A GGUF writes the pieces of runs of spaces with spaces; the text that they meet has them escaped.
        model.pieces.add(piece=piece.replace(" ", _SPACE), score=score, type=kind)
    return bytes(model.SerializeToString())


def _empty_model() -> Any:
    from sentencepiece import sentencepiece_model_pb2

    # Made at run time from a description, so that a type checker cannot see it.
    return vars(sentencepiece_model_pb2)["ModelProto"]()


def _kinds(table: _Pieces, path: Path) -> list[int]:
    kinds = list(table.kinds)
    for i, (piece, kind) in enumerate(zip(table.pieces, kinds, strict=True)):
        if kind not in _KINDS:
            raise CheckpointError(f"{path}: token {i} has the unknown type {kind}")
        if i == table.unknown_id:
            kinds[i] = _UNKNOWN
        elif kind in (_NORMAL, _USER_DEFINED) and _MARKER.fullmatch(piece):
            kinds[i] = _CONTROL
    return kinds
