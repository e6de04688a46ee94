"""Tiny random Gemma checkpoints, saved by transformers itself, and their export without tokenizer or manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bench.corpus import sample_text
from edge_runtime.bundle import Manifest, MemoryNeeds, TokenizerEntry
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from export.checkpoint import open_checkpoint
from export.model_writer import ModelPlan
from export.recipe import ExportRecipe
from export.writing import write_model


@dataclass(frozen=True)
class TinyConfig:
    family: str = "gemma3"
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    hidden: int = 64
    ffn: int = 128
    vocab: int = 512
    window: int = 8
    context: int = 128
    rope_factor: float = 1.0


def save_tiny(directory: Path, config: TinyConfig, seed: int = 0) -> Path:
    """A random checkpoint in Hugging Face layout, weights large enough that the logits are not all alike."""
    import torch
    import transformers

    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "vocab_size": config.vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "sliding_window": config.window,
        "max_position_embeddings": config.context,
        "query_pre_attn_scalar": config.head_dim,
        "initializer_range": 0.25,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    if config.family == "gemma2":
        hf = transformers.Gemma2Config(**shared, attn_logit_softcapping=5.0, final_logit_softcapping=3.0)
        model: Any = transformers.Gemma2ForCausalLM(hf)
    else:
        full: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
        if config.rope_factor != 1.0:
            full = {"rope_type": "linear", "rope_theta": 1e6, "factor": config.rope_factor}
        rope = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
        hf = transformers.Gemma3TextConfig(**shared, rope_parameters=rope)
        model = transformers.Gemma3ForCausalLM(hf)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


def export_tiny(
    directory: Path, checkpoint_path: Path, *, vocab_size: int | None = None, **recipe: Any
) -> tuple[Path, Manifest]:
    """The model files of a checkpoint and a manifest in memory."""
    checkpoint = open_checkpoint(checkpoint_path)
    wanted = ExportRecipe(source=str(checkpoint_path), output=str(directory), **{"max_context": 128, **recipe})
    directory.mkdir(parents=True, exist_ok=True)
    plan = ModelPlan(
        role="target",
        checkpoint=checkpoint,
        num_layers=checkpoint.config.num_layers,
        vocab_size=vocab_size or checkpoint.config.vocab_size,
        token_ids=None,
        precision=wanted.precision,
        head_precision=wanted.head_precision or wanted.precision,
    )
    written = write_model(directory, plan, wanted, lambda what, done, total: None)
    manifest = Manifest(
        schema_version=1,
        name="tiny",
        family=checkpoint.config.family,
        models={"target": written.model},
        tokenizer=TokenizerEntry("tokenizer.model", plan.vocab_size, 2, (1,), ""),
        chat_template=None,
        memory=MemoryNeeds(0, 0, 0),
        sources=(),
        recipe={},
        notes=written.notes,
        licence="",
        licence_file="",
        exporter="",
        files=(),
    )
    return directory, manifest


def tiny_engine(directory: Path, manifest: Manifest, **settings: Any) -> OrtEngine:
    return OrtEngine(directory, manifest, "target", OrtSettings(**{"capacity": 100, "threads": 1, **settings}))


def run_in_chunks(engine: Engine, ids: NDArray[np.int64], sizes: list[int]) -> NDArray[np.float32]:
    """[T, vocab] logits of ``ids``, run in chunks of ``sizes`` (the last repeated)."""
    rows, start, sizes = [], 0, list(sizes)
    while start < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        chunk = ids[start : start + size]
        engine.forward(StepInput(0, chunk, start, HeadRequest(0, len(chunk))))
        rows += [engine.logits(row).copy() for row in range(len(chunk))]
        start += len(chunk)
    return np.stack(rows)


def save_tiny_tokenizer(directory: Path, vocab: int = 512, text: str | None = None) -> None:
    """A ``tokenizer.model`` with Gemma's ids of markers and its byte pieces, trained on a small text."""
    import sentencepiece

    sentences = (sample_text() if text is None else text).splitlines()
    with (directory / "tokenizer.model").open("wb") as out:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(sentences),
            model_writer=out,
            model_type="bpe",
            vocab_size=vocab,
            byte_fallback=True,
            pad_id=0,
            eos_id=1,
            bos_id=2,
            unk_id=3,
            pad_piece="<pad>",
            eos_piece="<eos>",
            bos_piece="<bos>",
            user_defined_symbols=["<start_of_turn>", "<end_of_turn>"],
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            minloglevel=2,
        )


def save_tiny_checkpoint(directory: Path, config: TinyConfig, seed: int = 0, text: str | None = None) -> Path:
    """A checkpoint that exports as it stands: model and tokenizer."""
    save_tiny(directory, config, seed)
    save_tiny_tokenizer(directory, config.vocab, text)
    return directory
