"""A whole bundle of a tiny random Gemma 3 with a pruned draft, made once: what the command line is tested on.

Its text reads badly but simply: every piece is one character, and the greedy text holds neither spaces nor bytes, so
that text and tokens say the same. Any text encodes, by bytes where there is no piece.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tiny_models import TinyConfig, save_tiny

from export.build import build_bundle
from export.recipe import DraftRecipe, ExportRecipe

CONTEXT = 4096
"""Longest context of the bundle."""
_CONTROLS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_ADDED = ("\n", "\n\n", "\u2581\u2581")
_VOCAB = 512


def tiny_pieces() -> list[tuple[str, float, int]]:
    """(piece, score, type) of 512 pieces in Gemma's order: control, added, bytes, characters."""
    rows = [(piece, 0.0, _UNKNOWN if piece == "<unk>" else _CONTROL) for piece in _CONTROLS]
    rows += [(piece, 0.0, _USER_DEFINED) for piece in _ADDED]
    rows += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    characters = ["\u2581", *map(chr, range(0x21, 0x7F)), *map(chr, range(0xC0, 0x180))]
    return rows + [(piece, -float(i), _NORMAL) for i, piece in enumerate(characters[: _VOCAB - len(rows)])]


def tiny_tokenizer() -> bytes:
    """A sentencepiece model with Gemma's settings."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2
    model = messages.ModelProto()
    for piece, score, kind in tiny_pieces():
        model.pieces.add(piece=piece, score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback, trainer.vocab_size = 2, True, _VOCAB
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = range(4)
    trainer.pad_piece, trainer.eos_piece, trainer.bos_piece, trainer.unk_piece = _CONTROLS[:4]
    normalizer.name = "identity"
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return bytes(model.SerializeToString())


def save_tiny_checkpoint(directory: Path) -> Path:
    import transformers
    from safetensors.numpy import load_file, save_file

    transformers.utils.logging.disable_progress_bar()
    # Every sixth layer sees all of the text.
    save_tiny(directory, TinyConfig(layers=6, vocab=_VOCAB, context=CONTEXT))
    (directory / "tokenizer.model").write_bytes(tiny_tokenizer())
    (file,) = directory.glob("*.safetensors")
    weights = load_file(file)
    # A tied head: what has a tiny embedding is never the best token.
    silent = [i for i, (piece, _, kind) in enumerate(tiny_pieces()) if kind != _NORMAL or piece == "\u2581"]
    weights["model.embed_tokens.weight"][silent] *= 1e-3
    for name in weights:
        if "post_" in name:
            # Layers that say more than the embedding: a model that only repeats its last token tests nothing.
            weights[name] += 4.0
    save_file(weights, file, metadata={"format": "pt"})
    return directory


def export_tiny_bundle(directory: Path, checkpoint: Path, *, draft: bool = True) -> Path:
    recipe = ExportRecipe(
        source=str(checkpoint),
        output=str(directory),
        precision="int8",
        max_context=CONTEXT,
        draft=DraftRecipe(layers=4, vocab_rows=448) if draft else None,
    )
    build_bundle(recipe, lambda what, done, total: None)
    return directory


@cache
def bundle() -> Path:
    """Made once, for all to read: a test that damages a bundle takes ``copy_of``."""
    return export_tiny_bundle(_place() / "tiny", checkpoint())


@cache
def bundle_without_draft() -> Path:
    return export_tiny_bundle(_place() / "alone", checkpoint(), draft=False)


@cache
def checkpoint() -> Path:
    return save_tiny_checkpoint(_place() / "checkpoint")


@cache
def _place() -> Path:
    place = Path(tempfile.mkdtemp(prefix="edge-tiny-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def copy_of(bundle: Path, place: Path) -> Path:
    return Path(shutil.copytree(bundle, place / "copy"))
