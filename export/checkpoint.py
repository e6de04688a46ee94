"""A Gemma checkpoint under canonical names, whatever file it came in. Knows no graph and no bundle.

Canonical names: ``embed``, ``final_norm`` and, per layer, ``layers.{i}.`` + one of ``attn_norm``, ``q``,
``k``, ``v``, ``o``, ``q_norm``, ``k_norm``, ``post_attn_norm``, ``ffn_norm``, ``gate``, ``up``, ``down``,
``post_ffn_norm`` (and what ``gemma4_config.tensor_shapes`` adds). Everything is memory-mapped: only rows that are asked
for become float32.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError, did_you_mean
from export import gemma4_config
from export.gguf_blocks import KINDS, Bytes, Floats, dequantise, row_bytes
from export.gguf_file import GgufFile, Span, open_gguf
from export.model_config import GemmaConfig
from export.safetensors_file import PICKLED, SafetensorsFile, is_pickle, open_shards, read_json

_HF_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")
_HF_HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
_HF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "post_attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "post_feedforward_layernorm": "post_ffn_norm",
    "layer_scalar": "scalar",
    "per_layer_input_gate": "per_layer_gate",
    "per_layer_projection": "per_layer_out",
    "post_per_layer_input_norm": "post_per_layer_norm",
}
_HF_GLOBALS = {
    "embed_tokens.weight": "embed",
    "norm.weight": "final_norm",
    "embed_tokens_per_layer.weight": "per_layer_embed",
    "per_layer_model_projection.weight": "per_layer_projection",
    "per_layer_projection_norm.weight": "per_layer_norm",
}
GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "post_attention_norm": "post_attn_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "post_ffn_norm",
}
_COMPARE_ROWS = 4096


class TensorSource(Protocol):
    """One tensor, memory-mapped."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in] for a matrix, [n] for a vector."""
        ...

    @property
    def kind(self) -> str:
        """``"F32"``, ``"F16"``, ``"BF16"`` or a GGUF block type (``"Q8_0"``)."""
        ...

    def rows(self, start: int, stop: int) -> Floats:
        """[stop - start, in] dequantised; of a vector, that slice of it. Raises ``CheckpointError`` for values that are
        not finite."""
        ...

    def raw_blocks(self, start: int, stop: int) -> Bytes | None:
        """[stop - start, bytes of a row], a view; ``None`` where the tensor is stored as floats."""
        ...


class Checkpoint(Protocol):
    """A model's weights and what describes them."""

    @property
    def config(self) -> GemmaConfig: ...

    @property
    def path(self) -> Path: ...

    @property
    def kind(self) -> Literal["gguf", "safetensors"]: ...

    @property
    def norm_offset(self) -> float:
        """Added to stored norm weights: 1.0 for Gemma 2 and 3 in Hugging Face files; a GGUF and Gemma 4 hold 1 + w."""
        ...

    @property
    def metadata(self) -> Mapping[str, object]:
        """GGUF metadata, or the content of ``config.json``."""
        ...

    def names(self) -> tuple[str, ...]: ...

    def tensor(self, name: str) -> TensorSource: ...

    def release(self) -> None:
        """Let the kernel drop the mapped pages; views stay valid and are read again when touched."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a ``.gguf`` file, or a directory with ``config.json`` and ``*.safetensors``.

    Raises:
        CheckpointError: unreadable, unsupported, or a tensor missing or of a wrong shape.
    """
    if path.is_dir():
        return _open_hf(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: give the directory that holds it and config.json")
    if is_pickle(path):
        raise CheckpointError(f"{path}: {PICKLED.format(path.name)}")
    return gguf_checkpoint(open_gguf(path))


def effective_norm(checkpoint: Checkpoint, name: str) -> Floats:
    """[n] the factor that RMSNorm multiplies by: 1 + w, whichever of the two the file stores."""
    source = checkpoint.tensor(name)
    return source.rows(0, source.shape[0]) + np.float32(checkpoint.norm_offset)


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A :class:`TensorSource` on mapped bytes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    raw: Bytes
    """[out, bytes of a row] for a matrix, [n, bytes of a value] for a vector"""

    def rows(self, start: int, stop: int) -> Floats:
        self._check(start, stop)
        values = dequantise(self.kind, self.raw[start:stop], 1 if len(self.shape) == 1 else self.shape[1])
        if not np.isfinite(values).all():
            raise CheckpointError(f"tensor {self.name} has values that are not finite: the file is damaged")
        return values[:, 0] if len(self.shape) == 1 else values

    def raw_blocks(self, start: int, stop: int) -> Bytes | None:
        self._check(start, stop)
        return None if KINDS[self.kind].unpack is None else self.raw[start:stop]

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(f"rows {start}:{stop} of tensor {self.name} with {self.shape[0]}")


@dataclass(frozen=True, slots=True)
class MappedCheckpoint:
    """A :class:`Checkpoint` on one or more mapped files."""

    config: GemmaConfig
    path: Path
    kind: Literal["gguf", "safetensors"]
    norm_offset: float
    metadata: Mapping[str, object]
    tensors: Mapping[str, MappedTensor]
    mappings: tuple[mmap.mmap, ...]

    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def tensor(self, name: str) -> MappedTensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: no tensor {name}{did_you_mean(name, self.tensors)}")
        return self.tensors[name]

    def release(self) -> None:
        for mapping in self.mappings:
            if hasattr(mapping, "madvise"):
                mapping.madvise(mmap.MADV_DONTNEED)


def expected_shapes(config: GemmaConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of the model."""
    if config.family == "gemma4":
        return gemma4_config.tensor_shapes(config)
    hidden, ffn, dim = config.hidden_size, config.ffn_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "post_attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
        "post_ffn_norm": (hidden,),
    }
    if config.qk_norm:
        layer |= {"q_norm": (dim,), "k_norm": (dim,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in layer.items()}
    return shapes


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file has it."""

    name: str
    path: Path
    span: Span
    mapping: mmap.mmap

    def mapped(self, name: str) -> MappedTensor:
        """A view under a canonical name."""
        span = self.span
        if span.kind not in KINDS:
            raise CheckpointError(f"{self.path}: tensor {self.name} has the unsupported type {span.kind}")
        if len(span.shape) not in (1, 2):
            raise CheckpointError(f"{self.path}: tensor {self.name} has {len(span.shape)} dimensions, neither 1 nor 2")
        if len(span.shape) == 1 and KINDS[span.kind].unpack is not None:
            raise CheckpointError(f"{self.path}: vector {self.name} is stored in {span.kind} blocks")
        width = row_bytes(span.kind, 1 if len(span.shape) == 1 else span.shape[1])
        raw: NDArray[np.uint8] = np.frombuffer(self.mapping, np.uint8, span.nbytes, span.offset)
        return MappedTensor(name, span.shape, span.kind, raw.reshape(span.shape[0], width))


def gguf_checkpoint(file: GgufFile) -> MappedCheckpoint:
    """The Gemma in a GGUF that is open. Raises ``CheckpointError``."""
    path = file.path
    try:
        config = GemmaConfig.from_gguf(file.metadata, path.stem)
    except (TypeError, ValueError) as problem:
        raise CheckpointError(f"{path}: malformed metadata: {problem}") from None
    stored: dict[str, StoredTensor] = {}
    head: StoredTensor | None = None
    for name, span in file.tensors.items():
        entry = StoredTensor(name, path, span, file.mapping)
        canonical = _gguf_name(name)
        if canonical in stored:  # blk.00 is blk.0
            raise CheckpointError(f"{path}: {name} repeats {stored[canonical].name}")
        if canonical is not None:
            stored[canonical] = entry
        elif name == "output.weight":
            head = entry
        else:
            raise CheckpointError(f"{path}: tensor {name} is unknown: a variant not supported")
    if "embed" in stored:
        config = _padded(config, stored["embed"])
    tensors = resolve_tensors(config, expected_shapes(config), stored, path)
    check_head(tensors["embed"], head)
    return MappedCheckpoint(config, path, "gguf", 0.0, file.metadata, tensors, (file.mapping,))


def _padded(config: GemmaConfig, embed: StoredTensor) -> GemmaConfig:
    """GGUF metadata counts the tokenizer's ids; the embedding may have padding rows beyond them."""
    rows = embed.span.shape[0]
    if rows < config.vocab_size:
        raise CheckpointError(
            f"{embed.path}: tensor {embed.name} has {rows} rows, fewer than the {config.vocab_size} tokens"
        )
    return replace(config, vocab_size=rows)


def _open_hf(path: Path) -> MappedCheckpoint:
    raw_config = read_json(path / "config.json")
    generation_path = path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else None
    config = GemmaConfig.from_hf(raw_config, generation, path.resolve().name)
    files = open_shards(path)
    stored, head = stored_tensors(files)
    if config.family == "gemma4":
        stored = {name: entry for name, entry in stored.items() if name not in gemma4_config.idle_tensors(config)}
    tensors = resolve_tensors(config, expected_shapes(config), stored, path)
    if head is None and raw_config.get("tie_word_embeddings") is False:
        raise CheckpointError(f"{path}: tie_word_embeddings is false, but there is no lm_head.weight")
    check_head(tensors["embed"], head)
    norm_offset = 0.0 if config.family == "gemma4" else 1.0
    mappings = tuple(file.mapping for file in files)
    return MappedCheckpoint(config, path, "safetensors", norm_offset, raw_config, tensors, mappings)


def stored_tensors(files: Sequence[SafetensorsFile]) -> tuple[dict[str, StoredTensor], StoredTensor | None]:
    """The text model's tensors by their canonical names, and the head if one is stored."""
    stored: dict[str, StoredTensor] = {}
    head: StoredTensor | None = None
    for file in files:
        for name, span in file.tensors.items():
            entry = StoredTensor(name, file.path, span, file.mapping)
            canonical = _hf_name(name, file.path)
            if name in _HF_HEADS:
                if head is not None:
                    raise CheckpointError(f"{file.path}: {name} repeats {head.name}")
                head = entry
            elif canonical is not None:
                if canonical in stored:
                    raise CheckpointError(f"{file.path}: {name} repeats {stored[canonical].name}")
                stored[canonical] = entry
    return stored, head


def _gguf_name(name: str) -> str | None:
    if name in ("token_embd.weight", "output_norm.weight"):
        return "embed" if name == "token_embd.weight" else "final_norm"
    match = re.fullmatch(r"blk\.(\d{1,4})\.(\w+)\.weight", name)
    if match is None or match[2] not in GGUF_NAMES:
        return None
    return f"layers.{int(match[1])}.{GGUF_NAMES[match[2]]}"


def _hf_name(name: str, path: Path) -> str | None:
    """Canonical name, or ``None`` for what the text model does not need (the vision tower)."""
    prefix = next(prefix for prefix in _HF_PREFIXES if name.startswith(prefix))
    rest = name[len(prefix) :]
    if rest in _HF_GLOBALS:
        return _HF_GLOBALS[rest]
    if not rest.startswith("layers.") or rest.endswith("rotary_emb.inv_freq"):
        return None
    match = re.fullmatch(r"layers\.(\d{1,4})\.(.+?)(?:\.weight)?", rest)
    if match is None or match[2] not in _HF_NAMES:
        # Dropping a bias or an adapter in silence would export another model.
        raise CheckpointError(f"{path}: tensor {name} is unknown: this variant is not supported")
    return f"layers.{int(match[1])}.{_HF_NAMES[match[2]]}"


def resolve_tensors(
    config: GemmaConfig, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, StoredTensor], path: Path
) -> dict[str, MappedTensor]:
    """All of ``shapes`` and nothing else. Raises ``CheckpointError``."""
    tensors: dict[str, MappedTensor] = {}
    for name, shape in shapes.items():
        entry = stored.get(name)
        if entry is None:
            raise CheckpointError(f"{path}: tensor {name} is missing")
        if entry.span.shape != shape:
            raise CheckpointError(
                f"{entry.path}: tensor {entry.name} has shape {list(entry.span.shape)}, not {list(shape)}"
            )
        tensors[name] = entry.mapped(name)
    extra = set(stored) - set(tensors)
    if extra:
        entry = stored[min(extra)]
        model = f"{config.num_layers}-layer {config.family}"
        raise CheckpointError(f"{entry.path}: tensor {entry.name} is not part of a {model}")
    return tensors


def check_head(embed: MappedTensor, head: StoredTensor | None) -> None:
    """A stored head is fine as long as it repeats the embedding: the graph ties them."""
    if head is None:
        return
    same = head.span.shape == embed.shape
    if same:
        other = head.mapped("head")
        for start in range(0, embed.shape[0], _COMPARE_ROWS):
            stop = min(start + _COMPARE_ROWS, embed.shape[0])
            if embed.kind == other.kind:
                same = np.array_equal(embed.raw[start:stop], other.raw[start:stop])
            else:
                same = np.array_equal(embed.rows(start, stop), other.rows(start, stop))
            if not same:
                break
    if not same:
        raise CheckpointError(f"{head.path}: {head.name} differs from the embedding: untied heads are unsupported")
