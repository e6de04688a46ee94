"""A checkpoint's tokenizer as one sentencepiece model. Knows no weights.

A GGUF holds pieces, scores and types, which is what a sentencepiece model is; a Hugging Face directory of Gemma ships
``tokenizer.model``, or else ``tokenizer.json``, whose merges say the same by rank.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edge_runtime.errors import CheckpointError

from .checkpoint import Checkpoint

_SPACE = "\u2581"
_END_OF_TURN = "<end_of_turn>"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BPE = 2


@dataclass(frozen=True)
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
        import sentencepiece

        processor: Any = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(self.model)
        return list(processor.EncodeAsIds(text))


def build_tokenizer_model(checkpoint: Checkpoint) -> TokenizerModel:
    """Raises ``CheckpointError`` for a tokenizer that this cannot express."""
    if checkpoint.kind == "gguf":
        return _described(_from_gguf(checkpoint.metadata, checkpoint.path), checkpoint)
    given = checkpoint.path / "tokenizer.model"
    if given.is_file():
        return _described(given.read_bytes(), checkpoint)
    spelled = checkpoint.path / "tokenizer.json"
    if spelled.is_file():
        return _described(_from_json(spelled), checkpoint)
    raise CheckpointError(f"{checkpoint.path}: no tokenizer.model and no tokenizer.json")


def vocabulary_difference(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, str | None, str | None]]:
    """(id, our piece, their piece) wherever the two tables differ; a missing piece is ``None``."""
    return [(i, a, b) for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b]


def _described(model: bytes, checkpoint: Checkpoint) -> TokenizerModel:
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as problem:
        raise CheckpointError(f"{checkpoint.path}: its tokenizer does not load: {problem}") from None
    size = processor.GetPieceSize()
    pieces = tuple(processor.IdToPiece(i) for i in range(size))
    eos = list(checkpoint.config.eos_ids) or [processor.eos_id()]
    end_of_turn = processor.PieceToId(_END_OF_TURN)
    if processor.IdToPiece(end_of_turn) == _END_OF_TURN:
        eos.append(end_of_turn)
    digest = hashlib.sha256("\n".join(pieces).encode("utf-8")).hexdigest()
    controls = tuple(i for i in range(size) if processor.IsControl(i) or processor.IsUnknown(i))
    return TokenizerModel(model, pieces, processor.bos_id(), tuple(dict.fromkeys(eos)), controls, digest)


def _from_gguf(metadata: Mapping[str, Any], path: Path) -> bytes:
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "llama":
        raise CheckpointError(f"{path}: tokenizer {kind!r} is not supported (a sentencepiece one is)")
    try:
        pieces = metadata["tokenizer.ggml.tokens"]
        scores = metadata["tokenizer.ggml.scores"]
        types = metadata["tokenizer.ggml.token_type"]
    except KeyError as missing:
        raise CheckpointError(f"{path}: no {missing.args[0]}") from None
    if not len(pieces) == len(scores) == len(types):
        raise CheckpointError(f"{path}: {len(pieces)} tokens, {len(scores)} scores and {len(types)} types")
    unknown = int(metadata.get("tokenizer.ggml.unknown_token_id", 3))
    ids = {name: int(metadata.get(f"tokenizer.ggml.{name}_token_id", default)) for name, default in
           (("bos", 2), ("eos", 1), ("padding", 0))}  # fmt: skip
    kinds = [_UNKNOWN if i == unknown else int(kind) for i, kind in enumerate(types)]
    return _serialised(list(pieces), [float(score) for score in scores], kinds, unknown, ids)


def _from_json(path: Path) -> bytes:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        model, added = data["model"], data.get("added_tokens", [])
        vocab, merges = model["vocab"], model["merges"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(f"{path}: not a tokenizer: {problem}") from None
    if model.get("type") != "BPE" or not model.get("byte_fallback"):
        raise CheckpointError(f"{path}: only byte-fallback BPE is supported, not {model.get('type')!r}")
    size = 1 + max([*vocab.values(), *(token["id"] for token in added)])
    pieces, kinds = [f"<missing_{i}>" for i in range(size)], [_UNUSED] * size
    # Sentencepiece joins the pair whose result has the best score, BPE the pair with the lowest rank. A piece can be
    # made by several merges; its first rank decides, as it does when Gemma's own scores were turned into merges.
    scores = [-1e9] * size
    for piece, i in vocab.items():
        pieces[i], kinds[i] = piece, _BYTE if len(piece) == 6 and piece.startswith("<0x") else _NORMAL
    for rank, merge in enumerate(merges):
        joined = "".join(merge if isinstance(merge, list) else merge.split(" ", 1))
        i = vocab.get(joined)
        if i is not None and scores[i] == -1e9:
            scores[i] = -float(rank)
    for token in added:
        pieces[token["id"]] = token["content"]
        kinds[token["id"]] = _CONTROL if token["special"] else _USER_DEFINED
    by_piece = {piece: i for i, piece in enumerate(pieces)}
    unknown = by_piece.get(model.get("unk_token") or "<unk>", 3)
    kinds[unknown] = _UNKNOWN
    ids = {"bos": by_piece.get("<bos>", 2), "eos": by_piece.get("<eos>", 1), "padding": by_piece.get("<pad>", 0)}
    return _serialised(pieces, scores, kinds, unknown, ids)


def _serialised(
    pieces: list[str], scores: list[float], kinds: list[int], unknown: int, ids: Mapping[str, int]
) -> bytes:
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2  # made at run time: its classes have no types
    model = messages.ModelProto()
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type = _BPE
    trainer.byte_fallback = True
    trainer.vocab_size = len(pieces)
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = unknown, ids["bos"], ids["eos"], ids["padding"]
    trainer.unk_piece, trainer.bos_piece = pieces[unknown], pieces[ids["bos"]]
    trainer.eos_piece, trainer.pad_piece = pieces[ids["eos"]], pieces[ids["padding"]]
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = False
    normalizer.remove_extra_whitespaces = False
    normalizer.escape_whitespaces = True
    for piece, score, kind in zip(pieces, scores, kinds, strict=True):
        # A GGUF and a tokenizer.json write pieces of runs of spaces with spaces; the text they meet has them escaped.
        added = piece.replace(" ", _SPACE) if kind == _USER_DEFINED else piece
        model.pieces.add(piece=added, score=score, type=kind)
    return bytes(model.SerializeToString())
